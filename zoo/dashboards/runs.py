"""A run's folder as numbers for its page: episodes, evaluations, what was logged, settings, files."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..common.command_line import BadInput, Parser, one_line
from ..dashboards.logs import Column, read_log
from ..dashboards.messages import health_messages, watched

#: Points of a curve over episodes, and runs on one page.
POINTS, MOST_RUNS = 300, 40
#: Seconds without a new episode after which a run without final metrics counts as stopped.
SILENT = 120.0
#: What a run without groups cannot show, and why.
NO_LOG = (
    "No log was found: neither progress.csv in the folder nor a TensorBoard file that began when the run did. Train with "
    "--tensorboard-log, or name the folder with --tensorboard. Episodes and evaluations are shown."
)
NO_GROUPS = "The log has no group figures: {algo} forms no groups. Views of groups, advantages and weights are left out."
NO_HEALTH = "No health messages: the run had no HealthCallback (docs/health.md)."
ALL_HELD = "All {n} health rules held throughout."
BROKEN = "{name} cannot be read, and what it says is left out: {error}"


def add_place(parser: Parser) -> None:
    """The arguments that say which runs a page is about."""
    parser.add_argument("place", type=Path, metavar="RUN_OR_FOLDER", help="folder of a run, or one above several")
    parser.add_argument(
        "--tensorboard", type=Path, default=None, help="where TensorBoard's files are; the run's own if left out"
    )


def run_folders(place: Path) -> list[Path]:
    """The run in a folder, or the runs below it, newest first.

    :raises BadInput: where there is none
    """
    if not place.is_dir():
        raise BadInput(f"{place} is no folder. Give the folder of a run, such as logs/grpo/CartPole-v1_1, or one above it.")
    found = {path.parent for path in place.rglob("*monitor.csv")}
    if not found:
        raise BadInput(f"{place} holds no run: there is no monitor.csv in it or below. zoo.train writes one per env.")
    return sorted(found, key=lambda folder: last_change(folder), reverse=True)[:MOST_RUNS]


def last_change(folder: Path) -> float:
    """When the last episode was written, in seconds."""
    return max(path.stat().st_mtime for path in folder.glob("*monitor.csv"))


def read_runs(place: Path, tensorboard: Path | None, page_folder: Path | None = None) -> dict[str, Any]:
    """All that a page shows.

    :param place: folder of a run, or one above several
    :param tensorboard: where TensorBoard's files are; None: where the run's command line put them
    :param page_folder: that the page stands in, for its links; ``place`` if None
    :raises BadInput: for folders that are not there, and where there is no run
    """
    if tensorboard is not None and not tensorboard.is_dir():
        raise BadInput(f"--tensorboard {tensorboard} is no folder.")
    runs = [read_run(folder, place, tensorboard, page_folder or place) for folder in run_folders(place)]
    return {"format": "sb_grpo.dashboard", "version": 1, "runs": runs}


def read_run(folder: Path, place: Path, tensorboard: Path | None, page_folder: Path) -> dict[str, Any]:
    """One run; arguments as in :func:`read_runs`."""
    episodes, started = read_episodes(folder)
    settings, arguments, broken = read_settings(folder)
    final = read_json(folder / "metrics.json")
    log, advantages = read_log(folder, tensorboard or tensorboard_of(arguments), started)
    algo = str(arguments.get("algo", folder.parent.name))
    asked, of_entry = arguments.get("n_timesteps") or -1, settings.pop("n_timesteps", None)
    used = final.get("settings") or {}  # of a run that has ended: all of them, as they were
    messages = health_messages(log)
    return {
        "name": folder.name if folder == place else str(folder.relative_to(place)),
        "env": str(arguments.get("env", "")),
        "algo": algo,
        "state": "ended" if final else "running" if time.time() - last_change(folder) < SILENT else "stopped",
        "final": {key: final.get(key) for key in ("env_steps", "planned_steps", "mean_return", "std_return", "wall_time_s")},
        "planned": final.get("planned_steps") or (asked if float(asked) > 0 else of_entry),
        "episodes": curve(episodes),
        "evaluations": read_evaluations(folder),
        "log": log,
        "advantages": advantages,
        "settings": {str(key): str(value) for key, value in {**settings, **used}.items() if value is not None},
        "files": [os.path.relpath(path, page_folder) for path in sorted(folder.rglob("*")) if is_result(path)][:60],
        "messages": messages,
        "notes": [*broken, *notes(algo, log, messages)],
    }


def notes(algo: str, log: dict[str, Column], messages: list[str]) -> list[str]:
    """What is missing and why, or that nothing was wrong."""
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
    """A file that the run has written: no folder, and no page about it."""
    return path.is_file() and path.suffix != ".html"


def read_episodes(folder: Path) -> tuple[np.ndarray, float | None]:
    """``[n, 3]`` return, length and second of every episode, by time; and when the run began."""
    rows, starts = [], []
    for path in folder.glob("*monitor.csv"):
        with path.open() as file:
            head = file.readline().removeprefix("#")
            started = float(json.loads(head).get("t_start", 0.0)) if head.startswith("{") else 0.0
            starts.append(started)
            for row in csv.DictReader(file):
                try:  # the last line may be half written
                    rows.append((float(row["r"]), float(row["l"]), started + float(row["t"])))
                except (TypeError, ValueError, KeyError):
                    continue
    table = np.array(sorted(rows, key=lambda row: row[2])).reshape(-1, 3)
    return table, min(starts, default=0.0) or None


def curve(episodes: np.ndarray) -> dict[str, Any]:
    """Mean and the middle 80 % of returns, and mean lengths, over env steps; steps per second."""
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


def read_evaluations(folder: Path) -> dict[str, Any] | None:
    """Mean and range of the evaluations."""
    try:
        with np.load(folder / "evaluations.npz") as data:
            steps, results = data["timesteps"], data["results"]
    except (OSError, ValueError, KeyError):  # there is none, or it is being written
        return None
    columns = {"mean": results.mean(1), "low": results.min(1), "high": results.max(1)}
    return {"steps": steps.tolist(), **{name: column.tolist() for name, column in columns.items()}}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; {} where there is none yet."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class PlainLoader(yaml.SafeLoader):
    """Reads what rl_zoo3 writes without building any object of it."""


PlainLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: plain(loader, node))


def plain(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    """The lists and words of a node, whatever Python class it names."""
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return str(node.value)


def read_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The run's settings and its command line, as rl_zoo3 keeps them, and a note on each that is damaged."""
    found: dict[str, dict[str, Any]] = {"config.yml": {}, "args.yml": {}}
    broken = []
    for name in found:
        path = next(folder.glob(f"*/{name}"), None)
        if path is None:
            continue
        try:
            found[name] = pairs(yaml.load(path.read_text(), PlainLoader))
        except (OSError, ValueError, yaml.YAMLError) as error:
            broken.append(BROKEN.format(name=name, error=one_line(error)))
            say_once(BROKEN.format(name=path, error=one_line(error)))
    return found["config.yml"], found["args.yml"], broken


@cache
def say_once(line: str) -> None:
    """A line on stderr; a page that is served reads the same files again and again."""
    print(line, file=sys.stderr)


def pairs(value: Any) -> dict[str, Any]:
    """An ordered dict of rl_zoo3's files: a list of pairs, perhaps in a list of its own."""
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if isinstance(value, dict):
        return value
    return (
        {str(pair[0]): pair[1] for pair in value if isinstance(pair, list) and len(pair) == 2}
        if isinstance(value, list)
        else {}
    )


def tensorboard_of(arguments: dict[str, Any]) -> Path | None:
    """Where the run's command line put TensorBoard's files."""
    named = arguments.get("tensorboard_log")
    return Path(named) if named and Path(named).is_dir() else None
