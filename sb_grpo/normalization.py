"""VecNormalize's statistics as arrays: read without pickle, kept in the zip of the model that has learnt with them."""

from __future__ import annotations

import io
import json
from zipfile import BadZipFile

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb_grpo.types import Kwargs, SavedState, State

SETTINGS = ("training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon", "norm_obs_keys")
#: Settings that decide how an observation looks, beside the statistics.
OF_OBSERVATIONS = ("norm_obs", "norm_obs_keys", "clip_obs", "epsilon")
PARTS = ("mean", "var", "count")


class OtherObservations(ValueError):
    """VecNormalize's statistics are of other observations than those that they are to normalise."""


def statistics_to_bytes(vec_normalize: VecNormalize) -> bytes:
    """Settings and running statistics as the bytes of an ``.npz``."""
    settings = {name: getattr(vec_normalize, name) for name in SETTINGS}
    arrays = {"settings": np.array(json.dumps(settings))}
    for name, moments in _moments(vec_normalize).items():
        arrays |= {f"{name}/{part}": np.asarray(getattr(moments, part)) for part in PARTS}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def take_up(content: bytes, vec_normalize: VecNormalize | None) -> str | None:
    """Put saved statistics into a VecNormalize that has seen nothing yet. One that has keeps its own.

    :param content: of :func:`statistics_to_bytes`
    :param vec_normalize: of the env that a model is to have; None: it has none
    :return: the obstacle, as a sentence; None where there is none
    """
    try:
        arrays, settings = _read(content)
    except ValueError as error:
        return f"{error}. Those in the zip are left aside."
    if vec_normalize is None:
        if not settings.get("norm_obs"):
            return None
        return (
            "This model has learnt from observations that VecNormalize had normalised, but its env has no VecNormalize: wrap "
            "it, as in GRPO.load(path, env=VecNormalize(env)). The statistics in the zip are then put into it."
        )
    own = _moments(vec_normalize)
    if any(moments.count >= 1.0 for moments in own.values()):
        return None
    try:
        for name in sorted(own):
            if f"{name}/mean" in arrays:
                _fill(name, own[name], arrays)
    except ValueError as error:
        return f"{error} The zip's statistics are left aside: put VecNormalize where it was when the model was trained."
    other = next((name for name in OF_OBSERVATIONS if settings.get(name) != getattr(vec_normalize, name)), None)
    return other and (
        f"This model has learnt under VecNormalize with {other}={settings.get(other)!r}, but that of its env has "
        f"{getattr(vec_normalize, other)!r}, so that the policy sees other numbers: give it the same."
    )


def alone(content: bytes, observation_space: spaces.Space, action_space: spaces.Space) -> VecNormalize:
    """Saved statistics around no env, to normalise observations with.

    :param content: of :func:`statistics_to_bytes`
    :raises ValueError: as :func:`with_statistics`
    """
    return with_statistics(DummyVecEnv([lambda: _OfSpaces(observation_space, action_space)]), content, frozen=True)


class _OfSpaces(gym.Env):
    """An env that has spaces and nothing else."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space = observation_space
        self.action_space = action_space


def with_statistics(env: VecEnv, content: bytes, frozen: bool = False) -> VecNormalize:
    """Wrap an env in VecNormalize with saved settings and statistics.

    :param env: without VecNormalize
    :param content: of :func:`statistics_to_bytes`
    :param frozen: for showing and evaluating: statistics stay as they are and rewards are not normalised
    :raises ValueError: if they are broken
    :raises OtherObservations: if they are not of the env's
    """
    arrays, settings = _read(content)
    try:
        normalized = VecNormalize(env, **{name: settings[name] for name in SETTINGS})
        for name, moments in _moments(normalized).items():
            _fill(name, moments, arrays)
    except (KeyError, TypeError, OSError, AssertionError) as error:
        raise ValueError(f"VecNormalize's statistics do not fit this env: {error}") from error
    if frozen:
        normalized.training = normalized.norm_reward = False
    return normalized


def _read(content: bytes) -> tuple[dict[str, np.ndarray], Kwargs]:
    """Arrays by name, and settings, of :func:`statistics_to_bytes`.

    :raises ValueError: if they are something else
    """
    try:
        arrays = dict(np.load(io.BytesIO(content), allow_pickle=False))
        settings: Kwargs = json.loads(str(arrays["settings"]))
    except (KeyError, ValueError, TypeError, OSError, EOFError, BadZipFile) as error:
        raise ValueError("VecNormalize's statistics do not fit: they are broken, or something else") from error
    return arrays, settings


def running_state(vec_normalize: VecNormalize) -> State:
    """Copies of all that changes in it from step to step: moments, and the running returns of the envs."""
    moments = {
        name: {part: np.array(getattr(found, part)) for part in PARTS} for name, found in _moments(vec_normalize).items()
    }
    return {"moments": moments, "returns": vec_normalize.returns.copy()}


def put_running_state(vec_normalize: VecNormalize, state: SavedState) -> None:
    """Put :func:`running_state` back, as often as need be.

    :raises OtherObservations: if it is of others
    """
    for name, found in _moments(vec_normalize).items():
        _fill(name, found, {f"{name}/{part}": array for part, array in state["moments"][name].items()})
    vec_normalize.returns = state["returns"].copy()


def _fill(name: str, moments: RunningMeanStd, arrays: dict[str, np.ndarray]) -> None:
    mean = arrays[f"{name}/mean"]
    var = arrays[f"{name}/var"]
    if mean.shape != moments.mean.shape or var.shape != moments.var.shape:
        raise OtherObservations(
            f"VecNormalize's statistics {name} have shape {mean.shape}, but this env needs {moments.mean.shape}."
        )
    moments.mean = mean
    moments.var = var
    moments.count = float(arrays[f"{name}/count"])


def _moments(vec_normalize: VecNormalize) -> dict[str, RunningMeanStd]:
    """Every running mean and variance by name."""
    found = {"returns": vec_normalize.ret_rms}
    if not vec_normalize.norm_obs:
        return found
    if isinstance(vec_normalize.obs_rms, dict):
        return found | {f"observations/{key}": moments for key, moments in vec_normalize.obs_rms.items()}
    return found | {"observations": vec_normalize.obs_rms}
