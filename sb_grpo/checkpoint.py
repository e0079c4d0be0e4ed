"""Exact resume: a run is saved between two rollouts with all that decides its future, and goes on bit by bit.

A run's file is a model's zip with one more entry: tensors, numbers and text, which are read without unpickling anything.
Functions on a model whose state they gather or put back; the model's own methods call them.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sb_grpo import distributed
from sb_grpo.callback_states import put_states, states_of
from sb_grpo.collect.groups import HostGroups
from sb_grpo.collect.host_steps import give_up
from sb_grpo.collect.masks import check_same_masks, source_of
from sb_grpo.envs.installing import facts
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.normalization import put_running_state, running_state
from sb_grpo.save_util import lr_schedule_in, read_entry, with_entries, write_zip
from sb_grpo.state import (
    NoPlainForm,
    attributes,
    check_random_state,
    pack,
    put_attributes,
    put_random_state,
    put_state,
    random_state,
    state_of,
    unpack,
)
from sb_grpo.types import File, Kwargs, SavedState, Settings, State

#: Entries of the zip: the state, and a checksum of it. A value that was changed would be another error much later.
RUN = "run.pt"
CHECKSUM = "run.sha256"
#: Attributes that the zip of a model leaves out, or pickles, and a run needs.
ATTRIBUTES = (
    "ep_info_buffer", "ep_success_buffer", "last_metrics", "_last_obs", "_last_episode_starts", "_warned_of_masks",
    "_rows_checked", "_total_timesteps", "_time_limit", "_base_seed", "start_time", "mask_source",
)  # fmt: skip
#: Parts of a model that learn beside the policy.
TRAINABLE_PARTS = ("estimator", "grouper", "group_weighting", "bonus")

# ---------------------------------------------------------------- save


def save_run(model: Any, path: File) -> None:
    """Write the file of a run, or, in mid-rollout, note that it is due when the rollout has been learnt from.

    :raises ValueError: before the first rollout, with several learners, and for state that has no plain form
    """
    if distributed.world().size > 1:
        raise ValueError("save_run() saves the run of one learner: with several use save(), which all can be loaded from.")
    if model.groups is None:
        raise ValueError("Nothing has been collected yet, so there is no run to save: use save(), or call learn() before.")
    if model._in_rollout:
        model._runs_due.append(path)
    else:
        _write_run(model, path)


def write_due_runs(model: Any) -> None:
    """Write the files that have waited for the end of a rollout, which has been learnt from."""
    for path in _leave_rollout(model):
        _write_run(model, path)


def give_up_due_runs(model: Any) -> None:
    """Warn of each file that is not written, as something has broken off before the rollout was learnt from."""
    for path in _leave_rollout(model):
        warnings.warn(
            f"save_run({path!r}) has written nothing: the rollout that it waited for was not learnt from. Call it again, "
            "or use save().",
            UserWarning,
            stacklevel=3,
        )


def _leave_rollout(model: Any) -> list[File]:
    due: list[File] = model._runs_due
    model._in_rollout = False
    model._runs_due = []
    return due


def _write_run(model: Any, path: File) -> None:
    content = run_to_bytes(run_state(model))
    zipped = io.BytesIO()
    model.save(zipped)
    write_zip(path, with_entries(zipped.getvalue(), run_entries(content)))


def run_state(model: Any) -> State:
    """Gather everything that neither the arguments nor the zip of a model hold."""
    normalized = model._vec_normalize_env
    return {
        "facts": facts_of(model.env, model.observation_space, model.action_space, model.device)._asdict(),
        "own": attributes(model, ATTRIBUTES),
        "trainable_parts": {name: state_of(getattr(model, name)) for name in TRAINABLE_PARTS},
        "buffer": model.rollout_buffer.state_dict(with_seen=model.policy.normalize_obs),
        "groups": model.groups.state_dict(),
        "simulator": simulator_of(model.env),
        "normalized": None if normalized is None else running_state(normalized),
        "action_space": model.action_space.np_random.bit_generator.state,
        "loop": loop_state(model) if model._to_resume is None else model._to_resume["loop"],
    }


def loop_state(model: Any) -> State:
    """Gather the state that the loop of ``learn`` takes up when all else is in its place."""
    folder = None if model.tensorboard_log is None else model.logger.dir
    return {
        "iteration": model._iteration,
        "restart_groups": model._restart_groups,
        "callbacks": states_of(model._callback_in_use),
        "logged": logged(model._logger) if hasattr(model, "_logger") else None,
        "folder": str(Path(folder).absolute()) if folder else None,
        "random": random_state(),
    }


def simulator_of(env: VecEnv) -> State | None:
    """Return the state of an env that can be copied; None where it cannot."""
    try:
        return env.state_dict() if isinstance(env, TensorVecEnv) else None
    except NotImplementedError:
        return None


# ---------------------------------------------------------------- load


def load_run(
    cls: Any, path: File, env: GymEnv, device: th.device | str, custom_objects: Kwargs | None, trusted: bool, kwargs: Kwargs
) -> Any:
    """Load the model of a run and put the run's state into it.

    :param cls: class of the model
    :param kwargs: further arguments of ``load``
    :raises ValueError: for a file that is no run, is broken, or does not go with the env
    """
    others = set(kwargs) - {"verbose", "tensorboard_log"}
    if others:
        raise ValueError(
            f"load_run() goes on with the run's own arguments, so it takes no {sorted(others)[0]}: use "
            "GRPO.load(path, env, ...), which takes others and begins new groups."
        )
    if distributed.announced().size > 1:
        raise ValueError("load_run() goes on with one learner: start the script without torchrun, or use GRPO.load().")
    state = read_run(path, device)
    wrapped = cls._wrap_env(env)
    check_facts(path, state["facts"], wrapped)
    model = cls.load(path, wrapped, state["facts"]["device"], custom_objects, trusted=trusted, **kwargs)
    if trusted and "learning_rate" not in (custom_objects or {}):
        model.lr_schedule = lr_schedule_in(path, custom_objects) or model.lr_schedule
    try:
        put_run_state(model, state)
        check_random_state(state["loop"]["random"])
    except (KeyError, IndexError, AttributeError, TypeError, RuntimeError, OverflowError, AssertionError) as error:
        raise ValueError(
            f"The state of the run in {path} does not fit its model ({type(error).__name__}: {error}): it was written by "
            "another version of sb_grpo; use GRPO.load(path, env), which needs the model alone."
        ) from error
    return model


def put_run_state(model: Any, state: State) -> None:
    """Put :func:`run_state` into a model: all of it but the part that :func:`enter_loop` takes up."""
    found = model.mask_source
    run = state["own"]["mask_source"]
    check_same_masks(run, run if run == "info" else found)  # those in infos are found when the env has been reset
    put_attributes(model, ATTRIBUTES, state["own"])
    for name in TRAINABLE_PARTS:
        put_state(getattr(model, name), state["trainable_parts"][name])
    if model.mask_source != found:
        model._make_buffer()
    model.rollout_buffer.load_state_dict(state["buffer"])
    model.action_space.np_random.bit_generator.state = state["action_space"]
    if state["simulator"] is not None:
        model.env.load_state_dict(state["simulator"])
    model._new_groups().load_state_dict(state["groups"], model.env)
    if isinstance(model.env, TensorVecEnv) and state["simulator"] is None and not state["loop"]["restart_groups"]:
        model._last_obs = None  # learn() begins new groups
    _put_statistics(model, state["normalized"])
    model._to_resume = state


def _put_statistics(model: BaseAlgorithm, normalized: State | None) -> None:
    if model._vec_normalize_env is not None and normalized is not None:
        put_running_state(model._vec_normalize_env, normalized)


# ---------------------------------------------------------------- go on


def steps_to_go(model: Any) -> int:
    """Return the env steps that a loaded run lacks.

    :raises ValueError: without a run that has been loaded
    """
    if model._to_resume is None:
        raise ValueError("There is no run to resume: load one with GRPO.load_run(path, env), or call learn().")
    return max(int(model._to_resume["own"]["_total_timesteps"]) - int(model.num_timesteps), 0)


def reopen_logger(model: Any) -> None:
    """Log into the TensorBoard folder of the loaded run, if it is still there."""
    folder = model._to_resume["loop"]["folder"]
    if not model._custom_logger and model.tensorboard_log is not None and folder is not None and Path(folder).is_dir():
        model.set_logger(configure(folder, ["stdout", "tensorboard"] if model.verbose else ["tensorboard"]))


def enter_loop(model: Any, callback: BaseCallback) -> None:
    """Begin a loop, with all that the loop of a loaded run knew. Random numbers come last, as setting up draws some."""
    state = model._to_resume
    model._iteration = 0
    if state is None:
        return
    loop = state["loop"]
    put_states(callback, loop["callbacks"])
    model._iteration = loop["iteration"]
    model._restart_groups = loop["restart_groups"]
    if model._last_obs is not None and isinstance(model.groups, HostGroups):
        _begin_episodes_again(model, model.groups, state["normalized"])
    put_logged(model.logger, loop["logged"])
    put_random_state(loop["random"])
    model._to_resume = None


def _begin_episodes_again(model: Any, groups: HostGroups, normalized: State | None) -> None:
    """Host envs have lost their episodes: those that had only started start again, others end where they were.

    :param normalized: statistics that have seen the starts already
    """
    if groups.at_starts or model._restart_groups:
        groups.begin_again(model.env)
        check_same_masks(model.mask_source, source_of(model.env))
        model.extra_inputs.see(model.env)
        _put_statistics(model, normalized)
        return
    model.interruptions += 1
    dropped, _ = give_up(groups, model.rollout_buffer, model.extra_inputs, model._last_obs, model.whole_episodes)
    model._steps_dropped += dropped
    model.start_episodes()


# ---------------------------------------------------------------- the entry of the zip


class Facts(NamedTuple):
    """Facts about env and device that must be as they were."""

    env: str
    tensor_env: bool
    n_envs: int
    observation_space: str
    action_space: str
    vec_normalize: bool
    device: str


def facts_of(env: VecEnv, observation_space: spaces.Space, action_space: spaces.Space, device: th.device) -> Facts:
    """Gather the facts of a run."""
    is_tensor_env = isinstance(env.unwrapped, TensorVecEnv)
    name = facts(env)[0] or (type(env.unwrapped).__name__ if is_tensor_env else "not registered")
    normalized = unwrap_vec_normalize(env) is not None
    return Facts(name, is_tensor_env, env.num_envs, str(observation_space), str(action_space), normalized, device.type)


def check_facts(path: File, run: Settings, env: VecEnv) -> None:
    """Check that an env is like a run's env.

    :param path: of the run, for the message
    :param run: :class:`Facts` by name
    :raises ValueError: naming the difference
    """
    now = facts_of(env, env.observation_space, env.action_space, th.device(run["device"]))._asdict()
    for name, value in run.items():
        if now[name] != value:
            raise ValueError(
                f"The run in {path} had {name}={value}, but here it is {now[name]}: build the env as the run's was built; "
                "on another one a loaded model (GRPO.load) can begin a new run."
            )


def run_to_bytes(state: SavedState) -> bytes:
    """A state as the content of the entry.

    :raises ValueError: naming a value that has no plain form
    """
    file = io.BytesIO()
    try:
        th.save(pack(state), file)
    except NoPlainForm as error:
        raise ValueError(
            f"This run cannot be saved, as a part of its state is no plain value: {error}. Keep tensors, arrays, numbers and "
            "text in such attributes, or give the object state_dict() and load_state_dict(state)."
        ) from error
    return file.getvalue()


def run_entries(content: bytes) -> dict[str, bytes]:
    """Entries of the zip by name.

    :param content: of :func:`run_to_bytes`
    """
    return {RUN: content, CHECKSUM: hashlib.sha256(content).hexdigest().encode()}


def read_run(path: File, device: th.device | str = "auto") -> State:
    """The state of a run.

    :param path: of the zip, or a file that is open for reading
    :param device: where it is to go on
    :raises ValueError: if there is none, if it is broken, or from another kind of device
    """
    found: Any = path
    if not hasattr(path, "read"):
        found = next((p for p in (Path(path), Path(f"{path}.zip")) if p.is_file()), None)
        if found is None:
            raise ValueError(f"There is no file {path}: model.save_run(path) writes one.")
    content = read_entry(found, RUN)
    if content is None and read_entry(found, "data") is None:  # half of a zip may end where a zip within it does
        raise ValueError(f"{path} is broken, or no zip that SB3 or sb_grpo has written.")
    if content is None:
        raise ValueError(
            f"{path} holds a model, but no run: go on with GRPO.load(path, env), which begins new groups; runs are what "
            "model.save_run(path) writes."
        )
    if read_entry(found, CHECKSUM) != run_entries(content)[CHECKSUM]:
        raise ValueError(
            f"The state of the run in {path} is broken, or not of save_run(): its checksum is another one, so it was changed. "
            "Use the file as it was saved, or begin a new run with GRPO.load(path, env), which needs the model alone."
        )
    to = get_device(device)
    try:
        state = th.load(
            io.BytesIO(content),
            weights_only=True,
            map_location=lambda x, at: x if at == "cpu" else x.to(to),  # type: ignore
        )
        whole: State = unpack(state)
        device_then = {name: whole["facts"][name] for name in Facts._fields}["device"]
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"The state of the run in {path} is broken, or not of save_run(): {reason:.200}") from error
    if device_then != to.type:
        raise ValueError(
            f"The run in {path} was on {device_then}, and cannot go on bit by bit on {to.type}: pass "
            f"device={device_then!r}, or begin a new run with GRPO.load(path, env)."
        )
    return whole


def logged(logger: Logger) -> State:
    """Return the metrics that have been recorded, and wait to be written with those of the next rollout."""
    values = {
        name: value for name, value in logger.name_to_value.items() if isinstance(value, int | float | np.generic | th.Tensor)
    }
    return {name: (value, logger.name_to_count[name], logger.name_to_excluded.get(name, ())) for name, value in values.items()}


def put_logged(logger: Logger, waiting: SavedState | None) -> None:
    """Let a logger wait with the metrics of another one, and with no others."""
    logger.name_to_value.clear()
    logger.name_to_count.clear()
    logger.name_to_excluded.clear()
    for name, (value, count, excluded) in (waiting or {}).items():
        logger.name_to_value[name] = value
        logger.name_to_count[name] = count
        logger.name_to_excluded[name] = excluded
