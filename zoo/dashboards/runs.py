"""Data of a run for its page or its report: episodes, evaluations, logged values, messages, settings, files."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, TypeVar

import numpy as np

from sb_grpo.callbacks import RULES, STRICT_RULES

from ..common.command_line import BadInput, Parser, add_untrusted, how_many, read_or_note, say_once
from ..common.plain_files import TooLarge
from ..training.card import Metrics
from ..training.run_files import RunFiles, read_run_files, read_values, settings_folder_of

#: Largest number of points of a logged value, and of histograms.
LOG_POINTS = 500
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
    rows = range(n) if n <= LOG_POINTS else [round(i * (n - 1) / (LOG_POINTS - 1)) for i in range(LOG_POINTS)]
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


# ---------------------------------------------------------------- messages

ADVICE = {rule.name: rule for rule in (*STRICT_RULES, *RULES)}


def watched(log: dict[str, Column]) -> list[str]:
    """Names of the health rules that watched the run.

    :param log: by key, as logged
    """
    return [key.removeprefix("health/") for key in log if key.startswith("health/") and key != "health/n_broken"]


def health_messages(log: dict[str, Column]) -> list[str]:
    """Sentences about each period in which a health rule was broken, the worst first.

    :param log: by key, as logged; ``health/<rule>`` is 1 while a rule is broken
    """
    rules = watched(log)
    broken = [(log[f"health/{name}"]["values"][-1] > 0, sentence) for name in rules for sentence in stretches(name, log)]
    found = [sentence for _, sentence in sorted(broken, key=lambda pair: not pair[0])]
    wrong = log.get("group/start_mismatch", {"values": [0.0]})["values"][-1]
    if wrong > 0 and "start_mismatch" not in rules:
        found.insert(0, ADVICE["start_mismatch"].advice.format(value=wrong))
    return found


def stretches(name: str, log: dict[str, Column]) -> list[str]:
    """Periods in which a rule was broken, with its advice for the last value."""
    column = log[f"health/{name}"]
    rule = ADVICE.get(name)
    rows = list(zip(column["steps"], column["values"], strict=True))
    found = []
    for is_broken, part in itertools.groupby(rows, key=lambda row: row[1] > 0):
        if not is_broken:
            continue
        steps = [step for step, _ in part]
        end = "the end" if steps[-1] == rows[-1][0] else f"{steps[-1]:,.0f}"
        values = log.get(rule.key) if rule is not None else None
        seen = [] if values is None else [v for s, v in zip(values["steps"], values["values"], strict=True) if s <= steps[-1]]
        own = "a rule of your own." if rule is None else f"{rule.key} is not in the log."
        advice = rule.advice.format(value=seen[-1]) if rule is not None and seen else own
        found.append(f"{name}, from step {steps[0]:,.0f} to {end}: {advice}")
    return found


def summary(run: RunData) -> str:
    """Summarise a run in a few lines of text.

    :param run: of :func:`~zoo.dashboards.runs.page_of`
    """
    final = run["final"]
    episodes = run["episodes"]
    log = run["log"]
    steps = final.get("env_steps") or (episodes["steps"] or [0])[-1]
    lines = [f"{run['name']}: {run['algo']} on {run['env'] or 'an unnamed env'}, {run['state']}"]
    planned = f" of {float(run['planned']):,.0f}" if run["planned"] else ""
    lines.append(f"  steps      {steps:,.0f}{planned}, {how_many(episodes['n'], 'episode')}")
    if episodes["n"]:
        lines.append(f"  training   {episodes['mean'][-1]:,.4g} (last returns)")
    if final.get("mean_return") is not None:
        lines.append(f"  evaluation {final['mean_return']:,.4g} ± {final['std_return'] or 0:,.3g}")
    if "time/fps" in log:
        lines.append(f"  speed      {log['time/fps']['values'][-1]:,.0f} steps per second")
    return "\n".join([*lines, *(f"  - {sentence}" for sentence in (*run["messages"], *run["notes"]))])


# ---------------------------------------------------------------- run folders

#: Largest number of points of a curve over episodes, and of runs on one page.
POINTS = 300
MOST_RUNS = 40
#: Seconds without a new episode after which a run without final metrics counts as stopped.
SILENT = 120.0
#: Note on the parts that a run without groups lacks.
NO_LOG = (
    "No log was found: neither progress.csv in the folder nor a TensorBoard file that began when the run did. Train with "
    "--tensorboard-log, or name the folder with --tensorboard. Episodes and evaluations are shown."
)
NO_GROUPS = "The log has no group figures: {algo} forms no groups. Views of groups, advantages and weights are left out."
NO_HEALTH = "No health messages: the run had no HealthCallback (docs/health.md)."
ALL_HELD = "All {n} health rules held throughout."
#: Numbers of ``metrics.json`` on the page.
FINAL = ("env_steps", "planned_steps", "mean_return", "std_return", "wall_time_s")


class Episodes(TypedDict):
    """Training episodes of a run, averaged over parts; see :func:`curve`."""

    n: int
    steps: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    length: list[float]
    seconds: list[float]


class RunData(TypedDict):
    """Data of one run on a page."""

    name: str
    env: str
    algo: str
    state: str
    final: dict[str, float | None]
    planned: float | None
    episodes: Episodes
    evaluations: dict[str, list[float]] | None
    log: dict[str, Column]
    advantages: Quantiles | None
    settings: dict[str, str]
    files: list[str]
    messages: list[str]
    notes: list[str]


class PageData(TypedDict):
    """Data of a page."""

    format: str
    version: int
    runs: list[RunData]


def add_place(parser: Parser) -> None:
    """Add the arguments that choose the runs of a page."""
    parser.add_argument("place", type=Path, metavar="RUN_OR_FOLDER", help="folder of a run, or one above several")
    parser.add_argument(
        "--tensorboard", type=Path, default=None, help="where TensorBoard's files are; the run's own if left out"
    )
    add_untrusted(parser)


def run_folders(place: Path) -> list[Path]:
    """Find the run in a folder, or the runs below it, newest first.

    :raises BadInput: without a run
    """
    if not place.is_dir():
        raise BadInput(f"{place} is no folder. Give the folder of a run, such as logs/grpo/CartPole-v1_1, or one above it.")
    found = {path.parent for path in place.rglob("*monitor.csv") if path.is_file()}
    if not found:
        raise BadInput(f"{place} holds no run: there is no monitor.csv in it or below. zoo.train writes one per env.")
    return sorted(found, key=lambda folder: last_change(folder), reverse=True)[:MOST_RUNS]


def last_change(folder: Path) -> float:
    """Time of the last written episode, in seconds."""
    return max(path.stat().st_mtime for path in folder.glob("*monitor.csv") if path.is_file())


def read_runs(place: Path, tensorboard: Path | None, page_folder: Path | None = None, trusted: bool = True) -> PageData:
    """Read the data of a page.

    :param place: folder of a run, or one above several
    :param tensorboard: folder of TensorBoard's files; None: from the run's command line
    :param page_folder: folder of the page, for its links; None: ``place``
    :param trusted: False: runs with links in them, or with settings that name code, are left out
    :raises BadInput: for missing folders, and without a run
    """
    if tensorboard is not None and not tensorboard.is_dir():
        raise BadInput(f"--tensorboard {tensorboard} is no folder.")
    runs = []
    refused = []
    for folder in run_folders(place):
        try:
            runs.append(page_of(folder, place, tensorboard, page_folder or place, trusted))
        except BadInput as error:
            refused.append(f"{folder} is left out: {error}")
    if not runs:
        raise BadInput(refused[0])
    for line in refused:
        say_once(line)
    return {"format": "sb_grpo.dashboard", "version": 1, "runs": runs}


def page_of(folder: Path, place: Path, tensorboard: Path | None, page_folder: Path, trusted: bool = True) -> RunData:
    """Read the data of one run; arguments as in :func:`read_runs`."""
    broken: list[str] = []
    settings, arguments = read_settings(folder, trusted, broken)
    episodes, started = read_episodes(folder, broken)
    final = read_or_note(folder / "metrics.json", read_final, broken) or Metrics()
    places = tensorboard or (tensorboard_of(arguments) if trusted else None)
    log, advantages = read_log(folder, places, started, broken)
    algo = str(arguments.get("algo", folder.parent.name))
    of_entry = settings.pop("n_timesteps", None)
    planned = [number(steps) for steps in (final.get("planned_steps"), arguments.get("n_timesteps"), of_entry)]
    used = final.get("settings") or {}  # all effective settings, of a run that has ended
    messages = health_messages(log)
    return {
        "name": folder.name if folder == place else str(folder.relative_to(place)),
        "env": str(arguments.get("env", "")),
        "algo": algo,
        "state": "ended" if final else "running" if time.time() - last_change(folder) < SILENT else "stopped",
        "final": {
            "env_steps": final.get("env_steps"),
            "planned_steps": final.get("planned_steps"),
            "mean_return": final.get("mean_return"),
            "std_return": final.get("std_return"),
            "wall_time_s": final.get("wall_time_s"),
        },
        "planned": next((steps for steps in planned if steps is not None and steps > 0), None),
        "episodes": curve(episodes),
        "evaluations": read_or_note(folder / "evaluations.npz", read_evaluations, broken),
        "log": log,
        "advantages": advantages,
        "settings": {str(key): str(value) for key, value in {**settings, **used}.items() if value is not None},
        "files": [os.path.relpath(path, page_folder) for path in sorted(folder.rglob("*")) if is_result(path)][:60],
        "messages": messages,
        "notes": [*broken, *notes(algo, log, messages)],
    }


def notes(algo: str, log: dict[str, Column], messages: list[str]) -> list[str]:
    """Notes on missing parts, or that there were no faults."""
    if not log:
        return [NO_LOG]
    rules = watched(log)
    found = [] if any(key.startswith("group/") for key in log) else [NO_GROUPS.format(algo=algo)]
    if not rules:
        found.append(NO_HEALTH)
    elif not messages:
        found.append(ALL_HELD.format(n=len(rules)))
    return found


def is_result(path: Path) -> bool:
    """Whether a path is a file of the run: no folder, and no page about it."""
    return path.is_file() and path.suffix != ".html"


def read_episodes(folder: Path, broken: list[str]) -> tuple[np.ndarray, float | None]:
    """Read ``[n, 3]`` return, length and second of every episode, by time, and the start of the run.

    :param broken: gets a line about each damaged file
    """
    found = [read_or_note(path, read_monitor, broken) for path in sorted(folder.glob("*monitor.csv"))]
    rows = [row for part in found if part is not None for row in part[1]]
    starts = [part[0] for part in found if part is not None]
    table = np.array(sorted(rows, key=lambda row: row[2])).reshape(-1, 3)
    return table, min(starts, default=0.0) or None


def read_monitor(path: Path) -> tuple[float, list[tuple[float, float, float]]]:
    """Read start and episodes of a monitor file; lines without three finite numbers, such as an incomplete last one, are
    skipped."""
    rows = []
    with path.open() as file:
        head = file.readline().removeprefix("#")
        started = float(json.loads(head).get("t_start", 0.0)) if head.startswith("{") else 0.0
        for row in csv.DictReader(file):
            r, length, t = (number(row.get(name)) for name in "rlt")
            if r is not None and length is not None and t is not None:
                rows.append((r, length, started + t))
    return started, rows


def curve(episodes: np.ndarray) -> Episodes:
    """Compute mean and middle 80 % of returns, mean lengths and steps per second over env steps."""
    if not len(episodes):
        return {"n": 0, "steps": [], "mean": [], "low": [], "high": [], "length": [], "seconds": []}
    steps = episodes[:, 1].cumsum()
    parts = np.array_split(np.arange(len(episodes)), min(POINTS, len(episodes)))
    returns = [episodes[part, 0] for part in parts]
    return {
        "n": len(episodes),
        "steps": [float(steps[part[-1]]) for part in parts],
        "mean": [float(r.mean()) for r in returns],
        "low": [float(np.quantile(r, 0.1)) for r in returns],
        "high": [float(np.quantile(r, 0.9)) for r in returns],
        "length": [float(episodes[part, 1].mean()) for part in parts],
        "seconds": [float(episodes[part[-1], 2] - episodes[0, 2]) for part in parts],
    }


def read_evaluations(path: Path) -> dict[str, list[float]]:
    """Read mean and range of the evaluations.

    :raises ValueError: if their number differs from that of the steps
    """
    with np.load(path) as data:
        steps = data["timesteps"]
        results = np.asarray(data["results"], dtype=float)
    if steps.ndim != 1 or results.ndim != 2 or len(steps) != len(results):
        raise ValueError(f"results of shape {results.shape} at steps of shape {steps.shape}")
    columns = {"mean": results.mean(1), "low": results.min(1), "high": results.max(1)}
    return {"steps": steps.tolist(), **{name: column.tolist() for name, column in columns.items()}}


def read_final(path: Path) -> Metrics:
    """Read ``metrics.json`` of a run that has ended.

    :raises ValueError: for another format than that of ``zoo.train``
    """
    found: Metrics = json.loads(path.read_text())
    if not isinstance(found, dict) or not isinstance(found.get("settings") or {}, dict):
        raise ValueError("it must be a JSON object, whose settings are one too")
    values: Mapping[str, object] = found
    for name in FINAL:
        if not isinstance(values.get(name), int | float | None):
            raise ValueError(f"{name}={values[name]!r:.80} is no number")
    return found


def read_settings(folder: Path, trusted: bool, broken: list[str]) -> RunFiles:
    """Read settings and command line of a run.

    :param trusted: see :func:`~zoo.training.run_files.read_run_files`
    :param broken: gets a line about each damaged file
    :raises BadInput: for a run that is refused
    """
    settings_folder = settings_folder_of(folder)
    if not trusted:
        return read_run_files(settings_folder, trusted)
    found = []
    for name in ("config.yml", "args.yml"):
        try:
            found.append(read_values(settings_folder / name))
        except TooLarge:
            raise
        except BadInput as error:
            found.append({})
            broken.append(f"{name} cannot be read, and what it says is left out: {error}")
            say_once(f"{settings_folder / name} cannot be read, and what it says is left out: {error}")
    return RunFiles(*found)


def tensorboard_of(arguments: Mapping[str, object]) -> Path | None:
    """Folder of TensorBoard's files in the run's command line."""
    named = arguments.get("tensorboard_log")
    return Path(named) if isinstance(named, str) and named and Path(named).is_dir() else None
