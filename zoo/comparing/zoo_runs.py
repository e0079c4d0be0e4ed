"""Curves of run folders: evaluations and training episodes of a run and its predecessors."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from stable_baselines3.common.monitor import load_results

from ..common.command_line import BadInput
from ..training.checkpoints import read_facts
from ..training.run_files import read_run_files, read_values, settings_folder_of

RETURN = "return"
#: Quantity of an episode -> column of monitor files, array of evaluations.npz.
COLUMNS = {RETURN: ("r", "results"), "length": ("l", "ep_lengths"), "success": ("is_success", "successes")}


def _options(folder: Path, name: str = "args.yml") -> dict[str, object]:
    file = next(iter(folder.glob(f"*/{name}")), None)
    try:
        return {} if file is None else read_values(file)
    except BadInput:  # check_settings names it
        return {}


def check_settings(chain: Sequence[Path], trusted: bool) -> None:
    """Check that the runs' settings can be read.

    :raises BadInput: naming the first file that cannot be read
    """
    for run in chain:
        read_run_files(settings_folder_of(run), trusted)


def env_of(folder: Path) -> str:
    """Env of a run, from its options or its folder's name."""
    return str(_options(folder).get("env") or re.sub(r"_\d+(_[0-9a-f-]{36})?$", "", folder.name))


def went_on_from(folder: Path) -> Path | None:
    """Model that a run of ``--continue`` began with; None for other runs, and if it is missing.

    A run stores the path as given, which may be relative to another working directory; the folders may have been moved
    together.
    """
    options = _options(folder)
    if not options.get("continue_run"):
        return None
    model = Path(str(options.get("trained_agent") or ""))
    beside = Path(model.parent.name, model.name)
    places = [*(above / model for above in folder.resolve().parents), model, folder.resolve().parent / beside]
    return next((place.resolve() for place in places if place.is_file()), None)


def chains(folder: Path, trusted: bool = True) -> list[list[Path]]:
    """Find run folders at or below a folder, each after its predecessors, which are not listed separately.

    :param folder: of a run, or of runs
    :param trusted: False: without predecessors, because their paths may lead anywhere
    """
    found = {file.parent.resolve() for pattern in ("evaluations.npz", "*monitor.csv") for file in folder.rglob(pattern)}
    made = []
    for run in sorted(found):
        chain = [run]
        while trusted and (model := went_on_from(chain[0])) is not None and model.parent not in chain:
            chain.insert(0, model.parent)
        made.append(chain)
    begun = {part for chain in made for part in chain[:-1]}
    return [chain for chain in made if chain[-1] not in begun]


def first_steps(chain: Sequence[Path], trusted: bool = True) -> list[int]:
    """Env steps at the beginning of each run in a chain."""
    if not trusted:
        return [0] * len(chain)
    facts = [read_facts(model) if (model := went_on_from(run)) else None for run in chain]
    return [int(known["env_steps"]) if known else 0 for known in facts]


def evaluations(chain: Sequence[Path], y: str, trusted: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read the evaluations of a chain, of each run up to the beginning of the next.

    :param y: key of :data:`COLUMNS`
    :return: ``[C]`` steps, ``[C]`` means, ``[E, C]`` of their episodes; empty where there are none
    """
    steps: list[np.ndarray] = []
    results: list[np.ndarray] = []
    ends = [*first_steps(chain, trusted)[1:], np.inf]
    for run, end in zip(chain, ends, strict=True):
        if not (run / "evaluations.npz").exists():
            continue
        with np.load(run / "evaluations.npz") as data:
            values = data[COLUMNS[y][1]] if COLUMNS[y][1] in data else np.empty((0, 0))
            if len(values) == len(data["timesteps"]):
                steps.append(data["timesteps"][data["timesteps"] <= end])
                results.append(np.asarray(values, dtype=float)[data["timesteps"] <= end])
    if not steps:
        return np.empty(0), np.empty(0), np.empty((0, 0))
    episodes = min(r.shape[1] for r in results)
    samples = np.concatenate([r[:, :episodes] for r in results]).T
    return np.concatenate(steps), np.concatenate([r.mean(axis=1) for r in results]), samples


def training(chain: Sequence[Path], y: str, window: float, trusted: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Running mean over the training episodes of a chain.

    :param y: key of :data:`COLUMNS`
    :param window: share of the episodes, at most 100
    :return: ``[N]`` steps, ``[N]`` means; empty where there are none
    """
    parts = []
    starts = first_steps(chain, trusted)
    for run, start, end in zip(chain, starts, [*starts[1:], np.inf], strict=True):
        if not any(run.glob("*monitor.csv")):
            continue
        episodes: pd.DataFrame = load_results(str(run))
        if COLUMNS[y][0] in episodes:
            steps = start + episodes["l"].cumsum().to_numpy()
            values = episodes[COLUMNS[y][0]].to_numpy(dtype=float)
            parts.append((steps[steps <= end], values[steps <= end]))
    if not parts or not sum(len(steps) for steps, _ in parts):
        return np.empty(0), np.empty(0)
    steps, values = (np.concatenate(side) for side in zip(*parts, strict=True))
    n = max(1, min(100, int(window * len(values))))
    return steps[n - 1 :], pd.Series(values).rolling(n).mean().to_numpy()[n - 1 :]


def differences(runs: Mapping[Path, tuple[str, str]]) -> dict[Path, str]:
    """Describe the settings in which runs of one env and algorithm differ; empty text without differences.

    :param runs: folder, or result file of ``zoo.benchmark`` -> env and algorithm
    """
    groups: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for folder, key in runs.items():
        if folder.is_dir():  # result files have no settings
            groups[key].append(folder)
    said = dict.fromkeys(runs, "")
    for folders in groups.values():
        settings = {folder: _options(folder, "config.yml") for folder in folders}
        known = {name for of in settings.values() for name in of} - {"n_timesteps"}
        varied = sorted(name for name in known if len({repr(of.get(name)) for of in settings.values()}) > 1)
        for folder, of in settings.items():
            said[folder] = " ".join(f"{name}={of.get(name, 'default')}" for name in varied)
    return said
