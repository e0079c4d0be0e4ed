"""Parts of ``python -m zoo.dashboard``: what a run's folder holds, the page made of it, and a server that keeps it fresh."""
