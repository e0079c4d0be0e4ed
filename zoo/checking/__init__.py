"""Parts of ``zoo.check``."""
