"""Experiment designs without learning, for comparison with a trained policy. They read the same observation.

Each is a function of the named parts of an observation (``CausalInterventionEnv.parts``) and a generator, and returns a
number of the ``"discrete"`` action space. Ties are broken at random.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Parts = dict[str, np.ndarray]
Baseline = Callable[[Parts, np.random.Generator], int]


def _best(scores: np.ndarray, rng: np.random.Generator) -> int:
    """Index of the highest entry of the flattened scores."""
    return int(rng.choice(np.flatnonzero(scores.ravel() >= scores.max() - 1e-6)))


def _where_present(scores: np.ndarray, parts: Parts) -> np.ndarray:
    """``[D - 1, B]`` scores, minus infinity for variables that a smaller graph lacks."""
    return np.where(parts["present"][1:, None] > 0, scores, -np.inf)


def at_random(parts: Parts, rng: np.random.Generator) -> int:
    """Choose any intervention uniformly."""
    return 1 + _best(_where_present(np.zeros_like(parts["effects"]), parts), rng)


def greedy_target(parts: Parts, rng: np.random.Generator) -> int:
    """Choose the intervention with the best estimate for the target."""
    return 1 + _best(_where_present(parts["effects"], parts), rng)


def greedy_information(parts: Parts, rng: np.random.Generator) -> int:
    """Choose the variable with the least certain outgoing edges (sum of entropies), and an extreme value."""
    p = parts["edges"][1:].astype(np.float64).clip(1e-12, 1.0 - 1e-12)
    entropy = -(p * np.log(p) + (1.0 - p) * np.log(1.0 - p))
    entropy[np.arange(len(p)), np.arange(1, len(p) + 1)] = 0.0  # no edge leads from a variable to itself
    scores = np.full(parts["effects"].shape, -np.inf)
    scores[:, [0, -1]] = entropy.sum(1, keepdims=True)
    return 1 + _best(_where_present(scores, parts), rng)


def upper_confidence(parts: Parts, rng: np.random.Generator) -> int:
    """Choose the intervention with the best upper bound for the target: mean plus one standard deviation (UCB)."""
    return 1 + _best(_where_present(parts["effects"] + parts["deviations"], parts), rng)


BASELINES: dict[str, Baseline] = {
    "random": at_random,
    "greedy_target": greedy_target,
    "greedy_information": greedy_information,
    "upper_confidence": upper_confidence,
}
