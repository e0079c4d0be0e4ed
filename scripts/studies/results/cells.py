"""Cells of the page's tables: scores with intervals, verdicts, budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from scripts.studies.results.bar import BAR
from zoo.comparing import statistics
from zoo.comparing.comparison import Comparison

FULL = 10  # seeds that the protocol asks for
ENOUGH = 3  # with fewer the bootstrap's interval says nothing


def number(x: float) -> str:
    """A return: whole above 1000, else one decimal."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.1f}"


class Estimate(NamedTuple):
    """Interquartile mean over seeds, with a bootstrap interval."""

    iqm: float
    low: float  # of the 95 % interval; NaN for one seed
    high: float
    n_seeds: int

    def __str__(self) -> str:
        """``IQM [low, high]``, and the number of seeds where it is not the protocol's."""
        if self.n_seeds == 1:
            return f"{number(self.iqm)} (1 seed)"
        interval = f"{number(self.iqm)} [{number(self.low)}, {number(self.high)}]"
        return interval if self.n_seeds == FULL else f"{interval} ({self.n_seeds} seeds)"


def estimate(scores: np.ndarray) -> Estimate:
    """The interquartile mean of ``[runs]``."""
    low, high = statistics.interval(statistics.iqm, [scores])
    return Estimate(float(statistics.iqm([scores])), float(low), float(high), len(scores))


def iqm_text(c: Comparison, env: str, label: str) -> str:
    """Interquartile mean of an algorithm's final scores, if it ran."""
    return str(estimate(c.scores(env, label))) if (env, label) in c.runs else "not run"


def with_interval(row: pd.Series, name: str, digits: int = 2) -> str:
    """``value [low, high]`` of a table's row; without an interval where a task has one seed."""
    value, low, high = (row[column] for column in (name, f"{name}_low", f"{name}_high"))
    return f"{value:.{digits}f} " + ("(no interval)" if np.isnan(low) else f"[{low:.{digits}f}, {high:.{digits}f}]")


def aggregate_difference(c: Comparison, label: str, other: str) -> str:
    """``+d [low, high]``: difference of two aggregate IQMs over the common tasks; the bootstrap draws the runs of both."""

    def difference(a: statistics.Scores, b: statistics.Scores) -> np.ndarray:
        return np.asarray(statistics.iqm(a) - statistics.iqm(b))

    x = c.normalised(label)
    y = c.normalised(other)
    low, high = (float(bound) for bound in statistics.interval(difference, x, y))
    return f"{float(difference(x, y)):+.2f} " + ("(no interval)" if np.isnan(low) else f"[{low:+.2f}, {high:+.2f}]")


def verdict(c: Comparison, env: str, label: str, other: str = BAR) -> str:
    """Verdict on two labels from the bootstrap interval of the difference of their IQMs."""
    if (env, label) not in c.runs or (env, other) not in c.runs:
        return "-"
    x = c.scores(env, label)
    y = c.scores(env, other)
    difference = float(statistics.iqm([x]) - statistics.iqm([y]))
    if difference == 0.0:
        return "equal"
    side = "above" if difference > 0 else "below"
    if min(len(x), len(y)) < ENOUGH:
        return f"{side}, too few seeds"
    low, high = statistics.interval(lambda a, b: statistics.iqm(a) - statistics.iqm(b), [x], [y])
    return f"**{side}, interval too**" if float(low) > 0 or float(high) < 0 else f"{side}, not distinguishable"


def steps_text(c: Comparison, env: str) -> str:
    """The budget of env steps, which all runs on an env share."""
    return f"{c.runs[env, c.on(env)[0]][0].steps:,}"


def left_out(broken: Sequence[str]) -> list[str]:
    """A line per result file that could not be read."""
    return [f"- left out, broken: {line}" for line in broken]


def shown_pictures(names: Sequence[str]) -> list[str]:
    """Markdown of pictures that were written.

    :param names: of ``figures.ALL``
    """
    return [f"![{name.replace('_', ' ')}](img/results/{name}.png)\n" for name in names]
