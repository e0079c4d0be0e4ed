"""What ``zoo.train`` is made of; the other commands train with it too."""
