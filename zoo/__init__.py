"""Training scripts around rl_zoo3, used from a checkout: ``python -m zoo.train --env CartPole-v1``."""
