"""Parts of ``python -m zoo.record``: groups of episodes, how they were learnt, and the file that holds both."""
