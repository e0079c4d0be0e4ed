"""The measured examples of the docs: run, save, tabulate, draw.

exploration, curriculum and health share one command, ``python -m zoo.showcase PART``; the others, each with an env or an
evaluation of its own, are commands themselves: ``python -m zoo.showcase.grouping run``.
"""
