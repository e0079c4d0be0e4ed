"""Studies behind the pages and tables of measurements under docs: one module, or package, per study.

``python -m scripts.studies.NAME`` in the root of the checkout. Raw results are under docs/studies/data: one file of JSON lines
per study and label, a run per line. Studies use sb_grpo and zoo; nothing uses them.
"""
