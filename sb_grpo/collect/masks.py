"""Sources of an env's action masks: a method of it, its infos, its observations; a property of a tensor env."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.policies.extra_inputs import MASK
from sb_grpo.policies.masks import METHOD, checked, choices_of
from sb_grpo.types import Info

CALLERS = ("sb_grpo", "stable_baselines3")  #: packages whose functions ask an env for its masks
#: Sources whose masks observations do not hold.
APART = ("method", "info", "tensor")
EXPECTED = (
    f"{METHOD} must be a method without arguments that returns one mask per env: write `def {METHOD}(self)`, or give it "
    "another name where it is not about valid actions (docs/masks.md)."
)

#: Warning of ``predict`` where nobody told it which actions are valid, with their source in training.
MASKS_UNKNOWN = (
    "predict() was not told which actions are valid, so it may choose others: this policy has learnt with masks ({source}). "
    "Pass predict(obs, action_masks=...), or put them into the observation (docs/masks.md)."
)


def source_of(env: VecEnv) -> str | None:
    """Find the source of an env's masks, the first that is there: ``"tensor"``, ``"method"``, ``"info"``, ``"observation"``.

    :return: None where it has none; those in infos are known when it has been reset
    :raises ValueError: for masks of Box actions, for masks that a wrapper drops or changes, and for a VecEnv whose
        ``action_masks`` is no method
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
    if source is not None:
        _check_choices(env, source)
    return source


def check_same_masks(run: str | None, now: str | None) -> None:
    """A run goes on with masks from where it had them.

    :raises ValueError: if they come from elsewhere now
    """
    if run != now:
        raise ValueError(
            f"The run had action masks of the source {run!r}, but this env has {now!r} (docs/masks.md): build the env as the "
            "run's was built; on another one a loaded model (GRPO.load) can begin a new run."
        )


def _check_choices(env: VecEnv, source: str) -> None:
    if not choices_of(env.action_space):
        raise ValueError(
            f"The env has action masks ({source}), but its actions are {env.action_space}: masks are for Discrete, "
            "MultiDiscrete and MultiBinary actions. Rename what it reports, or discretise its actions."
        )


def _has_key(env: VecEnv) -> bool:
    return MASK in getattr(env.observation_space, "spaces", ())


def has_method(env: VecEnv) -> bool:
    """Whether the VecEnv, or each env inside, has ``action_masks()``.

    :raises ValueError: where it is something else than a method of the VecEnv
    """
    base = env.unwrapped
    own = getattr(base, METHOD, None)
    if callable(own):
        return True
    if own is not None and not hasattr(base, "no_such_attribute"):
        raise ValueError(f"{METHOD} of {type(base).__name__} is a {type(own).__name__}. {EXPECTED}")
    try:
        return bool(base.has_attr(METHOD)) and not base.has_attr("no_such_attribute")
    except Exception:
        return False  # a VecEnv or an env of somebody's own that knows no attributes


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
    env: VecEnv, source: str | None, infos: Sequence[Info] | None = None, dones: Any = None, step: int = 0
) -> np.ndarray | None:
    """``[n_envs, m]`` valid actions of every env now; None where observations hold the masks, or there are none.

    :param source: of :func:`source_of`
    :param infos: of the last step; None: every env has just been reset
    :param dones: ``[n_envs]`` envs that have been reset since, whose infos are those of their resets
    :param step: number of the vector step, for messages
    :raises ValueError: for masks that are missing, of another shape or kind, or without a valid action
    """
    base = env.unwrapped
    found = None
    if source not in APART:
        return None
    if isinstance(base, TensorVecEnv):
        assert base.action_masks is not None
        return base.action_masks.cpu().numpy()  # type: ignore[no-any-return]
    if source == "method":
        found = _asked(env, just_reset=infos is None)
    else:
        resets = base.reset_infos
        current = resets if infos is None else [r if d else i for i, d, r in zip(infos, dones, resets, strict=True)]
        missing = [env_index for env_index, info in enumerate(current) if MASK not in (info or {})]
        if missing:
            raise ValueError(
                f"The info of env {missing[0]} at vector step {step} has no {MASK!r}, which earlier ones had: report it with "
                f"every reset and step, or give the env a method {METHOD}()."
            )
        found = [info[MASK] for info in current]
    return checked(found, env.action_space, env.num_envs, f"of env {{index}} at vector step {step}")


def _asked(env: VecEnv, just_reset: bool) -> Sequence[np.ndarray]:
    """Ask the env for ``action_masks()``.

    :param just_reset: no step has been taken since: a process that ends now has stumbled over the question
    :raises ValueError: where it is no method, or wants arguments
    """
    own = getattr(env.unwrapped, METHOD, None)
    try:
        return own() if callable(own) else env.env_method(METHOD)
    except TypeError as error:
        end = error.__traceback__
        while end is not None and end.tb_next is not None:
            end = end.tb_next
        if end is None or end.tb_frame.f_globals.get("__name__", "").split(".")[0] not in CALLERS:
            raise  # from inside the method, which was called as it wants to be
        raise ValueError(f"{_kind_of(env)} cannot be asked for {METHOD}(): {error}. {EXPECTED}") from error
    except (EOFError, ConnectionError) as error:  # of SB3's SubprocVecEnv, whose processes do not say why they end
        if not just_reset:
            raise
        raise ValueError(
            f"A process of {_kind_of(env)} ended when it was asked for {METHOD}(); its own error stands above. {EXPECTED}"
        ) from error


def _kind_of(env: VecEnv) -> str:
    base = env.unwrapped
    return type(base.envs[0].unwrapped if isinstance(base, DummyVecEnv) else base).__name__


def check_unmasked(env: VecEnv, infos: Sequence[Info], step: int) -> None:
    """Masks in the infos of steps alone are no source: the first action of an episode would be chosen without one.

    :param infos: of a step of an env whose resets have told of no masks
    :param step: number of the vector step, for the message
    :raises ValueError: where one holds a mask
    """
    env_index = next((env_index for env_index, info in enumerate(infos) if MASK in (info or {})), None)
    if env_index is None:
        return
    _check_choices(env, "info")
    raise ValueError(
        f"The info of env {env_index} at vector step {step} has {MASK!r}, which that of its reset had not: report it with "
        f"every reset and step, give the env a method {METHOD}(), or rename it where it is not about valid actions."
    )


def masks_of_the_evaluated() -> np.ndarray | None:
    """Valid actions in the env that SB3's ``evaluate_policy`` is playing, if it is that which asks for actions.

    It gives ``predict`` nothing but observations, and only its own frame knows the env. So this is where we look:
    EvalCallback, and all else that is built on it, shall judge a masked policy as it is, without a class of its own. A
    ``predict`` of somebody else's may lie between, which hands on the question. An env that asks, as for an opponent's move,
    asks about another position than the evaluated one, and so may a callback.
    """
    frame = inspect.currentframe()
    between = []
    frame = None if frame is None else frame.f_back  # a frame in its own list would keep itself alive
    while frame is not None and frame.f_code is not evaluate_policy.__code__:
        between.append(frame)
        frame = frame.f_back
    if frame is None or any(isinstance(_first_argument(one), (gym.Env, VecEnv)) for one in between):
        return None
    known = frame.f_locals
    if known.get("new_observations", known["observations"]) is not known["observations"]:
        return None  # it is in its callback, between a step and the next question
    env = known["env"]
    return masks_of(env, source_of(env), known.get("infos"), known.get("dones"))


def _first_argument(frame: FrameType) -> object:
    """``self`` of a method, as long as it is called so."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
