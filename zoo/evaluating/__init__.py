"""Parts of ``zoo.evaluate``: find saved models, play them on common seeds, and report."""
