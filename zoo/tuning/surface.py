"""Pictures and tables of a study's objective over two of its parameters, with uncertainty."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial

from .robust import standard_error
from .surrogate import Surrogate


def measured(trials: Sequence[FrozenTrial], names: tuple[str, str]) -> pd.DataFrame:
    """Mean and standard error per pair of a grid's values, over all seeds of its trials (NaN for one training).

    :param trials: of a grid, completed
    :param names: of two of its parameters
    """
    cells: dict[tuple[object, object], list[float]] = {}
    for trial in trials:
        cells.setdefault((trial.params[names[0]], trial.params[names[1]]), []).extend(trial.user_attrs["values"])
    rows = [(*cell, np.mean(v), standard_error(v), len(v)) for cell, v in cells.items()]
    return pd.DataFrame(rows, columns=[*names, "mean", "uncertainty", "trainings"]).sort_values(list(names), ignore_index=True)


def modelled(surrogate: Surrogate, at: FrozenTrial, names: tuple[str, str]) -> pd.DataFrame:
    """Expectation and standard deviation of a fitted model over two parameters; the others as in a trial.

    :param at: the trial
    :param names: of two parameters that all trials have
    """
    x, y = (surrogate.encoding.values(name) for name in names)
    points = [{**at.params, names[0]: a, names[1]: b} for a in x for b in y]
    mean, deviation = surrogate.predict(points)
    columns = {name: [p[name] for p in points] for name in names}
    return pd.DataFrame({**columns, "mean": mean, "uncertainty": deviation})


def draw(table: pd.DataFrame, names: tuple[str, str], surrogate: Surrogate, trials: Sequence[FrozenTrial], of: str) -> Figure:
    """Draw two panels, the mean and its uncertainty. Trials are points if the axes are numbers.

    :param table: of :func:`measured` or :func:`modelled`
    :param of: description of the other parameters
    """
    figure, both = plt.subplots(1, 2, figsize=(11.0, 4.4), layout="constrained")
    values = [list(dict.fromkeys(table[name])) for name in names]
    for axes, column, title in zip(both, ("mean", "uncertainty"), ("mean return", "its uncertainty (1 sd)"), strict=True):
        cells = table.pivot(index=names[1], columns=names[0], values=column).loc[values[1], values[0]].to_numpy()
        mesh = axes.pcolormesh(cells, cmap="viridis" if column == "mean" else "magma", shading="flat")
        if np.isfinite(cells).any():
            figure.colorbar(mesh, ax=axes)
            axes.set_title(title, fontsize=10)
        else:
            axes.set_title("its uncertainty is unknown: one training per cell", fontsize=10)
        for which, name, shown in (("x", names[0], values[0]), ("y", names[1], values[1])):
            _ticks(axes, which, name, shown)
        if cells.size <= 64:
            _numbers(axes, cells)
        elif column == "mean":
            _points(axes, names, surrogate, trials, cells.shape)
    figure.suptitle(of, fontsize=9)
    return figure


def _ticks(axes: Axes, which: str, name: str, shown: Sequence[object]) -> None:
    """A few labels along an axis whose cells are numbered."""
    some = range(len(shown)) if len(shown) <= 6 else np.linspace(0, len(shown) - 1, 5).round().astype(int).tolist()
    texts = [f"{shown[i]:.3g}" if isinstance(shown[i], float) else str(shown[i]) for i in some]
    axes.set(**{f"{which}ticks": [i + 0.5 for i in some], f"{which}ticklabels": texts, f"{which}label": name})


def _numbers(axes: Axes, cells: np.ndarray) -> None:
    """Each cell's value in it, in white on a box, so that it can be read on any colour."""
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.7, "linewidth": 0}
            axes.text(column + 0.5, row + 0.5, f"{value:.3g}", ha="center", va="center", fontsize=8, bbox=box)


def _points(
    axes: Axes, names: tuple[str, str], surrogate: Surrogate, trials: Sequence[FrozenTrial], shape: tuple[int, ...]
) -> None:
    places = []
    for name, n in zip(names, (shape[1], shape[0]), strict=True):
        among = surrogate.encoding.space[name]
        if isinstance(among, CategoricalDistribution):
            choices = surrogate.encoding.values(name)
            places.append([choices.index(trial.params[name]) + 0.5 for trial in trials])
        else:
            column = surrogate.encoding.column
            places.append([0.5 + (n - 1) * float(column(among, trial.params[name])[0]) for trial in trials])
    axes.plot(*places, "o", color="white", markeredgecolor="black", markersize=4, label="trials")
    axes.legend(fontsize=8, loc="upper right")
