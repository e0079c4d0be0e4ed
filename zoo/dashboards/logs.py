"""What a training logged, as columns: from ``progress.csv`` in its folder, or from TensorBoard's files."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

#: Points of a logged value that are kept, and histograms.
POINTS, HISTOGRAMS = 500, 60
#: Significant digits of a value that are kept: a chart shows three.
DIGITS = 6
#: Quantiles of a histogram that are drawn.
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
#: Seconds between the start of a run and of its TensorBoard file, at most.
APART = 60.0

Column = dict[str, list[float]]


def read_log(folder: Path, tensorboard: Path | None, started: float | None) -> tuple[dict[str, Column], dict[str, Any] | None]:
    """Logged numbers by key, and quantiles of the advantages over time where they were logged.

    :param folder: of the run
    :param tensorboard: where TensorBoard's files are looked for; None: only in the folder
    :param started: when the run began, in seconds; of several TensorBoard files the one that began then is taken
    """
    if (folder / "progress.csv").is_file():
        return from_csv(folder / "progress.csv"), None
    events = nearest_events([place for place in (folder, tensorboard) if place is not None], started)
    return ({}, None) if events is None else from_tensorboard(events)


def from_csv(path: Path) -> dict[str, Column]:
    """Columns of SB3's CSV output; a last line that is being written is passed over."""
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


def number(text: Any) -> float | None:
    """A finite number, or None."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def thinned(column: Column) -> Column:
    """At most ``POINTS`` points at equal distances, the last one among them; values with ``DIGITS`` digits."""
    n = len(column["steps"])
    rows = range(n) if n <= POINTS else [round(i * (n - 1) / (POINTS - 1)) for i in range(POINTS)]
    values = [float(f"{column['values'][i]:.{DIGITS}g}") for i in rows]
    return {"steps": [column["steps"][i] for i in rows], "values": values}


def nearest_events(places: list[Path], started: float | None) -> Path | None:
    """The TensorBoard file of a run: the one that began when the run did."""
    files = [file for place in places for file in place.rglob("events.out.tfevents.*")]
    if started is None or not files:
        return max(files, key=lambda file: file.stat().st_mtime, default=None)
    began = {file: float(file.name.split(".")[3]) for file in files if file.name.split(".")[3].isdigit()}
    near = {file: abs(when - started) for file, when in began.items() if abs(when - started) <= APART}
    return min(near, key=lambda file: near[file], default=None)


def from_tensorboard(events: Path) -> tuple[dict[str, Column], dict[str, Any] | None]:
    """Scalars by key, and quantiles of ``group/advantages``."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(events), size_guidance={"scalars": 0, "histograms": HISTOGRAMS, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    found = {}
    for key in tags["scalars"]:
        points = [(e.step, e.value) for e in accumulator.Scalars(key) if math.isfinite(e.value)]
        if points:
            steps, values = zip(*points, strict=True)
            found[key] = thinned({"steps": list(steps), "values": list(values)})
    if "group/advantages" not in tags["histograms"]:
        return found, None
    histograms = accumulator.Histograms("group/advantages")
    rows = [quantiles(h.histogram_value.bucket_limit, h.histogram_value.bucket) for h in histograms]
    columns = [list(column) for column in zip(*rows, strict=True)]
    return found, {"steps": [h.step for h in histograms], "quantiles": list(QUANTILES), "values": columns}


def quantiles(limits: Any, counts: Any) -> list[float]:
    """Upper limits of the buckets in which the quantiles lie; a limit without end counts as the one before it."""
    total, bounded = sum(counts), [limit for limit in limits if abs(limit) < 1e300]
    found, seen, place = [], 0.0, 0
    for share in QUANTILES:
        while place < len(counts) - 1 and seen + counts[place] < share * total:
            seen += counts[place]
            place += 1
        found.append(float(bounded[min(place, len(bounded) - 1)]))
    return found
