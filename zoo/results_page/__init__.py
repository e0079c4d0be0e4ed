"""What ``zoo.evidence`` is made of."""
