"""Parts of ``zoo.train``, also used by other commands."""
