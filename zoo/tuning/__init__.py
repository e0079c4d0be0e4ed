"""What ``zoo.tune`` is made of."""
