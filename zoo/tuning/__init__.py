"""Parts of ``zoo.tune``."""
