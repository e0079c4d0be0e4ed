"""Where the masks of an env come from: a method of it, its infos, its observations; a property of a tensor env."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.policies.beside import MASK
from sb_grpo.policies.masks import checked, choices_of

METHOD = "action_masks"  #: sb3-contrib's name for it
#: Sources whose masks observations do not hold.
APART = ("method", "info", "tensor")

#: What ``predict`` says where nobody told it which actions are valid, and where they came from in training.
UNTOLD = (
    "predict() was not told which actions are valid, so it may choose others: this policy has learnt with masks ({source}). "
    "Pass predict(obs, action_masks=...), or put them into the observation (docs/masks.md)."
)


def source_of(env: VecEnv) -> str | None:
    """Where the masks of an env come from, first that is there: ``"tensor"``, ``"method"``, ``"info"``, ``"observation"``.

    :return: None where it has none; those in infos are known when it has been reset
    :raises ValueError: for masks of Box actions, and for masks that a wrapper drops or changes
    """
    base = env.unwrapped
    source = None
    if isinstance(base, TensorVecEnv):
        source = "tensor" if base.action_masks is not None else None
    elif has_method(env):
        source = "method"
    elif any(MASK in (info or {}) for info in getattr(base, "reset_infos", ())):
        source = "info"
    elif _has_key(env):
        source = "observation"
        _check_not_normalized(env)
    elif _has_key(base) and choices_of(env.action_space):
        raise ValueError(
            f"A wrapper around {type(base).__name__} drops observation[{MASK!r}]: {env.observation_space} is left of "
            f"{base.observation_space}. Keep the key, or give the env a method {METHOD}()."
        )
    if source is not None and not choices_of(env.action_space):
        raise ValueError(
            f"The env has action masks ({source}), but its actions are {env.action_space}: masks are for Discrete, "
            "MultiDiscrete and MultiBinary actions. Rename what it reports, or discretise its actions."
        )
    return source


def _has_key(env: VecEnv) -> bool:
    return MASK in getattr(env.observation_space, "spaces", ())


def has_method(env: VecEnv) -> bool:
    """Whether the VecEnv, or each env inside, has ``action_masks()``."""
    base = env.unwrapped
    if callable(getattr(base, METHOD, None)):
        return True
    try:
        return bool(base.has_attr(METHOD)) and not base.has_attr("no_such_attribute")
    except (NotImplementedError, KeyError, TypeError, ValueError, AssertionError):
        return False  # a VecEnv of somebody's own that knows no attributes


def _ask(env: VecEnv) -> Any:
    """What ``action_masks()`` says, of the VecEnv or of each env inside."""
    own = getattr(env.unwrapped, METHOD, None)
    try:
        return own() if callable(own) else env.env_method(METHOD)
    except TypeError as error:  # an array or a property under that name, or a method that wants arguments
        raise ValueError(
            f"{METHOD} of the env cannot be asked ({error}). It must be a method without arguments that returns one mask, as "
            f"def {METHOD}(self) -> np.ndarray. Make it one, or rename it if it is something else."
        ) from error


def _check_not_normalized(env: VecEnv) -> None:
    layer: Any = env
    while layer is not env.unwrapped:
        if isinstance(layer, VecNormalize) and layer.norm_obs and MASK in (layer.norm_obs_keys or ()):
            keys = [key for key in layer.norm_obs_keys or () if key != MASK]
            raise ValueError(
                f"VecNormalize would normalise observation[{MASK!r}]: pass VecNormalize(..., norm_obs_keys={keys})."
            )
        layer = layer.venv


def masks_of(
    env: VecEnv, source: str | None, infos: Sequence[dict[str, Any]] | None = None, dones: Any = None, step: int = 0
) -> np.ndarray | None:
    """``[n_envs, m]`` valid actions of every slot now; None where observations hold the masks, or there are none.

    :param source: of :func:`source_of`
    :param infos: of the last step; None: every slot has just been reset
    :param dones: ``[n_envs]`` slots that have been reset since, whose infos are those of their resets
    :param step: number of the vector step, for messages
    :raises ValueError: for masks that are missing, of another shape or kind, or without a valid action
    """
    base, found = env.unwrapped, None
    if source not in APART:
        return None
    if isinstance(base, TensorVecEnv):
        assert base.action_masks is not None
        return base.action_masks.cpu().numpy()  # type: ignore[no-any-return]
    if source == "method":
        found = _ask(env)
    else:
        resets = base.reset_infos
        current = resets if infos is None else [r if d else i for i, d, r in zip(infos, dones, resets, strict=True)]
        missing = [slot for slot, info in enumerate(current) if MASK not in (info or {})]
        if missing:
            raise ValueError(
                f"The info of env {missing[0]} at vector step {step} has no {MASK!r}, which earlier ones had: report it with "
                f"every reset and step, or give the env a method {METHOD}()."
            )
        found = [info[MASK] for info in current]
    return checked(found, env.action_space, env.num_envs, f"of env {{slot}} at vector step {step}")


def masks_of_the_evaluated(asked: Any) -> np.ndarray | None:
    """Valid actions in the env that SB3's ``evaluate_policy`` is playing, if it is that which asks for actions.

    It gives ``predict`` nothing but observations, and what it plays is known to its own frame alone. So this is where we look:
    EvalCallback, and all else that is built on it, shall judge a masked policy as it is, without a class of its own. An env
    that asks a model from within, as an opponent, is not told the masks of whom it plays against.

    :param asked: who was asked for actions
    """
    frame = inspect.currentframe()
    while frame is not None:
        known = frame.f_locals
        if isinstance(known.get("self"), VecEnv | gym.Env):
            return None
        if frame.f_code is evaluate_policy.__code__:
            if isinstance(known["model"], BaseAlgorithm) and known["model"] is not asked:
                return None
            env = known["env"]
            return masks_of(env, source_of(env), known.get("infos"), known.get("dones"))
        frame = frame.f_back
    return None


def check_not_begun_late(env: VecEnv, infos: Sequence[dict[str, Any]]) -> None:
    """Look at the first step of an env without masks: they may have been left out of the info of its reset.

    :param infos: of that step
    :raises ValueError: if one holds a mask
    """
    for slot, info in enumerate(infos):
        if MASK in (info or {}) and choices_of(env.action_space):
            raise ValueError(
                f"The info of env {slot} holds {MASK!r} after a step, and that of its reset did not, so the first action of "
                f"an episode would go without: report it with every reset and step, or give the env a method {METHOD}()."
            )
