"""Figures of a comparison, drawn from its tables. Colours: Okabe and Ito, suitable for colour-blind readers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import ArrayLike

from sb_grpo import files
from sb_grpo.types import Kwargs

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
LINES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*"
#: So many of the colours are chosen by name; black and grey are for those that find them all taken.
BRIGHT = 6
PER_ROW = 3


def styles(labels: Sequence[str]) -> dict[str, Kwargs]:
    """Colour, line style and marker of each label; labels beyond eight differ by line style.

    The colour follows from the label's own name, so that it stays when other labels join a comparison. Of two labels with
    the same colour the later one takes the next free one.

    :param labels: in order
    """
    n = len(OKABE_ITO)
    taken: set[int] = set()
    found: dict[str, Kwargs] = {}
    for label in labels:
        start = zlib.crc32(label.encode()) % BRIGHT
        order = [*((start + k) % BRIGHT for k in range(BRIGHT)), *range(BRIGHT, n)]
        slot = next(line * n + k for line in range(len(labels)) for k in order if line * n + k not in taken)
        taken.add(slot)
        line = LINES[slot // n % len(LINES)]
        found[label] = {"color": OKABE_ITO[slot % n], "linestyle": line, "marker": MARKERS[slot % len(MARKERS)]}
    return found


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and SVG, or by its suffix; equal figures give equal bytes.

    :param figure: closed afterwards
    :param path: without suffix: both; ``.png``, ``.svg`` or ``.pdf``: that one
    """
    one = path.suffix in (".png", ".svg", ".pdf")
    places = [path] if one else [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    undated: dict[str, Kwargs] = {".svg": {"metadata": {"Date": None}}, ".pdf": {"metadata": {"CreationDate": None}}}
    for place in places:
        with (
            matplotlib.rc_context({"svg.hashsalt": path.stem if one else path.name}),
            files.replacing(place) as unfinished,
        ):
            figure.savefig(unfinished, dpi=120, format=place.suffix[1:], **undated.get(place.suffix, {}))
    plt.close(figure)
    return places


def band(
    axes: Axes,
    x: ArrayLike,
    value: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    label: str,
    style: Kwargs,
    every: int | None = None,
) -> None:
    """Draw a line with a shaded interval.

    :param axes: to draw on
    :param x: ``[n]``
    :param value: ``[n]``
    :param low: ``[n]``
    :param high: ``[n]``; NaN in both bounds draws no band
    :param label: of the legend
    :param style: of :func:`styles`
    :param every: points per marker; None: eight markers in all
    """
    x, low, high = (np.asarray(column) for column in (x, low, high))  # NumPy's masks do not support the columns of pandas 2.0
    axes.plot(x, value, markersize=4, markevery=every or max(1, len(x) // 8), linewidth=1.6, label=label, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)


def panels(names: Sequence[str], height: float = 3.0, width: float = 4.2) -> tuple[Figure, Iterator[tuple[str, Axes]]]:
    """Make a grid of axes, one per name.

    :param names: titles
    :param height: of a row, in inches
    :param width: of a column
    :return: the figure, and title and axes in turn
    """
    columns = min(PER_ROW, len(names))
    rows = math.ceil(len(names) / columns)
    size = (max(6.5, width * columns), height * rows + 0.8)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)

    def titled() -> Iterator[tuple[str, Axes]]:
        for name, axes in zip(names, grid.flat, strict=False):
            axes.set_title(name, fontsize=10)
            axes.grid(alpha=0.3)
            yield name, axes

    return figure, titled()


def inches(texts: Iterable[str], points: float = 10) -> float:
    """Approximate width of the longest text."""
    return 0.0083 * points * max(map(len, texts), default=0)


def _columns(figure: Figure, labels: Sequence[str], most: int, points: float = 10) -> int:
    """Number of columns of a figure's legend."""
    return max(1, min(most, len(labels), int(figure.get_figwidth() / (inches(labels, points) + 0.5))))


def legend_below(figure: Figure, axes: Axes) -> None:
    """Draw one legend for all panels, below them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=_columns(figure, labels, 4), frameon=False)


def legend_of_all(figure: Figure) -> None:
    """Draw one legend with the lines of all panels, below them."""
    named = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    place: Kwargs = {"loc": "outside lower center", "frameon": False, "fontsize": 8}
    figure.legend(list(named.values()), list(named), ncols=_columns(figure, list(named), 2, 8), **place)


def learning_curves(table: pd.DataFrame, labels: Sequence[str]) -> Figure:
    """Mean evaluation return against env steps, one panel per env.

    :param table: ``tables.curves``
    :param labels: in order
    """
    style = styles(labels)
    figure, grid = panels(list(dict.fromkeys(table["env"])))
    for env, axes in grid:
        for label in labels:
            rows = table[(table["env"] == env) & (table["algorithm"] == label)]
            if len(rows):
                band(axes, rows["env_steps"], rows["mean"], rows["mean_low"], rows["mean_high"], label, style[label])
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set(xlabel="environment steps", ylabel="evaluation return")
    legend_below(figure, _fullest(figure))
    return figure


def aggregates(table: pd.DataFrame, labels: Sequence[str]) -> Figure:
    """Aggregate scores as points in their intervals.

    :param table: ``tables.aggregate``
    :param labels: in order
    """
    style = styles(labels)
    measures = {"iqm": "IQM", "mean": "mean", "median": "median", "optimality_gap": "optimality gap (less is better)"}
    size = (max(12.0, 9.5 + inches(labels)), 1.4 + 0.35 * len(labels))
    figure, grid = plt.subplots(1, 4, figsize=size, layout="constrained", sharey=True)
    for (name, title), axes in zip(measures.items(), grid, strict=True):
        for i, row in enumerate(table.itertuples()):
            value, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
            colour = style[str(row.algorithm)]["color"]
            axes.plot([low, high], [i, i], color=colour, linewidth=7, alpha=0.35, solid_capstyle="butt")
            axes.plot(value, i, "|", color=colour, markersize=14, markeredgewidth=2.5)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("normalised score")
        axes.grid(alpha=0.3, axis="x")
    grid[0].set_yticks(range(len(table)), table["algorithm"])
    grid[0].set_ylim(len(table) - 0.5, -0.5)
    return figure


def profiles(table: pd.DataFrame, labels: Sequence[str]) -> Figure:
    """Share of runs above each normalised score.

    :param table: ``tables.profile``
    :param labels: in order
    """
    figure = _lines(table, labels, "score", "share", "normalised score", "share of runs above it")
    figure.axes[0].set_ylim(-0.03, 1.03)
    return figure


def sample_efficiency(table: pd.DataFrame, labels: Sequence[str]) -> Figure:
    """IQM of normalised scores against the share of the budget.

    :param table: ``tables.sample_efficiency``
    :param labels: in order
    """
    return _lines(table, labels, "share_of_budget", "iqm", "share of the env-step budget", "IQM of normalised scores")


def improvements(table: pd.DataFrame, labels: Sequence[str]) -> Figure:
    """Probability of improvement of each pair, in its interval.

    :param table: ``tables.improvement``
    :param labels: in order
    """
    style = styles(labels)
    pairs = [f"{a} > {b}" for a, b in zip(table["algorithm"], table["over"], strict=True)]
    figure, axes = plt.subplots(figsize=(max(7.0, 4.5 + inches(pairs)), 1.4 + 0.35 * len(table)), layout="constrained")
    for i, row in enumerate(table.itertuples()):
        colour = style[str(row.algorithm)]["color"]
        ends = [row.probability_low, row.probability_high]
        axes.plot(ends, [i, i], color=colour, linewidth=7, alpha=0.35, solid_capstyle="butt")
        axes.plot(row.probability, i, "|", color=colour, markersize=14, markeredgewidth=2.5)
    axes.axvline(0.5, color="black", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(table)), pairs)
    axes.set(xlim=(-0.02, 1.02), ylim=(len(table) - 0.5, -0.5))
    axes.set_xlabel("probability that a run of the first beats one of the second")
    axes.grid(alpha=0.3, axis="x")
    return figure


def times(table: pd.DataFrame, labels: Sequence[str]) -> Figure:
    """Median wall and processor time of a training, one panel per env; with several processors, each bar names its own.

    :param table: ``tables.cost``
    :param labels: in order
    """
    style = styles(labels)
    width = max(4.2, 2.5 + inches(labels))
    figure, grid = panels(list(dict.fromkeys(table["env"])), 1.4 + 0.5 * len(labels), width)
    for env, axes in grid:
        rows = table[table["env"] == env]
        colours = [style[label]["color"] for label in rows["algorithm"]]
        several = rows["processor"].nunique() > 1
        names = [a + several * f"\n({p})" for a, p in zip(rows["algorithm"], rows["processor"], strict=True)]
        places = np.arange(len(rows))
        for shift, column, alpha in ((-0.2, "train_wall_s", 1.0), (0.2, "train_cpu_s", 0.45)):
            bars = axes.barh(places + shift, rows[column], color=colours, height=0.36, alpha=alpha)
            axes.bar_label(bars, fmt="{:,.1f}", padding=3, fontsize=8)
        axes.set_yticks(places, names)
        axes.margins(x=0.2)
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xlabel("training time of a run (s, median)\nfull colour: wall time; pale: processor time", fontsize=9)
    return figure


def settings(table: pd.DataFrame) -> Figure:
    """Scores of some settings as points in their intervals, one panel per env, one colour per measure.

    :param table: ``env``, ``setting``, ``measure``, ``iqm``, ``iqm_low``, ``iqm_high``
    """
    measures = list(dict.fromkeys(table["measure"]))
    style = styles(measures)
    most = table.groupby("env")["setting"].nunique().max()
    figure, grid = panels(list(dict.fromkeys(table["env"])), height=0.7 + 0.3 * most)
    for env, axes in grid:
        names = list(dict.fromkeys(table[table["env"] == env]["setting"]))
        for k, measure in enumerate(measures):
            rows = table[(table["env"] == env) & (table["measure"] == measure)]
            at = [names.index(name) + 0.24 * (k - (len(measures) - 1) / 2) for name in rows["setting"]]
            mark = style[measure]
            axes.hlines(at, rows["iqm_low"], rows["iqm_high"], color=mark["color"], linewidth=4, alpha=0.35)
            axes.plot(rows["iqm"], at, mark["marker"], color=mark["color"], markersize=5, label=measure)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set(xlabel="evaluation return", ylim=(len(names) - 0.5, -0.5))
    legend_below(figure, _fullest(figure))
    return figure


ALL: dict[str, tuple[str, Callable[[pd.DataFrame, Sequence[str]], Figure]]] = {
    "learning_curves": ("curves", learning_curves),
    "aggregates": ("aggregate", aggregates),
    "performance_profile": ("profile", profiles),
    "sample_efficiency": ("sample_efficiency", sample_efficiency),
    "probability_of_improvement": ("improvement", improvements),
    "training_time": ("cost", times),
}


def write(
    tables: Mapping[str, pd.DataFrame], labels: Sequence[str], folder: Path | None, names: Sequence[str] = tuple(ALL)
) -> list[str]:
    """Draw and save the figures with data.

    :param tables: of ``tables.ALL``; missing and empty ones are skipped
    :param labels: in order
    :param folder: to write to; None: nothing is drawn
    :param names: of :data:`ALL`
    :return: names of the figures with data
    """
    found = [name for name in names if len(tables.get(ALL[name][0], ()))]
    if folder is not None:
        for source, draw, name in ((*ALL[name], name) for name in found):
            save(draw(tables[source], labels), folder / name)
    return found


def _lines(table: pd.DataFrame, labels: Sequence[str], x: str, y: str, x_name: str, y_name: str) -> Figure:
    style = styles(labels)
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for label in labels:
        rows = table[table["algorithm"] == label]
        band(axes, rows[x], rows[y], rows[f"{y}_low"], rows[f"{y}_high"], label, style[label])
    axes.set(xlabel=x_name, ylabel=y_name)
    axes.grid(alpha=0.3)
    legend_below(figure, axes)
    return figure


def _fullest(figure: Figure) -> Axes:
    """Panel with the most entries, because not every algorithm has runs on every env."""
    return max(figure.axes, key=lambda axes: len(axes.get_legend_handles_labels()[1]))
