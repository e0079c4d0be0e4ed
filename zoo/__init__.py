"""Commands around rl_zoo3: ``python -m zoo.train`` in a checkout, ``sb-grpo train`` with the wheel installed.

The wheel calls this package ``sb_grpo_zoo``, so that it cannot clash with another package ``zoo``. All imports between its
modules are relative: the code is the same under both names.
"""
