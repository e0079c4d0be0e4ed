"""The models that are evaluated: run folders and zips of the command line, with what their runs say of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import rl_zoo3

from sb_grpo.save_util import read_entry

from ..common.command_line import BadInput
from ..comparing.curves import DAMAGED
from ..training.run_files import is_run_folder, read_values
from ..training.saved import Saved, check_untrusted

T = TypeVar("T")


@dataclass(frozen=True)
class Contestant:
    """A saved model under a name.

    :param saved: where it is
    :param label: of the algorithm, or as the user calls it; models of one label differ by their seeds
    :param name: of this very model
    :param seed: of its training
    :param folder: of its run
    """

    saved: Saved
    label: str
    name: str
    seed: int
    folder: Path

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """``metrics.json`` of the run; empty where there is none that can be read, as of a run that was killed."""
        return self._read("metrics.json", lambda file: dict(json.loads(file.read_text()))) or {}

    @cached_property
    def curve(self) -> tuple[np.ndarray, np.ndarray] | None:
        """``[C]`` steps and ``[C, E]`` returns of the evaluations during training; None where none can be read."""

        def read(file: Path) -> tuple[np.ndarray, np.ndarray]:
            with np.load(file) as data:
                return data["timesteps"], data["results"]

        return self._read("evaluations.npz", read)

    def _read(self, name: str, read: Callable[[Path], T]) -> T | None:
        """What a file of the run holds; None where it is missing. A damaged one is named, and costs its own figures alone."""
        file = self.folder / name
        try:
            return read(file) if file.exists() else None
        except DAMAGED as error:
            print(f"{file} is left out: it cannot be read ({type(error).__name__}: {error})", file=sys.stderr)
            return None


def run_folders(path: Path) -> list[Path]:
    """The run folders at or below a folder, in order."""
    return [path] if is_run_folder(path) else sorted({file.parent.parent for file in path.rglob("*/*/config.yml")})


def is_saved(text: str) -> bool:
    """Whether an argument without results is about saved models: ``LABEL=PATH``, a zip, or a folder that holds runs."""
    path = Path(text)
    return "=" in text if not path.exists() else path.suffix == ".zip" or bool(run_folders(path))


def find(texts: Sequence[str], best: bool, algo: str | None, env_id: str | None, trusted: bool = True) -> list[Contestant]:
    """Models of the command line.

    :param texts: ``[LABEL=]PATH``: a run folder, a folder of them, or a model's zip
    :param best: of a run folder, the best model in place of the last
    :param algo: of zips that stand alone
    :param env_id: in place of the runs' own
    :param trusted: False: nothing that the files hold is unpickled
    :raises BadInput: for what is no model, and for models that cannot be read without unpickling
    """
    found: list[Contestant] = []
    for text in texts:
        named = "=" in text and not Path(text).exists()
        label, place = text.split("=", 1) if named else ("", text)
        path = Path(place)
        folders = [path.parent] if path.suffix == ".zip" else run_folders(path)
        if not path.exists() or not folders:
            raise BadInput(f"{text}: there is no such {'file' if path.suffix == '.zip' else 'run folder'}.")
        for folder in folders:
            model = path if path.suffix == ".zip" else None
            found.append(_contestant(folder, model, best, algo, env_id, label, trusted))
    return _told_apart(found)


def _contestant(
    folder: Path, model: Path | None, best: bool, algo: str | None, env_id: str | None, label: str, trusted: bool
) -> Contestant:
    settings = next((file.parent for file in folder.glob("*/config.yml")), folder / "none")
    args = read_values(settings / "args.yml")
    algo, env_id = algo or args.get("algo"), env_id or args.get("env")
    path = model or folder / ("best_model.zip" if best else f"{settings.name}.zip")
    if algo is None or env_id is None:
        raise BadInput(f"{path}: no run stands beside it, so say --algo and --env.")
    if algo not in rl_zoo3.ALGOS:
        raise BadInput(f"{path}: unknown algorithm {algo!r}.")
    if not path.exists():
        raise BadInput(f"{folder} holds no {path.name}; there are {sorted(file.name for file in folder.glob('*.zip'))}.")
    try:
        read_entry(path, "data")
    except ValueError as error:
        raise BadInput(f"cannot load {path}: {error}") from error
    check_untrusted(algo, trusted)
    name, seed = folder.name if model is None and not best else f"{folder.name}/{path.stem}", int(args.get("seed") or 0)
    return Contestant(Saved(algo, path, settings, env_id, trusted), label or algo, f"{algo} {name}", seed, folder)


def _told_apart(found: list[Contestant]) -> list[Contestant]:
    """Models of one label and seed are of different kinds: each gets a label of its own."""
    twice = {key for key, n in Counter((one.label, one.seed) for one in found).items() if n > 1}
    labels = {one.label for one in found if (one.label, one.seed) in twice}
    made = [replace(one, label=one.name.replace(" ", "-").replace("/", "-")) if one.label in labels else one for one in found]
    again = [one for one, n in Counter(one.saved.path.resolve() for one in made).items() if n > 1]
    if again:
        raise BadInput(f"{again[0]} is given twice.")
    return made
