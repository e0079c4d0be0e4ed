"""Commands around rl_zoo3: ``python -m zoo.train`` in a checkout, ``sb-grpo train`` where the wheel is installed.

The wheel calls this package ``sb_grpo_zoo``, so that it cannot clash with somebody's own ``zoo``. All imports between its
modules are relative: the code is the same under both names.
"""
