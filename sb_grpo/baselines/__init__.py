"""Baselines from other episodes: state values in closed form, and paired groups."""
