"""Rewards of an experiment: differences of four potentials, each in [0, 1], which no policy can exploit by cycling.

A component pays Phi(after) - Phi(before), which sums to Phi(end) - Phi(start) over an episode: cycles earn nothing, and no
number of steps earns more than 1 (potential-based rewards: Ng, Harada and Russell, ICML 1999).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

#: The components and their default weights.
WEIGHTS = {"optimization": 1.0, "structure": 0.5, "parent": 0.3, "exploration": 0.1}


def check_weights(weights: Mapping[str, float] | None) -> dict[str, float]:
    """Merge the given weights into the default ones.

    :raises ValueError: for an unknown component, or a weight that is negative or not finite
    """
    for name, weight in (weights or {}).items():
        if name not in WEIGHTS:
            raise ValueError(f"reward_weights has the unknown component {name!r}: choose among {', '.join(WEIGHTS)}.")
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"reward_weights[{name!r}]={weight} must be finite and not negative; 0 switches a component off.")
    return {**WEIGHTS, **(weights or {})}


class BalancedAccuracy:
    """Mean of the probability of true edges and one minus the probability of absent edges, equally weighted.

    Equal probabilities for all edges score 1/2, however few edges a graph has.

    :param truth: ``[n]`` bool
    """

    def __init__(self, truth: np.ndarray) -> None:
        there = int(truth.sum())
        absent = int((~truth).sum())
        sides = (there > 0) + (absent > 0)
        self._weights = np.where(truth, 1.0 / max(there, 1), -1.0 / max(absent, 1)) / sides
        self._offset = (absent > 0) / sides

    def __call__(self, probability: np.ndarray) -> float:
        """Score probabilities.

        :param probability: ``[n]`` in [0, 1]
        :return: in [0, 1]
        """
        return self._offset + float(self._weights @ probability)


class Potentials:
    """The four potentials of one episode.

    :param truth: ``[d, d]`` bool: i -> j
    :param target: variable
    """

    def __init__(self, truth: np.ndarray, target: int) -> None:
        self._pairs = np.flatnonzero(~np.eye(len(truth), dtype=bool))
        self._into = np.flatnonzero(np.arange(len(truth)) != target)
        self._target = target
        self._structure = BalancedAccuracy(truth.ravel()[self._pairs])
        self._parent = BalancedAccuracy(truth[self._into, target])

    def __call__(self, quality: float, edges: np.ndarray, tried: int) -> dict[str, float]:
        """Compute the potentials, each in [0, 1].

        :param quality: of the recommended intervention: 0 is the worst possible, 1 the best
        :param edges: ``[d, d]`` posterior probability of i -> j
        :param tried: number of variables that were set so far
        """
        return {
            "optimization": quality,
            "structure": self._structure(edges.ravel()[self._pairs]),
            "parent": self._parent(edges[self._into, self._target]),
            "exploration": tried / len(self._into),
        }
