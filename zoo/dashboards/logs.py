"""Logged values of a training as columns, from ``progress.csv`` in its folder or from TensorBoard's files."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, TypeVar

from ..common.command_line import read_or_note

#: Largest number of points of a logged value, and of histograms.
POINTS = 500
HISTOGRAMS = 60
#: Significant digits of a value; charts show three.
DIGITS = 6
#: Drawn quantiles of a histogram.
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
#: Largest number of seconds between the start of a run and of its TensorBoard file.
APART = 60.0

Column = dict[str, list[float]]
T = TypeVar("T")


class Quantiles(TypedDict):
    """Quantiles of a logged histogram over time; ``values`` are columns by quantile."""

    steps: list[int]
    quantiles: list[float]
    values: list[list[float]]


def read_log(
    folder: Path, tensorboard: Path | None, started: float | None, broken: list[str]
) -> tuple[dict[str, Column], Quantiles | None]:
    """Read logged numbers by key, and quantiles of the advantages over time if logged.

    :param folder: of the run
    :param tensorboard: folder of TensorBoard's files; None: only the run's folder
    :param started: start of the run in seconds, which selects the TensorBoard files
    :param broken: gets a line about a damaged file
    """
    if (folder / "progress.csv").is_file():
        return read_or_note(folder / "progress.csv", from_csv, broken) or {}, None
    events = events_of_run([place for place in (folder, tensorboard) if place is not None], started)
    found = read_or_note(events[0], lambda _: from_tensorboard(events), broken) if events else None
    return found or ({}, None)


def from_csv(path: Path) -> dict[str, Column]:
    """Read columns of SB3's CSV output; an incomplete last line is skipped."""
    found: dict[str, Column] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            step = number(row.get("time/total_timesteps"))
            if step is None or None in row.values():
                continue
            for key, text in row.items():
                value = number(text)
                if value is not None:
                    column = found.setdefault(key, {"steps": [], "values": []})
                    column["steps"].append(step)
                    column["values"].append(value)
    return {key: thinned(column) for key, column in found.items()}


def number(text: object) -> float | None:
    """A finite number, or None."""
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def thinned(column: Column) -> Column:
    """Thin a column to ``POINTS`` equidistant points with the last one, and round to ``DIGITS`` digits."""
    n = len(column["steps"])
    rows = range(n) if n <= POINTS else [round(i * (n - 1) / (POINTS - 1)) for i in range(POINTS)]
    values = [float(f"{column['values'][i]:.{DIGITS}g}") for i in rows]
    return {"steps": [column["steps"][i] for i in rows], "values": values}


def events_of_run(places: list[Path], started: float | None) -> list[Path]:
    """TensorBoard files of a run, oldest first: the file that began with the run, and later ones in its folder from
    resumes."""
    files = [file for place in places for file in place.rglob("events.out.tfevents.*")]
    if started is None or not files:
        first = max(files, key=lambda file: file.stat().st_mtime, default=None)
    else:
        near = {file: abs(when - started) for file in files if (when := began(file)) is not None}
        near = {file: apart for file, apart in near.items() if apart <= APART}
        first = min(near, key=lambda file: near[file], default=None)
    if first is None:
        return []
    beside = sorted((began(file) or 0.0, file) for file in files if file.parent == first.parent)
    return [file for second, file in beside if second >= (began(first) or 0.0)]


def began(events: Path) -> float | None:
    """Start of a TensorBoard file in seconds, from its name."""
    second = events.name.split(".")[3]
    return float(second) if second.isdigit() else None


def from_tensorboard(files: list[Path]) -> tuple[dict[str, Column], Quantiles | None]:
    """Scalars by key, and quantiles of ``group/advantages``.

    :param files: of one run, oldest first; a later file replaces the steps of earlier ones from its first step on
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    scalars: dict[str, dict[int, float]] = {}
    histograms: dict[int, list[float]] = {}
    for file in files:
        accumulator = EventAccumulator(str(file), size_guidance={"scalars": 0, "histograms": HISTOGRAMS, "tensors": 0})
        accumulator.Reload()
        tags = accumulator.Tags()
        for key in tags["scalars"]:
            go_on(scalars.setdefault(key, {}), {e.step: e.value for e in accumulator.Scalars(key) if math.isfinite(e.value)})
        if "group/advantages" in tags["histograms"]:
            found = [(h.step, h.histogram_value) for h in accumulator.Histograms("group/advantages")]
            go_on(histograms, {step: quantiles(value.bucket_limit, value.bucket) for step, value in found})
    columns = {
        key: thinned({"steps": list(map(float, points)), "values": list(points.values())})
        for key, points in scalars.items()
        if points
    }
    if not histograms:
        return columns, None
    by_quantile = [list(column) for column in zip(*histograms.values(), strict=True)]
    return columns, {"steps": list(histograms), "quantiles": list(QUANTILES), "values": by_quantile}


def go_on(points: dict[int, T], later: dict[int, T]) -> None:
    """Continue values by step with those of a later file."""
    start = min(later, default=math.inf)
    for step in [step for step in points if step >= start]:
        del points[step]
    points.update(later)


def quantiles(limits: Sequence[float], counts: Sequence[float]) -> list[float]:
    """Upper limits of the buckets with the quantiles; an infinite limit counts as the previous one."""
    total = sum(counts)
    bounded = [limit for limit in limits if abs(limit) < 1e300]
    found = []
    seen = 0.0
    place = 0
    for share in QUANTILES:
        while place < len(counts) - 1 and seen + counts[place] < share * total:
            seen += counts[place]
            place += 1
        found.append(float(bounded[min(place, len(bounded) - 1)]))
    return found
