"""Statistics for comparisons of algorithms: pure functions of arrays.

Scores are a sequence of arrays, one per task, with runs on the last axis. All functions map over leading axes; the bootstrap
uses one for its resamples.

IQM, optimality gap, performance profile and probability of improvement are those of Agarwal et al., "Deep Reinforcement
Learning at the Edge of the Statistical Precipice", 2021 (https://arxiv.org/abs/2108.13264). Their package ``rliable`` 1.2.0
does not work with pandas 3 (its dependency ``arch`` below version 8 fails to import), so they are implemented here;
``tests/test_statistics.py`` compares them with results of ``rliable``.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.integrate import trapezoid

Array = np.ndarray
Scores = Sequence[Array]
RESAMPLES = 5000
AT_ONCE = 2**21  #: resampled scores in memory, of 8 bytes each; the statistics need a few times that
WILCOXON_PAIRS = 6  # with fewer even equal signs throughout give p = 2 / 2^5 > 0.05


# ---------------------------------------------------------------- aggregates


def iqm(scores: Scores) -> Array:
    """Interquartile mean: the mean of the middle half of all runs of all tasks, tasks weighted equally.

    With equally many runs per task it is the trimmed mean of the paper, whose cut of a quarter of the runs is rounded down.
    With unequal numbers a run's weight is one over its task's number of runs, and the same share of the weight is cut.

    :param scores: per task ``[..., runs]``
    :return: ``[...]``
    """
    runs = np.concatenate(list(scores), axis=-1)
    if len({s.shape[-1] for s in scores}) == 1:
        return np.asarray(stats.trim_mean(runs, 0.25, axis=-1))
    weights = np.concatenate([np.full(s.shape[-1], 1 / (s.shape[-1] * len(scores))) for s in scores])
    cut = runs.shape[-1] // 4 / runs.shape[-1]
    order = np.argsort(runs, axis=-1)
    upper = np.cumsum(weights[order], axis=-1)
    kept = np.clip(upper, cut, 1 - cut) - np.clip(upper - weights[order], cut, 1 - cut)
    return np.asarray((np.take_along_axis(runs, order, axis=-1) * kept).sum(-1) / kept.sum(-1))


def mean(scores: Scores) -> Array:
    """Mean over tasks of the tasks' means.

    :param scores: per task ``[..., runs]``
    :return: ``[...]``
    """
    return np.asarray(np.mean([s.mean(axis=-1) for s in scores], axis=0))


def median(scores: Scores) -> Array:
    """Median over tasks of the tasks' means; of a single task the median of its runs.

    :param scores: per task ``[..., runs]``
    :return: ``[...]``
    """
    if len(scores) == 1:
        return np.asarray(np.median(scores[0], axis=-1))
    return np.asarray(np.median([s.mean(axis=-1) for s in scores], axis=0))


def optimality_gap(scores: Scores, target: float = 1.0) -> Array:
    """Mean shortfall of runs below the target; scores above it do not compensate.

    :param scores: per task ``[..., runs]``, normalised
    :param target: score that counts as perfect
    :return: ``[...]``
    """
    return target - mean([np.minimum(s, target) for s in scores])


def performance_profile(scores: Scores, thresholds: Array) -> Array:
    """Share of runs above each threshold, tasks weighted equally.

    :param scores: per task ``[..., runs]``
    :param thresholds: ``[T]``
    :return: ``[..., T]``
    """
    order = np.argsort(thresholds)
    shares = [_share_above(s, thresholds[order]) for s in scores]
    return np.asarray(np.mean(shares, axis=0))[..., np.argsort(order)]


def _share_above(scores: Array, thresholds: Array) -> Array:
    """Share of the last axis above each of ascending thresholds, ``[..., T]``, in the memory of the scores."""
    n = scores.shape[-1]
    size = len(thresholds) + 1
    passed = np.searchsorted(thresholds, scores, side="left").reshape(-1, n)  # number of thresholds below a score
    rows = np.arange(len(passed))[:, None] * size
    counts = np.bincount((passed + rows).ravel(), minlength=len(passed) * size).reshape(*scores.shape[:-1], size)
    above: Array = counts[..., ::-1].cumsum(axis=-1)[..., ::-1][..., 1:] / n
    return above


def probability_of_improvement(x: Scores, y: Scores) -> Array:
    """Probability that a run of X beats a run of Y on the same task, averaged over tasks; ties count half.

    :param x: per task ``[..., runs of X]``
    :param y: per task ``[..., runs of Y]``
    :return: ``[...]``
    """
    wins = []
    for a, b in zip(x, y, strict=True):
        n = a.shape[-1]
        m = b.shape[-1]
        # Mann and Whitney: ranks of X among all, minus ranks of X alone, count the runs of Y below.
        ranked = stats.rankdata(np.concatenate([a, b], axis=-1), axis=-1)[..., :n]
        wins.append((ranked.sum(axis=-1) - n * (n + 1) / 2) / (n * m))
    return np.asarray(np.mean(wins, axis=0))


# ---------------------------------------------------------------- bootstrap


def resample(scores: Scores, rng: np.random.Generator, resamples: int = RESAMPLES) -> list[Array]:
    """Draw runs with replacement within each task (stratified): tasks are fixed, seeds are random.

    :param scores: per task ``[runs, ...]``: runs first, so that whole curves are drawn
    :param rng: generator
    :param resamples: number of resamples
    :return: per task ``[resamples, runs, ...]``
    """
    return [s[rng.integers(len(s), size=(resamples, len(s)))] for s in scores]


def interval(
    statistic: Callable[..., Array], *samples: Scores, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Array, Array]:
    """Percentile interval of a statistic by the stratified bootstrap; NaN if a task has fewer than two runs.

    :param statistic: function of as many scores as there are samples, which are drawn independently
    :param samples: scores, per task ``[runs]``
    :param level: coverage
    :param resamples: bootstrap samples
    :param seed: of the bootstrap, so that tables are reproducible to the last digit
    :return: lower and upper bound
    """
    drawn = np.concatenate([statistic(*part) for part in _parts(samples, np.random.default_rng(seed), resamples)])
    if min(len(s) for scores in samples for s in scores) < 2:
        drawn = np.full_like(drawn, np.nan)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def _parts(samples: Sequence[Scores], rng: np.random.Generator, resamples: int) -> Iterator[list[list[Array]]]:
    """Resampled scores in parts of at most :data:`AT_ONCE` numbers; the draws do not depend on the parts.

    :return: per sample like :func:`resample`
    """
    size = max(1, AT_ONCE // sum(s.size for scores in samples for s in scores))
    if size >= resamples:
        yield [resample(scores, rng, resamples) for scores in samples]
        return
    sources: list[list[np.random.Generator]] = []
    for scores in samples:
        sources.append([])
        for s in scores:  # each has its own generator, advanced to the beginning of its resamples
            sources[-1].append(copy.deepcopy(rng))
            for n in _sizes(resamples, max(1, AT_ONCE // len(s))):
                rng.integers(len(s), size=(n, len(s)))
    for n in _sizes(resamples, size):
        yield [
            [resample([s], source, n)[0] for s, source in zip(scores, of, strict=True)]
            for scores, of in zip(samples, sources, strict=True)
        ]


def _sizes(n: int, most: int) -> Iterator[int]:
    """Split a number into parts of at most ``most``."""
    yield from (min(most, n - start) for start in range(0, n, most))


def with_interval(name: str, value: float | Array, low: float | Array, high: float | Array) -> dict[str, float]:
    """Make three cells of a table's row: the value and its bounds."""
    return {name: float(value), f"{name}_low": float(low), f"{name}_high": float(high)}


def curve_interval(curves: Sequence[Array], statistic: Callable[[Scores], Array], **options: int) -> tuple[Array, Array]:
    """Pointwise :func:`interval` of learning curves; whole curves are drawn, not points.

    :param curves: per task ``[runs, C]``
    :param statistic: of scores per task ``[..., runs]``
    :param options: ``resamples`` and ``seed``
    :return: lower and upper bound, ``[C]``
    """
    return interval(lambda drawn: statistic([np.swapaxes(d, -1, -2) for d in drawn]), curves, **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------- normalisation


def normalise(scores: Array, low: float, high: float) -> Array:
    """Normalise scores: ``low`` becomes 0 and ``high`` 1.

    :param scores: of one task
    :param low: lower reference, such as a random policy's return
    :param high: upper reference
    :raises ValueError: if the references are equal
    """
    if low == high:
        raise ValueError(f"low and high reference are both {low:g}: scores cannot be normalised between them")
    return np.asarray((scores - low) / (high - low))


# ---------------------------------------------------------------- learning speed


def time_to_threshold(curve: Array, times: Array, threshold: float) -> float:
    """Time of the first checkpoint at or above the threshold; infinite if there is none.

    :param curve: ``[C]`` mean returns
    :param times: ``[C]`` env steps or seconds
    :param threshold: return to reach
    """
    reached = np.flatnonzero(curve >= threshold)
    return float(times[reached[0]]) if len(reached) else float("inf")


def convergence_time(curve: Array, times: Array, share: float = 0.9) -> float:
    """Time of the checkpoint after which the curve stays above a share of its rise from first to best checkpoint.

    :param curve: ``[C]`` mean returns
    :param times: ``[C]`` env steps or seconds
    :param share: of the rise
    :return: infinite if even the last checkpoint is below
    """
    level = curve[0] + share * (curve.max() - curve[0])
    below = np.flatnonzero(curve < level)
    first = below[-1] + 1 if len(below) else 0
    return float(times[first]) if first < len(curve) else float("inf")


def success_rate(returns: Array, threshold: float) -> float:
    """Share of episodes at or above a threshold.

    :param returns: of episodes
    :param threshold: return that counts as success
    """
    return float((returns >= threshold).mean())


# ---------------------------------------------------------------- tests


class Welch(NamedTuple):
    """Result of Welch's t-test; NaN if it cannot be computed."""

    difference: float
    low: float
    high: float
    t: float
    p: float


def welch(x: Array, y: Array, level: float = 0.95) -> Welch:
    """Welch's t-test of different means, without assuming equal variances; NaN if both samples have no spread.

    :param x: ``[n]``
    :param y: ``[m]``
    :param level: coverage of the interval of the difference
    """
    difference = float(x.mean() - y.mean())
    if min(len(x), len(y)) < 2 or (np.ptp(x) == 0 and np.ptp(y) == 0):
        return Welch(difference, np.nan, np.nan, np.nan, np.nan)
    with warnings.catch_warnings():
        # SciPy warns of rounding for a sample without spread; its variance is exactly 0, and the test is defined.
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        test = stats.ttest_ind(x, y, equal_var=False)
    bounds = test.confidence_interval(level)
    return Welch(difference, float(bounds.low), float(bounds.high), float(test.statistic), float(test.pvalue))


class Paired(NamedTuple):
    """Result of a paired t-test; NaN for values that cannot be computed."""

    difference: float
    low: float
    high: float
    t: float
    p: float
    wilcoxon: float  #: p of Wilcoxon's signed-rank test; NaN below ``WILCOXON_PAIRS`` pairs


def paired(x: Array, y: Array, level: float = 0.95) -> Paired:
    """Paired t-test of the mean difference against 0, without assumptions on the correlation within pairs.

    :param x: ``[n]``
    :param y: ``[n]`` in the same order: ``y[i]`` and ``x[i]`` met the same conditions
    :param level: coverage of the interval of the difference
    """
    d = x - y
    difference = float(d.mean())
    # Differences that are equal except for rounding have no spread.
    if len(d) < 2 or np.ptp(d) <= 1e-12 * max(np.abs(x).max(), np.abs(y).max()):
        return Paired(difference, *[float("nan")] * 5)
    test = stats.ttest_1samp(d, 0.0)
    bounds = test.confidence_interval(level)
    signed_ranks = float(stats.wilcoxon(d).pvalue) if np.count_nonzero(d) >= WILCOXON_PAIRS else float("nan")
    return Paired(difference, float(bounds.low), float(bounds.high), float(test.statistic), float(test.pvalue), signed_ranks)


def common_noise(x: Scores, y: Scores) -> tuple[float, float]:
    """Correlation of two samples, and the share of the variance of their mean difference that pairing saves.

    The share is 1 - Var(x - y) / (Var x + Var y) = 2 Cov / (Var x + Var y): 1 if all noise is common, 0 if none is, negative
    for a negative correlation. Degrees of freedom cancel, so sums of squares suffice.

    :param x: blocks ``[n]``, each measured from its own mean; one block: of all pairs
    :param y: the same blocks in the same order
    :return: Pearson's correlation (NaN if one sample has no spread) and the share (NaN if neither has)
    """
    dx, dy = (np.concatenate([block - block.mean() for block in sample]) for sample in (x, y))
    xx = dx @ dx
    yy = dy @ dy
    xy = dx @ dy
    correlation = xy / np.sqrt(xx * yy) if xx * yy > 0 else np.nan
    return float(correlation), float(2 * xy / (xx + yy)) if xx + yy > 0 else float("nan")


def holm(p_values: Array) -> Array:
    """Holm's step-down correction for several tests; NaN stays NaN and does not count as a test.

    :param p_values: ``[n]``
    :return: adjusted p-values, to compare with the level
    """
    p = np.asarray(p_values, dtype=float)
    adjusted = np.full(len(p), np.nan)
    order = np.argsort(p)[: np.isfinite(p).sum()]  # NaN sorts last
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted


def cohens_d(x: Array, y: Array) -> float:
    """Difference of the means in units of the pooled standard deviation; NaN if there is none.

    :param x: ``[n]``
    :param y: ``[m]``
    """
    n = len(x)
    m = len(y)
    if min(n, m) < 2:
        return float("nan")
    pooled = ((n - 1) * x.var(ddof=1) + (m - 1) * y.var(ddof=1)) / (n + m - 2)
    return float((x.mean() - y.mean()) / np.sqrt(pooled)) if pooled > 0 else float("nan")


def anova(samples: Sequence[Array]) -> tuple[float, float]:
    """One-way analysis of variance of different means.

    :param samples: one array per algorithm
    :return: F and p; NaN with fewer than two samples, two runs or any spread
    """
    if len(samples) < 2 or min(len(x) for x in samples) < 2 or all(np.ptp(x) == 0 for x in samples):
        return float("nan"), float("nan")
    test = stats.f_oneway(*samples)
    return float(test.statistic), float(test.pvalue)


def pairwise(samples: Mapping[str, Array]) -> list[tuple[str, str, Welch, float, float]]:
    """Every pair of algorithms on one task: Welch's test, Holm-corrected over the pairs, and Cohen's d.

    :param samples: runs per algorithm
    :return: (name, other name, test, corrected p, d) per pair
    """
    pairs = list(combinations(samples, 2))
    tests = [welch(samples[a], samples[b]) for a, b in pairs]
    corrected = holm(np.array([test.p for test in tests]))
    sizes = [cohens_d(samples[a], samples[b]) for a, b in pairs]
    return [(a, b, test, float(p), d) for (a, b), test, p, d in zip(pairs, tests, corrected, sizes, strict=True)]


def ranks(table: Array) -> Array:
    """Rank of each algorithm on each task, 1 is best; equal scores share their mean rank.

    :param table: ``[algorithms, tasks]``
    """
    return np.asarray(stats.rankdata(-np.asarray(table), axis=0))


# ---------------------------------------------------------------- fairness over tasks, stability of runs


def gini(scores: Array) -> Array:
    """Gini coefficient over the last axis: 0 if all tasks have equal scores, near 1 if one has everything.

    Half the mean absolute difference of two tasks, over their mean. Scores below 0, worse than random, count as 0.

    :param scores: ``[..., tasks]`` normalised
    :return: ``[...]``; NaN where no task has more than 0
    """
    x = np.clip(scores, 0.0, None)
    differences = np.abs(x[..., :, None] - x[..., None, :]).mean(axis=(-2, -1))
    mean = x.mean(axis=-1)
    return np.asarray(np.divide(differences, 2.0 * mean, out=np.full_like(mean, np.nan), where=mean > 0))


def worst_over_best(scores: Array) -> Array:
    """Worst task's score as a share of the best one's; scores below 0 count as 0.

    :param scores: ``[..., tasks]`` normalised
    :return: ``[...]``; NaN where no task has more than 0
    """
    x = np.clip(scores, 0.0, None)
    best = x.max(axis=-1)
    return np.asarray(np.divide(x.min(axis=-1), best, out=np.full_like(best, np.nan), where=best > 0))


def fairness_row(tasks: Sequence[str], scores: Array) -> dict[str, str | float]:
    """One line of a table.

    :param tasks: names
    :param scores: ``[tasks]`` normalised
    """
    worst = int(np.argmin(scores))
    best = int(np.argmax(scores))
    return {
        "tasks": len(tasks),
        "worst_task": tasks[worst],
        "worst": float(scores[worst]),
        "best_task": tasks[best],
        "best": float(scores[best]),
        "worst_over_best": float(worst_over_best(scores)),
        "gini": float(gini(scores)),
    }


def drop_from_best(curve: Array) -> float:
    """Difference between the best and the last checkpoint; 0 if the last is the best.

    :param curve: ``[C]`` mean return of each checkpoint
    """
    return float(curve.max() - curve[-1])


def area_under_curve(curve: Array, steps: Array) -> float:
    """Mean height of the curve over the steps that it covers (trapezoids): a return, comparable between budgets.

    :param curve: ``[C]``
    :param steps: ``[C]`` increasing; where there is one checkpoint, its value
    """
    if len(curve) == 1:
        return float(curve[0])
    return float(trapezoid(curve, steps) / (steps[-1] - steps[0]))
