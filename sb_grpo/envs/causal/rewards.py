"""What an experiment is worth: differences of four potentials, each in [0, 1], so that no policy can farm any of them.

A component pays Phi(after) - Phi(before). Over an episode it adds up to Phi(end) - Phi(start), whatever lies between: going round in
circles earns nothing, and no number of steps earns more than 1 (potential-based rewards: Ng, Harada and Russell, ICML 1999).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

#: The components and their default weights.
WEIGHTS = {"optimization": 1.0, "structure": 0.5, "parent": 0.3, "exploration": 0.1}


def check_weights(weights: Mapping[str, float] | None) -> dict[str, float]:
    """The default weights with the given ones in their place.

    :raises ValueError: for an unknown component, or a weight that is negative or not finite
    """
    for name, weight in (weights or {}).items():
        if name not in WEIGHTS:
            raise ValueError(f"reward_weights has the unknown component {name!r}: choose among {', '.join(WEIGHTS)}.")
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"reward_weights[{name!r}]={weight} must be finite and not negative; 0 switches a component off.")
    return {**WEIGHTS, **(weights or {})}


def balanced_accuracy(probability: np.ndarray, truth: np.ndarray) -> float:
    """Mean of the belief in what is there and the disbelief in what is not, both counted alike.

    The same belief in everything scores 1/2, however few edges a graph has.

    :param probability: ``[n]`` in [0, 1]
    :param truth: ``[n]`` bool
    :return: in [0, 1]
    """
    parts = [part.mean() for part in (probability[truth], 1.0 - probability[~truth]) if len(part)]
    return float(np.mean(parts))


def potentials(quality: float, edges: np.ndarray, truth: np.ndarray, target: int, tried: np.ndarray) -> dict[str, float]:
    """The four potentials, each in [0, 1].

    :param quality: of the intervention that the data recommend: 0 is the worst there is, 1 the best
    :param edges: ``[d, d]`` posterior probability of i -> j
    :param truth: ``[d, d]`` bool
    :param target: variable
    :param tried: ``[d]`` bool: has been intervened on; the target cannot be
    """
    d = len(truth)
    pair = ~np.eye(d, dtype=bool)
    into = pair[:, target]
    return {
        "optimization": quality,
        "structure": balanced_accuracy(edges[pair], truth[pair]),
        "parent": balanced_accuracy(edges[into, target], truth[into, target]),
        "exploration": float(tried.sum()) / (d - 1),
    }
