"""What ``zoo.benchmark`` is made of; its result files are what ``zoo.compare`` and ``zoo.plot`` read."""
