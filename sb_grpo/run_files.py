"""The file of a run: the entry that a model's zip has then, and what is checked before it is used. Nothing is unpickled."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sb_grpo.envs.installing import facts
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.saving import read_entry
from sb_grpo.state import NoPlainForm, pack, unpack

#: Entries of the zip: the state, and a checksum of it. A value that was changed would be another error much later.
RUN, CHECKSUM = "run.pt", "run.sha256"


class Facts(NamedTuple):
    """What has to be as it was."""

    env: str
    tensor_env: bool
    n_envs: int
    observation_space: str
    action_space: str
    vec_normalize: bool
    device: str


def facts_of(env: VecEnv, observation_space: spaces.Space, action_space: spaces.Space, device: th.device) -> Facts:
    """What a run is made on."""
    is_tensor_env = isinstance(env.unwrapped, TensorVecEnv)
    name = facts(env)[0] or (type(env.unwrapped).__name__ if is_tensor_env else "not registered")
    normalized = unwrap_vec_normalize(env) is not None
    return Facts(name, is_tensor_env, env.num_envs, str(observation_space), str(action_space), normalized, device.type)


def check_facts(path: Any, run: Mapping[str, Any], env: VecEnv) -> None:
    """Check that an env is what a run's env was.

    :param path: of the run, for the message
    :param run: :class:`Facts` by name
    :raises ValueError: naming what differs
    """
    now = facts_of(env, env.observation_space, env.action_space, th.device(run["device"]))._asdict()
    for name, value in run.items():
        if now[name] != value:
            raise ValueError(
                f"The run in {path} had {name}={value}, but here it is {now[name]}: build the env as the run's was built; "
                "on another one a loaded model (GRPO.load) can begin a new run."
            )


def run_to_bytes(state: Mapping[str, Any]) -> bytes:
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


def read_run(path: Any, device: Any = "auto") -> dict[str, Any]:
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
        whole: dict[str, Any] = unpack(state)
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


def logged(logger: Logger) -> dict[str, Any]:
    """Figures that have been recorded, and wait to be written with those of the next rollout."""
    values = {
        name: value for name, value in logger.name_to_value.items() if isinstance(value, int | float | np.generic | th.Tensor)
    }
    return {name: (value, logger.name_to_count[name], logger.name_to_excluded.get(name, ())) for name, value in values.items()}


def put_logged(logger: Logger, waiting: Mapping[str, Any] | None) -> None:
    """Let a logger wait with the figures of another one, and with no others."""
    logger.name_to_value.clear()
    logger.name_to_count.clear()
    logger.name_to_excluded.clear()
    for name, (value, count, excluded) in (waiting or {}).items():
        logger.name_to_value[name], logger.name_to_count[name] = value, count
        logger.name_to_excluded[name] = excluded
