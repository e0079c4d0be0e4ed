"""What the constructor's arguments must satisfy, alone and together. Every error names value, rule and remedy."""

from __future__ import annotations

import math
import numbers
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.envs.tensor_env import GROUPINGS, TensorVecEnv
from sb_grpo.given import Arguments
from sb_grpo.group_arguments import check_groups
from sb_grpo.learn.losses import AGGREGATIONS, LEVELS, Clipped
from sb_grpo.policies import ActorMultiInputPolicy, ActorPolicy
from sb_grpo.policies.heads import make_discrete_head
from sb_grpo.rules import check_choice, steps_per_env

CHOICES: dict[str, tuple[Any, ...]] = {
    "normalize_advantage": ("group", "batch", "none"),
    "aggregation": AGGREGATIONS,
    "importance_level": LEVELS,
    "scaling": ("none", "clip", "tanh"),
    "restart": ("reset", "branch"),
    "compile": (False, True, "reduce-overhead"),
}
AT_LEAST: dict[str, float] = {
    "group_size": 1, "n_steps": 1, "n_groups": 1, "batch_size": 1, "n_epochs": 1, "micro_batch_size": 1,
    "ref_sync_interval": 1, "ent_coef": 0.0, "kl_coef": 0.0,
}  # fmt: skip
INTEGERS = ("group_size", "n_steps", "n_groups", "batch_size", "n_epochs", "micro_batch_size", "ref_sync_interval")
FLOATS = ("gamma", "gae_lambda", "ent_coef", "kl_coef", "max_grad_norm", "clip", "target_kl", "ratio_cap")
OPTIONAL = ("n_steps", "n_groups", "micro_batch_size", "ref_sync_interval", "target_kl", "ratio_cap", "clip_range_high")
POSITIVE = ("max_grad_norm", "clip", "target_kl", "ratio_cap")


def check_env(env: Any) -> None:
    """Check that this is an env whose spaces are among those that SB3's PPO takes.

    :raises ValueError: naming what it is and what to do
    """
    if not isinstance(env, gym.Env | VecEnv):
        raise ValueError(
            f"env={env!r} is a {type(env).__name__}: GRPO takes an env id, a gymnasium.Env or an SB3 VecEnv. Build several "
            "envs with stable_baselines3.common.env_util.make_vec_env instead of gymnasium.make_vec, or wrap what that made "
            "in sb_grpo.envs.gymnasium_vector.GymnasiumVectorEnv."
        )
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
            "ActionWrapper around it."
        )


def check_arguments(given: Arguments) -> None:
    """Check every argument, the env taken into account.

    :raises ValueError: for the first rule that is broken
    """
    _check_types(given)
    for name, choices in CHOICES.items():
        check_choice(given.name(name), given.value(name), choices)
    for name, low in AT_LEAST.items():
        value = given.value(name)
        if value is not None and not value >= low:
            raise ValueError(f"{given.name(name)}={value} is too small: it must be at least {low}.")
    for name in POSITIVE:
        value = given.value(name)
        if value is not None and not value > 0:
            left_out = "" if name == "max_grad_norm" else ", or left out"
            raise ValueError(f"{given.name(name)}={value} must be positive{left_out}.")
    if isinstance(given.env, TensorVecEnv) and given.env.device.type != given.device.type:
        raise ValueError(
            f"The env is on device='{given.env.device}' and the model on device='{given.device}': they must share one. "
            f"Pass GRPO(..., device='{given.env.device}'), or make the env on the model's device."
        )
    _check_buffer(given)
    _check_exploration(given.rewards.bonus)
    _check_ranges(given)
    check_groups(given)
    _check_groups(given)
    _check_sizes(given)
    _check_without_effect(given)


def _check_types(given: Arguments) -> None:
    if given.observation_space is None:
        raise ValueError("env=None: GRPO needs an environment to know its spaces. Pass an env id, an env or a VecEnv.")
    if not issubclass(given.policy_class, ActorPolicy):
        raise ValueError(
            f"policy={given.policy_class.__name__} has a critic or is no policy of sb_grpo: use 'MlpPolicy', 'CnnPolicy', "
            "'MultiInputPolicy' or a subclass of sb_grpo.policies.ActorPolicy."
        )
    if issubclass(given.policy_class, ActorMultiInputPolicy) and not isinstance(given.observation_space, spaces.Dict):
        raise ValueError(
            f"MultiInputPolicy is for Dict observations, not {given.observation_space}: use MlpPolicy or CnnPolicy."
        )
    for names, kind, what in ((INTEGERS, numbers.Integral, "an integer"), (FLOATS, numbers.Real, "a number")):
        for name in names:
            value = given.value(name)
            if value is None and (name in OPTIONAL):
                continue
            if isinstance(value, bool) or not isinstance(value, kind):
                raise ValueError(f"{given.name(name)}={value!r} must be {what}{', or None' if name in OPTIONAL else ''}.")
    for name in ("learning_rate", "clip_range", "clip_range_high"):
        value = given.value(name)
        if not (callable(value) or isinstance(value, numbers.Real) or (value is None and name in OPTIONAL)):
            raise ValueError(
                f"{given.name(name)}={value!r} must be a number or a function of the remaining progress (1 to 0)."
            )


def _at_start(schedule: Any) -> Any:
    return schedule(1.0) if callable(schedule) else schedule


def _check_ranges(given: Arguments) -> None:
    for name in ("gamma", "gae_lambda"):
        if not 0.0 <= getattr(given, name) <= 1.0:
            raise ValueError(f"{name}={getattr(given, name)} must lie in [0, 1].")
    for name in ("clip_range", "clip_range_high"):
        start = _at_start(given.value(name))
        if start is not None and not start >= 0:
            raise ValueError(f"{given.name(name)}={start} must not be negative; 0.2 is usual.")
    rate = _at_start(given.learning_rate)
    if not 0 <= rate < math.inf:
        raise ValueError(f"learning_rate={rate} must be a finite number, 0 or more; 3e-4 is usual.")


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


def _check_groups(given: Arguments) -> None:
    if isinstance(given.env, TensorVecEnv):
        _check_grouping(given, given.env)
    if given.groups.restart == "branch":
        _check_branching(given)
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
        steps = per_env if given.n_steps is not None else f"None (so {per_env})"
        warnings.warn(
            f"n_steps={steps} x n_envs={given.n_envs} gives {rows} steps, too few for one minibatch of "
            f"batch_size={given.batch_size}: each rollout is one minibatch. Raise n_steps or lower batch_size.",
            UserWarning,
            stacklevel=2,
        )


def _check_sizes(given: Arguments) -> None:
    if given.n_steps is not None and given.n_groups is not None:
        raise ValueError(
            f"n_steps={given.n_steps} and n_groups={given.n_groups} both set the rollout's size: pass one of them."
        )
    if given.update.micro_batch_size is not None:
        if given.update.micro_batch_size > given.batch_size:
            raise ValueError(
                f"micro_batch_size={given.update.micro_batch_size} is larger than batch_size={given.batch_size}: "
                "it is the part of a minibatch that is in memory at once. Lower it."
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


def _check_exploration(bonus: Any) -> None:
    if bonus is not None and (isinstance(bonus, type) or not (callable(bonus) or hasattr(bonus, "build"))):
        raise ValueError(
            f"rewards: bonus={bonus!r} is no bonus: pass CountBonus(), RNDBonus(), a function of a Rollout that returns "
            "one number per step, or None."
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
        largest = 1.0 + float(_at_start(clip_high))
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
    if any(env.env_is_wrapped(Monitor)) and not all(env.get_attr("allow_early_resets")):
        continuing = "Continue with learn(..., reset_num_timesteps=False), or build" if can_continue else "Build"
        raise ValueError(
            "learn() has to reset the envs in mid-episode, but Monitor(allow_early_resets=False) forbids that. "
            f"{continuing} the Monitor with allow_early_resets=True."
        )
