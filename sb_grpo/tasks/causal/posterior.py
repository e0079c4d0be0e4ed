"""Exact posterior over the edges of a causal graph, from observations and interventions.

Every family (a variable and a set of parents) has a score: the marginal likelihood of the variable given the parents, under
a Bayesian linear regression on features of them. Samples in which the variable was set are left out of its scores (Cooper and
Yoo 1999), which distinguishes cause from effect.

The prior of a graph is proportional to the number of compatible orders of the variables, times 1 / C(d - 1, k) for each
variable with k parents (Friedman and Koller 2003). Then the sum over all graphs becomes a sum over the 2^d sets of variables
that can come first in an order (Koivisto and Sood, Exact Bayesian Structure Discovery in Bayesian Networks, JMLR 5, 2004),
without approximation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from math import comb, log
from typing import NamedTuple

import numpy as np

from sb_grpo.tasks.causal.regression import Regressions


class Level(NamedTuple):
    """All sets of k variables, and the steps to each from the sets of k - 1."""

    sets: np.ndarray  #: [n] bit masks
    before: np.ndarray  #: [n, k] the set without its i-th member
    step: np.ndarray  #: [n, k] flat index of (member, set without it) into the table of sums
    after: np.ndarray  #: [m, d - k + 1] for all sets of k - 1: the set with one more variable
    step_after: np.ndarray  #: [m, d - k + 1] flat index of (the additional variable, set)
    smaller: np.ndarray  #: [m] bit masks of the sets of k - 1


class Tables(NamedTuple):
    """Index tables, which depend only on the sizes. Parents of variable j are bits among the others, in ascending order."""

    others: np.ndarray  #: [d, d - 1] the variables other than j
    parents: np.ndarray  #: [F, d - 1] bool, the parent sets, the same for every j
    masks: np.ndarray  #: [F] the same as bit masks
    log_prior: np.ndarray  #: [F]
    columns: np.ndarray  #: [d, F, p] indices of a family's features in the padded feature vector
    levels: tuple[Level, ...]


def squeeze(mask: int, j: int) -> int:
    """Remove bit j from a bit mask; higher bits move down."""
    return (mask & ((1 << j) - 1)) | ((mask >> (j + 1)) << j)


def _level(d: int, k: int) -> Level:
    half = 1 << (d - 1)

    def masks(size: int) -> list[int]:
        return [sum(1 << i for i in c) for c in combinations(range(d), size)]

    def members(mask: int, inside: bool) -> list[int]:
        return [j for j in range(d) if bool(mask >> j & 1) == inside]

    sets = masks(k)
    smaller = masks(k - 1)
    return Level(
        sets=np.array(sets),
        before=np.array([[s ^ 1 << j for j in members(s, True)] for s in sets]),
        step=np.array([[j * half + squeeze(s, j) for j in members(s, True)] for s in sets]),
        after=np.array([[s | 1 << j for j in members(s, False)] for s in smaller]),
        step_after=np.array([[j * half + squeeze(s, j) for j in members(s, False)] for s in smaller]),
        smaller=np.array(smaller),
    )


@lru_cache(maxsize=64)
def tables(d: int, max_parents: int, n_features: int) -> Tables:
    """Index tables for ``d`` variables, at most ``max_parents`` parents each, ``n_features`` features per parent."""
    n_parents = min(max_parents, d - 1)
    chosen = [c for size in range(n_parents + 1) for c in combinations(range(d - 1), size)]
    parents = np.zeros((len(chosen), d - 1), dtype=bool)
    for row, c in zip(parents, chosen, strict=True):
        row[list(c)] = True
    others = np.array([[i for i in range(d) if i != j] for j in range(d)])
    # The feature vector is [1, features of variable 0, ..., features of variable d - 1, 0]: the last entry is the padding.
    columns = np.full((d, len(chosen), 1 + n_parents * n_features), 1 + d * n_features)
    columns[:, :, 0] = 0
    for j in range(d):
        for f, c in enumerate(chosen):
            own = [1 + others[j, i] * n_features + k for i in c for k in range(n_features)]
            columns[j, f, 1 : 1 + len(own)] = own
    log_prior = np.array([-log(comb(d - 1, len(c)) * (n_parents + 1)) for c in chosen])
    masks = parents @ (1 << np.arange(d - 1))
    return Tables(others, parents, masks, log_prior, columns, tuple(_level(d, k) for k in range(1, d + 1)))


class Semiring(NamedTuple):
    """Sums and products of weights, stored as plain numbers or as logarithms."""

    plus: np.ufunc
    times: np.ufunc
    zero: float
    one: float
    over: Callable[[np.ndarray, np.ndarray], np.ndarray]  #: quotient, as a plain number


PLAIN = Semiring(np.add, np.multiply, 0.0, 1.0, lambda a, b: a / b)
LOGARITHMS = Semiring(np.logaddexp, np.add, -np.inf, 0.0, lambda a, b: np.exp(a - b))
#: Products of scores, one per variable, that are at least exp(-this) cannot underflow, so plain numbers suffice.
PLAIN_RANGE = 600.0


def edge_probabilities(log_scores: np.ndarray, t: Tables) -> np.ndarray:
    """Posterior probability of every edge, by dynamic programming over sets of variables (Koivisto and Sood 2004).

    Uses plain numbers if they suffice, which is faster; otherwise logarithms.

    :param log_scores: ``[d, F]`` log of prior times marginal likelihood of each family
    :param t: index tables of these sizes
    :return: ``[d, d]``, entry (i, j) the probability of i -> j
    """
    d = len(log_scores)
    n_sets = 1 << (d - 1)
    best = log_scores.max(1, keepdims=True)
    if (best[:, 0] - log_scores.min(1)).sum() < PLAIN_RANGE:
        ring = PLAIN
        scores = np.exp(log_scores - best)
    else:
        ring = LOGARITHMS
        scores = log_scores - best
    # sums[j, U] = sum of the scores of all parent sets of j inside U: a zeta transform, bit by bit.
    sums = np.full((d, n_sets), ring.zero)
    sums[:, t.masks] = scores
    by_bit = [sums.reshape(d, n_sets >> (b + 1), 2, 1 << b) for b in range(d - 1)]
    for view in by_bit:
        ring.plus(view[:, :, 0], view[:, :, 1], out=view[:, :, 1])
    flat = sums.ravel()
    # first[U], last[U]: summed weights of all orders of U, and of all orders of the rest, given that U comes first.
    first = np.full(1 << d, ring.one)
    last = np.full(1 << d, ring.one)
    for level in t.levels:
        first[level.sets] = ring.plus.reduce(ring.times(first[level.before], flat[level.step]), axis=1)
    for level in reversed(t.levels):
        last[level.smaller] = ring.plus.reduce(ring.times(last[level.after], flat[level.step_after]), axis=1)
    # Probability that exactly the set U comes before j.
    predecessors = np.zeros((d, n_sets))
    for level in t.levels:
        with_j = ring.times(ring.times(first[level.smaller][:, None], flat[level.step_after]), last[level.after])
        predecessors.ravel()[level.step_after] = ring.over(with_j, first[-1])
    edges = np.zeros((d, d))
    for b, view in enumerate(by_bit):
        # Given U, i is a parent unless all weight lies on parent sets inside U without i.
        weight = predecessors.reshape(view.shape)[:, :, 1]
        edges[t.others[:, b], np.arange(d)] = (weight * (1.0 - ring.over(view[:, :, 0], view[:, :, 1]))).sum((1, 2))
    return np.clip(edges, 0.0, 1.0)


class EdgePosterior:
    """Posterior over graphs, updated sample by sample.

    :param d: variables, at least 2
    :param max_parents: largest number of parents of one variable
    :param n_features: features per variable in the regressions
    :param n_max: largest number of samples
    """

    def __init__(self, d: int, max_parents: int, n_features: int, n_max: int) -> None:
        self.d = d
        self._tables = tables(d, max_parents, n_features)
        t = self._tables
        self._families = t.columns.shape[:2]
        self._columns = t.columns.reshape(-1, t.columns.shape[2])
        self.regressions = Regressions(self._columns < 1 + d * n_features, n_max)

    def update(self, values: np.ndarray, features: np.ndarray, intervened: int | None) -> None:
        """Update with one sample.

        :param values: ``[d]``
        :param features: ``[d, n_features]`` of the values
        :param intervened: the variable that was set, or None
        """
        z = np.concatenate([[1.0], features.ravel(), [0.0]])[self._columns]
        learns = np.ones(self._families, dtype=bool)
        if intervened is not None:
            learns[intervened] = False
        y = np.repeat(values, self._families[1])
        self.regressions.update(z, y, learns.ravel())

    @property
    def log_scores(self) -> np.ndarray:
        """``[d, F]`` log of prior times marginal likelihood of each family."""
        scores: np.ndarray = self.regressions.log_evidence.reshape(self._families) + self._tables.log_prior
        return scores

    def edges(self) -> np.ndarray:
        """``[d, d]``: entry (i, j) is the posterior probability of i -> j."""
        return edge_probabilities(self.log_scores, self._tables)
