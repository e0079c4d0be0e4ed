"""Modules that a fork server imports before it forks its first env: the whole package, torch and SB3.

Forked processes would share the state of NumPy's global generator, so each gets its own. (Python's ``random`` does this
itself.)
"""

import os

import numpy as np

SERVER = os.getpid()
os.register_at_fork(after_in_child=np.random.seed)
