"""Models to evaluate: run folders and zips of the command line, with their runs' settings."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import rl_zoo3

from sb_grpo.save_util import read_entry

from ..common.command_line import BadInput, one_line, read_or_note
from ..training.card import Metrics
from ..training.run_files import is_run_folder, read_run_files, settings_folder_of
from ..training.saved import Saved, check_untrusted

#: Used keys of ``metrics.json``.
NUMBERS = ("planned_steps", "env_steps", "gradient_steps", "wall_time_s")


@dataclass(frozen=True)
class Contestant:
    """Saved model with a name.

    :param saved: the model and its settings
    :param label: of the algorithm, or from the user; models of one label differ by their seeds
    :param name: unique name
    :param seed: of its training
    :param folder: of its run
    """

    saved: Saved
    label: str
    name: str
    seed: int
    folder: Path

    @cached_property
    def broken(self) -> list[str]:
        """Lines about damaged files of the run that have been read."""
        return []

    @cached_property
    def metrics(self) -> Metrics:
        """``metrics.json`` of the run; empty if it cannot be read, for example after a kill."""
        return read_or_note(self.folder / "metrics.json", _read_metrics, self.broken) or Metrics()

    @cached_property
    def curve(self) -> tuple[np.ndarray, np.ndarray] | None:
        """``[C]`` steps and ``[C, E]`` returns of the evaluations during training; None if they cannot be read."""
        return read_or_note(self.folder / "evaluations.npz", _read_evaluations, self.broken)


def _read_metrics(path: Path) -> Metrics:
    metrics: Metrics = json.loads(path.read_text())
    if not isinstance(metrics, dict):
        raise ValueError("it must be a JSON object")
    for name in NUMBERS:
        value = metrics.get(name)
        if value is not None and not (isinstance(value, int | float) and 0 <= value < np.inf):
            raise ValueError(f"{name}={value!r:.80} is no number from 0 on")
    return metrics


def _read_evaluations(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as data:
        steps = np.asarray(data["timesteps"], dtype=np.int64)
        results = np.asarray(data["results"], dtype=np.float64)
    if steps.ndim != 1 or results.ndim != 2 or len(steps) != len(results) or not np.isfinite(results).all():
        raise ValueError(f"{steps.shape} steps and {results.shape} results, which must be finite")
    return steps, results


def run_folders(path: Path) -> list[Path]:
    """The run folders at or below a folder, in order."""
    return [path] if is_run_folder(path) else sorted({file.parent.parent for file in path.rglob("*/*/config.yml")})


def is_saved(text: str) -> bool:
    """Whether an argument without results is about saved models: ``LABEL=PATH``, a zip, or a folder that holds runs."""
    path = Path(text)
    return "=" in text if not path.exists() else path.suffix == ".zip" or bool(run_folders(path))


def find(texts: Sequence[str], best: bool, algo: str | None, env_id: str | None, trusted: bool = True) -> list[Contestant]:
    """Find the models of the command line.

    :param texts: ``[LABEL=]PATH``: a run folder, a folder of them, or a model's zip
    :param best: of a run folder, the best model instead of the last
    :param algo: of zips without a run folder
    :param env_id: instead of the runs' own
    :param trusted: False: no data of the files is unpickled
    :raises BadInput: for paths without a model, and for models that cannot be read without unpickling
    """
    found: list[Contestant] = []
    refused: list[BadInput] = []
    for text in texts:
        named = "=" in text and not Path(text).exists()
        label, place = text.split("=", 1) if named else ("", text)
        path = Path(place)
        folders = [path.parent] if path.suffix == ".zip" else run_folders(path)
        if not path.exists() or not folders:
            raise BadInput(f"{text}: there is no such {'file' if path.suffix == '.zip' else 'run folder'}.")
        for folder in folders:
            model = path if path.suffix == ".zip" else None
            try:
                found.append(_contestant(folder, model, best, algo, env_id, label, trusted))
            except BadInput as error:
                refused.append(error)
    say_left_out(found, refused)
    return _told_apart(found)


def say_left_out(found: Sequence[Contestant], refused: Sequence[BadInput]) -> None:
    """Report the models that cannot be evaluated.

    :raises BadInput: the first one, if no model is left
    """
    if not found:
        raise refused[0]
    for reason in refused:
        print(f"left out: {one_line(reason)}", file=sys.stderr)


def _contestant(
    folder: Path, model: Path | None, best: bool, algo: str | None, env_id: str | None, label: str, trusted: bool
) -> Contestant:
    settings = settings_folder_of(folder)
    args = read_run_files(settings, trusted).options
    of_run = algo or args.get("algo")
    its_env = env_id or args.get("env")
    seed = args.get("seed") or 0
    path = model or folder / ("best_model.zip" if best else f"{settings.name}.zip")
    if of_run is None or its_env is None:
        raise BadInput(f"{path}: no run stands beside it, so say --algo and --env.")
    if not isinstance(of_run, str) or of_run not in rl_zoo3.ALGOS:
        raise BadInput(f"{path}: unknown algorithm {of_run!r}.")
    if not isinstance(its_env, str) or not isinstance(seed, int):
        raise BadInput(f"{settings / 'args.yml'}: env={its_env!r:.80} must be text, and seed={seed!r:.80} a whole number.")
    if not path.exists():
        raise BadInput(f"{folder} holds no {path.name}; there are {sorted(file.name for file in folder.glob('*.zip'))}.")
    try:
        read_entry(path, "data")
    except ValueError as error:
        raise BadInput(f"cannot load {path}: {error}") from error
    check_untrusted(of_run, trusted)
    name = folder.name if model is None and not best else f"{folder.name}/{path.stem}"
    return Contestant(Saved(of_run, path, settings, its_env, trusted), label or of_run, f"{of_run} {name}", seed, folder)


def _told_apart(found: list[Contestant]) -> list[Contestant]:
    """Give models with equal label and seed distinct labels, because they are different variants."""
    twice = {key for key, n in Counter((one.label, one.seed) for one in found).items() if n > 1}
    labels = {one.label for one in found if (one.label, one.seed) in twice}
    made = [replace(one, label=one.name.replace(" ", "-").replace("/", "-")) if one.label in labels else one for one in found]
    again = [one for one, n in Counter(one.saved.path.resolve() for one in made).items() if n > 1]
    if again:
        raise BadInput(f"{again[0]} is given twice.")
    return made
