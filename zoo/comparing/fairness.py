"""Fairness of an agent over tasks: the worst score, worst over best, and the Gini coefficient.

Tasks have different units, so scores are normalised: 0 is the return of random actions, 1 a reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from ..comparing import statistics
from ..comparing.comparison import Comparison
from ..comparing.statistics import Array


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


def row(tasks: Sequence[str], scores: Array) -> dict[str, str | float]:
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


def fairness(c: Comparison) -> pd.DataFrame:
    """Per algorithm, over the common envs: worst and best one, worst over best, and Gini, of mean normalised scores."""
    rows = []
    for label in c.labels if len(c.common_envs) > 1 else []:
        scores = c.normalised(label)
        line = {"algorithm": label, **row(c.common_envs, np.array([s.mean() for s in scores]))}
        for name, measure in (("worst_over_best", worst_over_best), ("gini", gini)):

            def of_means(scores: statistics.Scores, measure: Callable[[Array], Array] = measure) -> Array:
                return measure(np.stack([s.mean(axis=-1) for s in scores], axis=-1))

            line |= statistics.with_interval(name, float(line[name]), *statistics.interval(of_means, scores))
        rows.append(line)
    return pd.DataFrame(rows)
