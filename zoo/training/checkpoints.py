"""Complete checkpoints: one zip holds the weights, VecNormalize's statistics and facts about the run.

A zip is written in one step, so its parts always belong together. ``checkpoint.json`` in it is read with any unzip program.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypedDict

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.logger import TensorBoardOutputFormat
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb_grpo import files
from sb_grpo.normalization import statistics_to_bytes, with_statistics
from sb_grpo.save_util import PLAIN, STATISTICS, read_entry, with_entries, write_zip

from ..common.command_line import BadInput
from ..common.episodes import Counting, Locals
from ..common.plain_files import Hyperparams, to_json
from ..common.provenance import commit, versions

FACTS = "checkpoint.json"
LAST_STATISTICS = "vecnormalize.pkl"


class Facts(TypedDict, total=False):
    """Facts about a run in its checkpoints."""

    step: int
    env_steps: int
    updates: int
    mean_return: float | None
    tensorboard: str | None
    evaluated: float  #: of the best model alone
    settings_sha256: str
    commit: str | None
    versions: dict[str, str]


#: Function of the path of a model and its facts.
Keep = Callable[[Path, Facts], None]


def facts(model: BaseAlgorithm, settings: Hyperparams, evaluated: float | None = None) -> Facts:
    """Current facts about a run.

    :param model: in training
    :param settings: of the run
    :param evaluated: mean return of the evaluation that the checkpoint belongs to
    """
    returns = [episode["r"] for episode in model.ep_info_buffer or []]
    provenance = _provenance()
    known: Facts = {
        "step": model.num_timesteps // model.n_envs,
        "env_steps": model.num_timesteps,
        "updates": model._n_updates,
        "mean_return": float(np.mean(returns)) if returns else None,
        "tensorboard": tensorboard_of(model),
        "settings_sha256": hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest(),
        "commit": provenance[0],
        "versions": provenance[1],
    }
    if evaluated is not None:
        known["evaluated"] = evaluated
    return known


def tensorboard_of(model: BaseAlgorithm) -> str | None:
    """Name of the folder that the model's scalars go to; None where they go to none, as before training has begun."""
    if not hasattr(model, "_logger"):
        return None
    writers = [to for to in model.logger.output_formats if isinstance(to, TensorBoardOutputFormat)]
    return Path(model.logger.get_dir() or "").name if writers else None


@cache
def _provenance() -> tuple[str | None, dict[str, str]]:
    """Provenance of the code at the first checkpoint; it does not change later."""
    return commit(), versions()


def save(model: BaseAlgorithm, path: Path, known: Facts) -> None:
    """Write a whole checkpoint, of any algorithm of SB3's.

    :param model: to save
    :param path: of the zip
    :param known: of :func:`facts`
    """
    file = io.BytesIO()
    model.save(file)
    entries = {FACTS: (to_json(known, indent=2) + "\n").encode()}
    vec_normalize = model.get_vec_normalize_env()
    if vec_normalize is not None and read_entry(file, STATISTICS) is None:
        entries[STATISTICS] = statistics_to_bytes(vec_normalize)
    write_zip(path, with_entries(file.getvalue(), entries))


def read_facts(path: Path) -> Facts | None:
    """Read a checkpoint's facts; None for other zips."""
    content = read_entry(path, FACTS)
    known: Facts | None = None if content is None else json.loads(content)
    if known is not None and not isinstance(known.get("env_steps"), int):
        raise ValueError(f"{path}: {FACTS} has env_steps={known.get('env_steps')!r:.80}, which is no number of steps")
    return known


def _save_and_keep(model: BaseAlgorithm, path: Path, known: Facts, keep: Keep | None) -> None:
    save(model, path, known)
    if keep is not None:
        keep(path, known)


class Checkpoints(BaseCallback):
    """Save a complete checkpoint every ``every`` vector steps, as ``rl_model_<env steps>_steps.zip``.

    :param every: vector steps
    :param folder: of the run
    :param settings: of the run
    :param keep: called with each file and its facts
    """

    rank_0_only = True

    def __init__(self, every: int, folder: Path, settings: Hyperparams, keep: Keep | None = None) -> None:
        super().__init__()
        self.every = every
        self.folder = folder
        self.settings = settings
        self.keep = keep

    def _on_step(self) -> bool:
        if self.n_calls % self.every == 0:
            path = self.folder / f"rl_model_{self.num_timesteps}_steps.zip"
            _save_and_keep(self.model, path, facts(self.model, self.settings), self.keep)
        return True


class BestModel(BaseCallback):
    """Save a complete checkpoint as ``best_model.zip``; an EvalCallback calls it after the best evaluation so far.

    :param folder: of the run
    :param settings: of the run
    :param keep: called with the file and its facts
    """

    def __init__(self, folder: Path, settings: Hyperparams, keep: Keep | None = None) -> None:
        super().__init__()
        self.folder = folder
        self.settings = settings
        self.keep = keep

    def _on_step(self) -> bool:
        assert isinstance(self.parent, EvalCallback)
        known = facts(self.model, self.settings, evaluated=float(self.parent.best_mean_reward))
        _save_and_keep(self.model, self.folder / "best_model.zip", known, self.keep)
        return True


class Evaluations(EvalCallback):
    """SB3's EvalCallback, whose ``evaluations.npz`` is replaced in one step.

    :param env: for evaluation
    :param folder: of the run
    :param best: called after the best evaluation so far; then as in EvalCallback
    """

    def __init__(
        self, env: VecEnv, folder: Path, best: BaseCallback, n_eval_episodes: int, eval_freq: int, deterministic: bool
    ) -> None:
        super().__init__(env, best, None, n_eval_episodes, eval_freq, str(folder), deterministic=deterministic)
        self.finished = folder / "evaluations.npz"
        self.log_path = str(folder / ".evaluations.part")  # to which np.savez adds .npz

    def _log_success_callback(self, locals_: Locals, globals_: Locals) -> None:
        super()._log_success_callback(locals_, globals_)
        self.counting(locals_, globals_)

    def _on_step(self) -> bool:
        self.counting = Counting()
        going_on = super()._on_step()
        unfinished = Path(f"{self.log_path}.npz")
        if unfinished.exists():
            files.move(unfinished, self.finished)
        return going_on


#: Wraps an env in the statistics of a model; the second argument: frozen.
Normalize = Callable[[VecEnv, bool], VecEnv]


def statistics_of(model: Path, settings_folder: Path, normalized: bool, trusted: bool) -> Normalize | None:
    """Find the VecNormalize statistics of a model.

    :param model: zip of the model
    :param settings_folder: of its run, with rl_zoo3's copy
    :param normalized: the run's settings ask for VecNormalize
    :param trusted: statistics may be unpickled
    :return: function that wraps an env in them; None: the model was trained without
    :raises BadInput: if they are missing, or only pickled in a run that is not trusted
    """
    try:
        content = read_entry(model, STATISTICS)
        whole = any(read_entry(model, name) is not None for name in (FACTS, PLAIN))
    except ValueError as error:
        raise BadInput(f"cannot load {model}: {error}") from error
    if content is not None:
        found = content
        return lambda env, frozen: with_statistics(env, found, frozen)
    if whole or not normalized:
        return None
    pickled = _pickled_statistics(model, settings_folder)
    if pickled is None or not pickled.exists():
        raise BadInput(
            f"{model}: the run normalises with VecNormalize, but the statistics that belong to these weights were not kept; "
            "with those of another time the agent would act on other observations than it has learnt from."
        )
    if not trusted:
        raise BadInput(f"--untrusted: the statistics of {model} are pickled, in {pickled}.")
    return lambda env, frozen: _unpickled(pickled, env, frozen)


def _pickled_statistics(model: Path, settings_folder: Path) -> Path | None:
    """File in which rl_zoo3 or SB3's CheckpointCallback keeps the statistics of a model."""
    if model.name.startswith("rl_model_") and model.name.endswith("_steps.zip"):
        return model.with_name(f"rl_model_vecnormalize_{model.stem.split('_')[-2]}_steps.pkl")
    return settings_folder / LAST_STATISTICS if model.stem == settings_folder.name else None


def _unpickled(path: Path, env: VecEnv, frozen: bool) -> VecNormalize:
    normalized = VecNormalize.load(str(path), env)
    if frozen:
        normalized.training = normalized.norm_reward = False
    return normalized
