"""Pictures: learning curves per task; advantages before and after pairing, and the result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import EngFormatter

from scripts.studies.paired.study import CONTROL, PAIRED, STATE, TUNED, Study
from zoo.comparing.statistics import curve_interval, iqm

COLOURS = {PAIRED: "tab:blue", STATE: "tab:orange", CONTROL: "tab:grey", TUNED: "black"}
#: Labels in plain words, for the lead picture.
NAMES = {
    PAIRED: "GRPO, shared noise taken out",
    STATE: "GRPO, shared noise left in",
    CONTROL: "PPO, same settings",
    TUNED: "PPO, tuned",
}
#: Matplotlib settings of the lead picture on a dark page: background of GitHub's dark theme.
DARK: dict[Any, Any] = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor"), "#0d1117"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), "#e6edf3"),
    **dict.fromkeys(("axes.edgecolor", "legend.edgecolor"), "#6e7681"),
}
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
    """Draw the lead picture for a light page, and beside it ``<name>-dark.png`` for a dark one."""
    _draw_lead(study, rollout, file, "black")
    with plt.rc_context(DARK):
        _draw_lead(study, rollout, file.with_name(f"{file.stem}-dark{file.suffix}"), "white")


def _draw_lead(study: Study, rollout: dict[str, list[float]], file: Path, ink: str) -> None:
    """Advantages of one rollout before and after, and learning curves; without curves where the task has not run.

    :param ink: colour of tuned PPO's curve
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
    before, after = (np.array(rollout[name]) for name in ("before", "after"))
    low, high = np.quantile(before, [0.005, 0.995])
    bins = np.linspace(low, high, 60)
    for values, label, word in ((before, STATE, "left in"), (after, PAIRED, "taken out")):
        text = f"shared noise {word}: standard deviation {values.std():.1f}"
        left.hist(values, bins, alpha=0.55, color=COLOURS[label], label=text)
    left.set_title("Load balancing: advantages of all steps of one rollout", fontsize=10)
    left.set_xlabel("advantage (in units of return)", fontsize=9)
    left.set_ylabel("number of steps", fontsize=9)
    left.set_ylim(top=1.25 * left.get_ylim()[1])
    left.legend(fontsize=8, loc="upper left")
    if LEAD in study.runs:
        _curves(right, study, LEAD, ink, NAMES)
        right.legend(fontsize=8, loc="lower right")
    seeds = len(study.runs[LEAD][PAIRED]) if LEAD in study.runs else 0
    right.set_title(f"Load balancing: learning curves, {seeds} seeds", fontsize=10)
    right.set_xlabel("env steps", fontsize=9)
    right.set_ylabel("return (interquartile mean, 95 % interval)", fontsize=9)
    figure.tight_layout()
    _save(figure, file)


def _curves(axis: Any, study: Study, task: str, ink: str = "black", names: Mapping[str, str] | None = None) -> None:
    """IQMs with intervals.

    :param ink: colour of tuned PPO
    :param names: label -> text of the legend; None: the labels themselves
    """
    later: list[np.ndarray] = []
    for label in [label for label in COLOURS if label in study.runs[task]]:
        runs = study.runs[task][label]
        middle = study.curve(task, label)
        steps = runs[0].checkpoint_steps
        low, high = curve_interval([np.array([run.curve for run in runs])], iqm, resamples=RESAMPLES)
        colour = ink if label == TUNED else COLOURS[label]
        axis.plot(steps, middle, color=colour, label=names[label] if names else label)
        axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        later.append(middle[int(SCALE_FROM * len(steps)) :])
    axis.set_ylim(*_limits(later))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.tick_params(labelsize=8)


def _limits(curves: Sequence[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate(curves)
    bottom = float(values.min())
    top = float(values.max())
    room = max(top - bottom, 1e-9)
    return bottom - 0.1 * room, top + 0.25 * room


def _save(figure: Any, file: Path) -> None:
    figure.savefig(file, dpi=100, metadata={"Software": None})
    plt.close(figure)
