"""What a fork server imports before it forks its first env: with this module the whole package, torch and SB3.

Forked processes would share NumPy's global generator, and so the luck of envs that draw from it: each gets a state of its
own. (Python's ``random`` sees to that itself.)
"""

import os

import numpy as np

SERVER = os.getpid()
os.register_at_fork(after_in_child=np.random.seed)
