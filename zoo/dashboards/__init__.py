"""Parts of ``zoo.dashboard`` and ``zoo.report``: what a run holds, the page made of it, and a server that keeps it fresh."""
