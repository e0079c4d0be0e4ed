"""What ``zoo.benchmark`` is made of; its result files are what ``zoo.compare``, ``zoo.plot`` and ``zoo.evidence`` read."""
