"""Pictures: learning curves per task; and advantages before and after pairing, with what comes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import EngFormatter

from scripts.studies.paired.study import CONTROL, PAIRED, STATE, TUNED, Study
from zoo.comparing.statistics import curve_interval, iqm

COLOURS = {PAIRED: "tab:blue", STATE: "tab:orange", CONTROL: "tab:grey", TUNED: "black"}
#: The task of the lead picture.
LEAD = "LoadBalancing-v0"
COLUMNS = 5
#: Bands of a picture need fewer bootstrap samples than figures of a table.
RESAMPLES = 1000
#: The scale of a picture is that of the curves after so much of the budget, not of untrained policies.
SCALE_FROM = 0.4


def draw_curves(study: Study, file: Path) -> None:
    """One panel per task."""
    n_rows = math.ceil(len(study.runs) / COLUMNS)
    figure, axes = plt.subplots(n_rows, COLUMNS, figsize=(16, 3.25 * n_rows + 0.3), squeeze=False)
    for axis, task in zip(axes.flat, study.runs, strict=False):
        _curves(axis, study, task)
        axis.set_title(task, fontsize=10)
    for axis in axes.flat[len(study.runs) :]:
        axis.set_visible(False)
    named = {text: line for axis in axes.flat for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="upper center", ncols=len(COLOURS), fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / figure.get_figheight()))
    _save(figure, file)


def draw_lead(study: Study, rollout: dict[str, list[float]], file: Path) -> None:
    """Advantages of a rollout before and after, and what comes of it; without curves where the task has not run."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
    before, after = (np.array(rollout[name]) for name in ("before", "after"))
    low, high = np.quantile(before, [0.005, 0.995])
    bins = np.linspace(low, high, 60)
    left.hist(before, bins, alpha=0.5, color=COLOURS[STATE], label=f"state baseline: standard deviation {before.std():.1f}")
    left.hist(after, bins, alpha=0.5, color=COLOURS[PAIRED], label=f"minus the peers' luck: {after.std():.1f}")
    left.set_title(f"{LEAD}: advantages of one rollout", fontsize=10)
    left.legend(fontsize=8)
    if LEAD in study.runs:
        _curves(right, study, LEAD)
        right.legend(fontsize=8, loc="lower right")
    right.set_title(f"{LEAD}: return, IQM and 95 % interval", fontsize=10)
    right.set_xlabel("env steps", fontsize=9)
    figure.tight_layout()
    _save(figure, file)


def _curves(axis: Any, study: Study, task: str) -> None:
    """IQMs with intervals."""
    later: list[np.ndarray] = []
    for label in [label for label in COLOURS if label in study.runs[task]]:
        runs = study.runs[task][label]
        middle, steps = study.curve(task, label), runs[0].checkpoint_steps
        low, high = curve_interval([np.array([run.curve for run in runs])], iqm, resamples=RESAMPLES)
        axis.plot(steps, middle, color=COLOURS[label], label=label)
        axis.fill_between(steps, low, high, color=COLOURS[label], alpha=0.15, linewidth=0)
        later.append(middle[int(SCALE_FROM * len(steps)) :])
    axis.set_ylim(*_limits(later))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.tick_params(labelsize=8)


def _limits(curves: Sequence[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate(curves)
    bottom, top = float(values.min()), float(values.max())
    room = max(top - bottom, 1e-9)
    return bottom - 0.1 * room, top + 0.25 * room


def _save(figure: Any, file: Path) -> None:
    figure.savefig(file, dpi=100, metadata={"Software": None})
    plt.close(figure)
