"""What ``zoo.check`` is made of."""
