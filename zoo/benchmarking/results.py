"""Write (atomically), read and check results of runs.

A run has its own file, ``ENV/LABEL/seed_3.json``. Kept studies have runs as lines of files such as ``LABEL.jsonl``, with one
or several labels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from sb_grpo import files

from ..common.plain_files import finite

LINES = ".jsonl"  # one run per line, in the place of folders of files
EVALUATED = "evaluated: "  # prefix of models in results of zoo.evaluate
RANDOM = "random"  # pseudo-algorithm: uniformly random actions, the lower reference of normalised scores


class BrokenResult(ValueError):
    """Error of an unusable result file; the message names the file and the reason."""


class SpecFields(TypedDict, total=False):
    """Fields of :class:`zoo.benchmarking.specs.Spec` in a result file; those of ``zoo.evaluate`` have the first six."""

    env: str
    label: str
    algo: str
    seed: int
    steps: int
    source: str
    evaluations: int
    eval_episodes: int
    final_episodes: int
    hyperparams: dict[str, object]


class Point(TypedDict):
    """One evaluation during training."""

    steps: int
    env_steps: int
    train_wall_s: float
    returns: list[float]


class Results(TypedDict, total=False):
    """Results of a run."""

    env_steps: int
    gradient_steps: int
    n_updates: int
    parameters: int
    train_wall_s: float
    train_cpu_s: float
    eval_wall_s: float
    checkpoints: list[Point]
    final_returns: list[float]
    settings: dict[str, object]


class Record(Results, total=False):
    """Content of a result file; :func:`read_run` checks it."""

    spec: SpecFields
    commit: str | None
    versions: dict[str, str] | None
    machine: dict[str, str | int | None]
    command: str


@dataclass(frozen=True, eq=False)
class Run:
    """Results and settings of one run.

    :param path: of its file, or ``FILE:LINE``
    :param spec: the requested run: :class:`zoo.benchmarking.specs.Spec`
    :param env: env id
    :param label: name of the algorithm or variant
    :param algo: algorithm behind the label
    :param seed: of the run
    :param steps: budget in env steps
    :param env_steps: steps really taken
    :param gradient_steps: optimiser steps
    :param n_updates: SB3's count: epochs of PPO and GRPO, rollouts of A2C and TRPO
    :param parameters: trainable parameters, a critic's included
    :param train_wall_s: seconds of training, evaluations not counted
    :param train_cpu_s: processor seconds of the same
    :param checkpoint_steps: ``[C]`` env steps of the evaluations during training
    :param checkpoint_wall_s: ``[C]`` seconds of training until then
    :param checkpoint_returns: ``[C, E]`` return of every evaluation episode
    :param final_returns: ``[F]`` returns of the final evaluation
    :param settings: effective constructor arguments and envs
    :param origin: provenance of the run: ``settings_of``, ``commit``, ``versions``, ``machine``, ``command``
    """

    path: Path
    spec: SpecFields
    env: str
    label: str
    algo: str
    seed: int
    steps: int
    env_steps: int
    gradient_steps: int
    n_updates: int
    parameters: int
    train_wall_s: float
    train_cpu_s: float
    checkpoint_steps: np.ndarray
    checkpoint_wall_s: np.ndarray
    checkpoint_returns: np.ndarray
    final_returns: np.ndarray
    settings: dict[str, object]
    origin: dict[str, str]

    @property
    def file(self) -> Path:
        """Path of the run's own file, ``ENV/LABEL/seed_3.json``, whether it exists or not."""
        if LINES not in self.path.name:
            return self.path
        return self.path.parent / env_folder(self.env) / self.label / seed_file(self.seed)

    @property
    def score(self) -> float:
        """Mean return of the final evaluation, the run's score in all statistics."""
        return float(self.final_returns.mean())

    @property
    def curve(self) -> np.ndarray:
        """``[C]`` mean return of each checkpoint."""
        mean: np.ndarray = self.checkpoint_returns.mean(axis=1)
        return mean


def env_folder(env_id: str) -> str:
    """Name of an env's folder; ids such as ``ALE/Pong-v5`` hold a slash.

    :param env_id: registered id
    """
    return env_id.replace("/", "-").replace(":", "-")


def seed_file(seed: int | str) -> str:
    """Name of the file of a run.

    :param seed: of the run; ``*``: of any
    """
    return f"seed_{seed}.json"


def write_result(path: Path, content: Record) -> None:
    """Write a complete and valid result file atomically.

    :param path: of the file
    :param content: JSON values
    :raises BrokenResult: if :func:`read_run` would refuse it
    """
    lines = []
    for key, value in content.items():
        plain = finite(value) if key == "settings" else value  # results themselves must be finite
        lines.append(f"  {json.dumps(key)}: {json.dumps(plain)}")
    with files.replacing(path) as unfinished:
        unfinished.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        read_run(unfinished)


def read_content(path: Path) -> Record:
    """Read the JSON of a result file.

    :param path: of the file
    :raises BrokenResult: if it is not a JSON object
    """
    return _content(path, _text(path))


def read_run(path: Path) -> Run:
    """Read and check a result file.

    :param path: of the file
    :raises BrokenResult: if a value is missing, of the wrong type, or not finite
    """
    return _run(path, read_content(path))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise BrokenResult(f"{path}: not readable as JSON ({error})") from error


def _content(path: Path, text: str) -> Record:
    try:
        content: Record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenResult(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise BrokenResult(f"{path}: holds no JSON object")
    return content


def _run(path: Path, content: Record) -> Run:
    try:
        spec = content["spec"]
        checkpoints = content["checkpoints"]
        run = Run(
            path=path,
            spec=spec,
            env=str(spec["env"]),
            label=str(spec["label"]),
            algo=str(spec["algo"]),
            seed=int(spec["seed"]),
            steps=int(spec["steps"]),
            env_steps=int(content["env_steps"]),
            gradient_steps=int(content["gradient_steps"]),
            n_updates=int(content["n_updates"]),
            parameters=int(content["parameters"]),
            train_wall_s=float(content["train_wall_s"]),
            train_cpu_s=float(content["train_cpu_s"]),
            checkpoint_steps=np.array([point["steps"] for point in checkpoints], dtype=np.int64),
            checkpoint_wall_s=np.array([point["train_wall_s"] for point in checkpoints], dtype=np.float64),
            checkpoint_returns=np.array([point["returns"] for point in checkpoints], dtype=np.float64),
            final_returns=np.array(content["final_returns"], dtype=np.float64),
            settings={name: value for name, value in content.get("settings", {}).items() if name != "seed"},
            origin=_origin(content),
        )
    except KeyError as error:
        raise BrokenResult(f"{path}: {error} is missing") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BrokenResult(f"{path}: a value has the wrong type ({error})") from error
    _check(run)
    return run


def _origin(content: Record) -> dict[str, str]:
    names = ("commit", "versions", "machine", "command")
    words: dict[str, object] = {name: content.get(name) or "unknown" for name in names}
    plain = {name: ", ".join(f"{k} {v}" for k, v in x.items()) if isinstance(x, dict) else str(x) for name, x in words.items()}
    return {"settings_of": str(content["spec"].get("source", "unknown")), **plain}


def _check(run: Run) -> None:
    if run.final_returns.ndim != 1 or len(run.final_returns) == 0:
        raise BrokenResult(f"{run.path}: no final returns")
    if run.algo != RANDOM and (run.checkpoint_returns.ndim != 2 or run.checkpoint_returns.size == 0):
        raise BrokenResult(f"{run.path}: no evaluation returns")
    numbers = [run.train_wall_s, run.train_cpu_s]
    if not all(math.isfinite(x) for x in [*numbers, *run.final_returns, *run.checkpoint_returns.ravel()]):
        raise BrokenResult(f"{run.path}: a number is not finite")


def find_results(folders: Iterable[Path]) -> list[Path]:
    """Find files with results in folders of ``zoo.benchmark``, sorted.

    :param folders: output folders, parts of them, or single files
    """
    files: set[Path] = set()
    for folder in folders:
        files |= {folder} if folder.is_file() else {*folder.rglob(seed_file("*")), *folder.rglob(f"*{LINES}")}
    return sorted(file for file in files if not any(part.endswith(".run") for part in file.parts))


def read_all(files: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read all runs, and describe the files that cannot be read.

    :param files: each of one run, or of one per line
    :return: runs, in an order independent of their file format, and one line per broken run
    """
    runs = []
    broken = []
    for file in files:
        try:
            places = _places(file)
        except BrokenResult as error:
            broken.append(str(error))
            continue
        for place, text in places:
            try:
                runs.append(_run(place, _content(place, text)))
            except BrokenResult as error:
                broken.append(str(error))
    return sorted(runs, key=lambda run: run.file), broken


def _places(file: Path) -> list[tuple[Path, str]]:
    """Places of the runs in a file, and their JSON."""
    text = _text(file)
    if file.suffix != LINES:
        return [(file, text)]
    lines = enumerate(text.split("\n"), 1)
    return [(file.with_name(f"{file.name}:{number}"), line) for number, line in lines if line.strip()]
