"""What the constructor's arguments must satisfy, alone and together. Every error names value, rule and remedy."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.envs.installing import check_no_pool
from sb_grpo.envs.tensor_env import GROUPINGS, TensorVecEnv
from sb_grpo.given import Arguments
from sb_grpo.group_arguments import check_comparable, check_groups
from sb_grpo.learn.losses import Clipped
from sb_grpo.moved import check_names
from sb_grpo.policies import ActorMultiInputPolicy, ActorPolicy
from sb_grpo.policies.heads import make_discrete_head
from sb_grpo.policy_arguments import warn_of_overrides
from sb_grpo.ranges import RANGES, check_settings, check_single
from sb_grpo.rules import at_progress, check_values, from_config, meant, plain, shown, steps_per_env

P = ParamSpec("P")
R = TypeVar("R")
#: As they are when the model has been set up, which is another form than the one they were given in.
NOT_AGAIN = ("device", "normalize_advantage", "policy")


def checking_arguments(init: Callable[P, R]) -> Callable[P, R]:
    """A constructor that looks at every argument by itself first, and says what to do about names of others."""

    signature = inspect.signature(init)
    known = signature.parameters

    @wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = {name: value for name, value in kwargs.items() if name not in known}
        check_names(unknown)
        if unknown:
            name = next(iter(unknown))
            raise TypeError(f"GRPO got an unexpected keyword argument {name!r}{meant(name, known)}")
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return init(*args, **kwargs)  # Python's own words have the constructor's name in them
        given = from_config(bound.arguments)
        bound.arguments.update(given)
        check_single({name: plain(value) for name, value in given.items()})
        check_env_id(given.get("env"))
        return init(*bound.args, **bound.kwargs)

    return checked


def check_env_id(env: Any) -> None:
    """Check that a name is that of a registered env.

    :param env: anything; only text is looked at
    :raises ValueError: with what Gymnasium says
    """
    if not isinstance(env, str):
        return
    try:
        gym.spec(env)
    except (gym.error.Error, ImportError) as error:
        raise ValueError(
            f"env={shown(env)} is no registered environment ({error}): import the package that registers it, or write "
            "'package:Name-v0'."
        ) from error


def check_env(env: Any) -> None:
    """Check that this is an env whose spaces are among those that SB3's PPO takes.

    :raises ValueError: naming what it is and what to do
    """
    if isinstance(env, str):
        raise ValueError(
            f"env={shown(env)} is an env id: only the constructor GRPO(...) makes an env from one; load(), load_run() and "
            "set_env() must be given the env itself, as PPO's. Pass gymnasium.make(env_id), or "
            "stable_baselines3.common.env_util.make_vec_env(env_id, n_envs=...)."
        )
    if not isinstance(env, gym.Env | VecEnv):
        raise ValueError(
            f"env={shown(env)} is a {type(env).__name__}: GRPO takes a gymnasium.Env, an SB3 VecEnv or, in its "
            "constructor, an env id. Build several envs with stable_baselines3.common.env_util.make_vec_env instead of "
            "gymnasium.make_vec, or wrap what that made in sb_grpo.envs.gymnasium_vector.GymnasiumVectorEnv."
        )
    check_no_pool(env, env.unwrapped)
    observation_space, action_space = env.observation_space, env.action_space
    parts = observation_space.spaces.values() if isinstance(observation_space, spaces.Dict) else [observation_space]
    for part in parts:
        if not isinstance(part, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise ValueError(
                f"Unsupported observation space {part}: GRPO takes Box, Discrete, MultiDiscrete, MultiBinary and one level of "
                "Dict. Use gymnasium.wrappers.FlattenObservation or an ObservationWrapper of your own."
            )
    if not isinstance(action_space, spaces.Box):
        make_discrete_head(action_space)
    elif not (np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all()):
        raise ValueError(
            f"Unsupported action space {action_space}: its bounds must be finite. Declare finite ones in the env, or in an "
            "ActionWrapper around it; leave out gymnasium.wrappers.ClipAction, which takes them away: GRPO clips by itself."
        )


def check_arguments(given: Arguments) -> None:
    """Check every argument, the env taken into account.

    :raises ValueError: for the first rule that is broken
    """
    if given.observation_space is None:
        raise ValueError("env=None: GRPO needs an environment to know its spaces. Pass an env id, an env or a VecEnv.")
    _check_policy(given)
    check_values("", vars(given), {name: rule for name, rule in RANGES[""].items() if name not in NOT_AGAIN})
    for where, settings in given.dicts().items():
        check_settings(where, settings)
    if isinstance(given.env, TensorVecEnv) and given.env.device.type != given.device.type:
        raise ValueError(
            f"The env is on device='{given.env.device}' and the model on device='{given.device}': they must share one. "
            f"Pass GRPO(..., device='{given.env.device}'), or make the env on the model's device."
        )
    if given.use_sde and not isinstance(given.action_space, spaces.Box):
        raise ValueError(f"use_sde=True is for Box actions, not {given.action_space}: leave it out.")
    _check_buffer(given)
    check_groups(given)
    if given.groups.restart == "branch":
        _check_branching(given)
    check_members(given)
    _check_sizes(given)
    _check_without_effect(given)


def _check_policy(given: Arguments) -> None:
    if not isinstance(given.policy_class, type) or not issubclass(given.policy_class, ActorPolicy):
        raise ValueError(
            f"policy={getattr(given.policy_class, '__name__', given.policy_class)} has a critic or is no policy of sb_grpo: "
            "use 'MlpPolicy', 'CnnPolicy', 'MultiInputPolicy' or a subclass of sb_grpo.policies.ActorPolicy."
        )
    warn_of_overrides(given.policy_class, ActorPolicy)
    if issubclass(given.policy_class, ActorMultiInputPolicy) and not isinstance(given.observation_space, spaces.Dict):
        raise ValueError(
            f"MultiInputPolicy is for Dict observations, not {given.observation_space}: use MlpPolicy or CnnPolicy."
        )


#: What a group is where the simulator cannot give any slot any start.
_FIXED_GROUPS = {
    "streams": "the slots' starts come from streams that are seeded together, so a group is group_size neighbouring slots",
    "synchronous": "all slots start together, so a group is group_size neighbouring slots",
}


def _check_grouping(given: Arguments, env: TensorVecEnv) -> None:
    if env.grouping not in GROUPINGS:
        raise ValueError(f"{type(env).__name__}.grouping={env.grouping!r} is unknown; use one of {list(GROUPINGS)}.")
    if env.grouping in _FIXED_GROUPS and env.num_envs % given.group_size != 0:
        raise ValueError(
            f"num_envs={env.num_envs} is no multiple of group_size={given.group_size}, but in a {type(env).__name__} "
            f"(grouping={env.grouping!r}) {_FIXED_GROUPS[env.grouping]}. Make it with num_envs="
            f"{-(-env.num_envs // given.group_size) * given.group_size}, or choose a group_size that divides {env.num_envs}."
        )


def _check_branching(given: Arguments) -> None:
    env: Any = given.env
    copies = isinstance(env, TensorVecEnv) and type(env).snapshot is not TensorVecEnv.snapshot
    if env is not None and not (copies and env.grouping in ("seeds", "state")):
        raise ValueError(
            f"group_kwargs: restart='branch' copies states between slots, which {type(env).__name__} cannot. Use a tensor env "
            "with snapshot and restore, such as sb_grpo.envs.native.make_tensor_env(...), or restart='reset'."
        )


def members_at(group_size: Any, progress: float) -> int:
    """Members per group.

    :param group_size: their number, or a schedule of it
    :param progress: that remains, 1 to 0
    :raises ValueError: if a schedule says anything but a whole number from 1 on
    """
    rule = RANGES[""]["group_size"]
    whole = rule._replace(fine=lambda x: rule.fine(int(x) if isinstance(x, float) and x.is_integer() else x))
    return int(at_progress("group_size", whole, group_size, progress))


def check_members(given: Arguments) -> None:
    """Check what the number of members of a group decides, which may change from rollout to rollout.

    :raises ValueError: where so many leave nothing to compare, or do not fit to the envs
    """
    if isinstance(given.env, TensorVecEnv):
        _check_grouping(given, given.env)
    check_comparable(given)
    if given.group_size > 1 or given.multitask.grouping not in ("seed", "hierarchical"):
        return
    if given.normalize_advantage == "group":
        raise ValueError(
            "group_size=1 leaves nothing to normalise within a group. Use group_size >= 2, or normalize_advantage='batch'."
        )
    if getattr(given.estimator, "needs_peers", False):
        raise ValueError(
            f"group_size=1 gives a member no peers, so advantage={given.advantage!r} would be 0 everywhere. "
            "Use group_size >= 2, or advantage_kwargs=dict(baseline='global')."
        )


def check_rollout_size(given: Arguments) -> None:
    """Say so where a rollout does not fill a minibatch: before a training, as a loaded model may be there to be watched."""
    per_env = steps_per_env(given.n_steps, given.n_envs)
    rows = per_env * given.n_envs
    if given.n_groups is None and rows < given.batch_size:
        warnings.warn(
            f"n_steps={per_env} x n_envs={given.n_envs} gives {rows} steps, too few for one minibatch of "
            f"batch_size={given.batch_size}: each rollout is one minibatch. Raise n_steps or lower batch_size.",
            UserWarning,
            stacklevel=2,
        )


def _check_memory(given: Arguments) -> None:
    """A rollout that no memory holds would be found out by the system, which ends the process."""
    space: Any = given.observation_space
    parts: list[Any] = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    per_step = 64 + sum(int(np.prod(part.shape or (1,))) * part.dtype.itemsize for part in parts)
    needed = per_step * steps_per_env(given.n_steps, given.n_envs) * given.n_envs
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ValueError(
            f"n_steps={given.n_steps} x n_envs={given.n_envs} needs {needed / 2**30:.0f} GiB for a rollout of observations "
            f"{space}, but there are {there / 2**30:.0f} GiB. Lower n_steps, or use fewer envs."
        )


def _check_sizes(given: Arguments) -> None:
    _check_memory(given)
    if given.n_steps is not None and given.n_groups is not None:
        raise ValueError(
            f"n_steps={given.n_steps} and n_groups={given.n_groups} both set the rollout's size: pass one of them, "
            "and None for the other where an entry or a saved model has set it."
        )
    if given.update.micro_batch_size is not None:
        if given.update.micro_batch_size > given.batch_size:
            raise ValueError(
                f"micro_batch_size={given.update.micro_batch_size} is larger than batch_size={given.batch_size}: "
                "it is the part of a minibatch that is in memory at once. Lower it."
            )
        if given.update.sequence_length is not None and given.update.micro_batch_size < given.update.sequence_length:
            raise ValueError(
                f"micro_batch_size={given.update.micro_batch_size} is smaller than sequence_length="
                f"{given.update.sequence_length}: gradients go back through that many steps, which must be in memory at once. "
                "Raise the one or lower the other, or leave sequence_length out."
            )
        if given.loss.importance_level == "episode":
            raise ValueError(
                "micro_batch_size cannot split episodes that importance_level='episode' needs whole: lower batch_size instead."
            )


def _check_buffer(given: Arguments) -> None:
    buffer_class: Any = given.rollout_buffer_class
    if buffer_class is None or given.env is None:
        return
    on_device = isinstance(given.env, TensorVecEnv)
    if not issubclass(buffer_class, GroupRolloutBuffer) or issubclass(buffer_class, TensorRolloutBuffer) != on_device:
        needed = "TensorRolloutBuffer" if on_device else "GroupRolloutBuffer (not of TensorRolloutBuffer)"
        raise ValueError(
            f"rollout_buffer_class={buffer_class.__name__} does not go with a {type(given.env).__name__}: it must be a "
            f"subclass of {needed}, or left out."
        )


def _check_without_effect(given: Arguments) -> None:
    """Arguments that would be ignored without a word."""
    loss = given.loss
    if loss.ref_sync_interval is not None and given.kl_coef == 0:
        raise ValueError(
            f"loss_kwargs: ref_sync_interval={loss.ref_sync_interval} has no effect with kl_coef=0: there is no reference "
            "policy to sync. Set kl_coef > 0, or leave ref_sync_interval out."
        )
    if loss.ref_policy is not None and given.kl_coef == 0:
        raise ValueError(
            "loss_kwargs: ref_policy has no effect with kl_coef=0: nothing is measured against it. Set kl_coef > 0; or, to "
            "start from those weights, sb_grpo.policies.load_actor(model.policy, ...)."
        )
    if isinstance(loss, Clipped) and loss.ratio_cap is not None:
        clip_high = given.clip_range if loss.clip_range_high is None else loss.clip_range_high
        largest = 1.0 + float(FloatSchedule(clip_high)(1.0))
        if loss.ratio_cap <= largest:
            raise ValueError(
                f"loss_kwargs: ratio_cap={loss.ratio_cap} must be larger than 1 + the upper clip range, {largest}: it "
                "bounds what the clip lets through. 3 to 10 is usual."
            )


def check_early_reset(env: VecEnv, can_continue: bool) -> None:
    """A new ``learn()`` resets envs in mid-episode, which a strict Monitor forbids.

    :param can_continue: the episodes could go on instead
    :raises ValueError: if one of the envs has ``Monitor(allow_early_resets=False)``
    """
    monitored = [slot for slot, found in enumerate(env.env_is_wrapped(Monitor)) if found]
    early = env.get_attr("allow_early_resets", monitored) if monitored else []
    strict = [slot for slot, allowed in zip(monitored, early, strict=True) if not allowed]
    if strict and not all(env.get_attr("needs_reset", strict)):
        continuing = "Continue with learn(..., reset_num_timesteps=False), or build" if can_continue else "Build"
        raise ValueError(
            "learn() has to reset the envs in mid-episode, but Monitor(allow_early_resets=False) forbids that. "
            f"{continuing} the Monitor with allow_early_resets=True."
        )
