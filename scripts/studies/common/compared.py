"""Comparisons of runs as cells of tables: interquartile means and probabilities of improvement, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scripts.studies.common.runs import DOCS
from scripts.studies.common.tables import put_between
from zoo.comparing.statistics import Scores, interval, iqm, probability_of_improvement

PAGE = DOCS / "studies" / "masks_and_memory.md"


def finals(runs: Sequence[dict[str, Any]]) -> np.ndarray:
    """``[runs]``: the mean return of each run's last weights."""
    return np.array([np.mean(run["final_returns"]) for run in runs])


def middle(values: np.ndarray) -> str:
    """Interquartile mean of runs, with the 95 % interval where there are two or more."""
    return _bounded(iqm, [values])


def better(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Probability that one of our runs is above one of theirs, ties counted half, with interval."""
    return better_on_all([ours], [theirs])


def better_on_all(ours: Scores, theirs: Scores) -> str:
    """:func:`better` for the runs of several tasks with equal weights."""
    return _bounded(probability_of_improvement, ours, theirs)


def _bounded(statistic: Callable[..., Any], *samples: Scores) -> str:
    value = f"{float(statistic(*samples)):.2f}"
    low, high = interval(statistic, *samples)
    return value if np.isnan(low) else f"{value} [{low:.2f}, {high:.2f}]"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a row has a cell per head."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heads, ["---"] * len(heads), *rows])


def write(name: str, made: str) -> None:
    """Put a table between its marks on the page."""
    PAGE.write_text(put_between(PAGE.read_text(), name, made))
