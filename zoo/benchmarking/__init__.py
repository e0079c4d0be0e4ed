"""Parts of ``zoo.benchmark``. ``zoo.compare`` and ``zoo.plot`` read its result files."""
