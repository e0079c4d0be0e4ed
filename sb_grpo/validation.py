"""What the constructor's arguments must satisfy, alone and together. Every error names value, rule and remedy."""

from __future__ import annotations

import inspect
import math
import numbers
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.advantages import ESTIMATORS
from sb_grpo.baseline import StateBaseline
from sb_grpo.buffers import GroupRolloutBuffer
from sb_grpo.device_buffer import TensorRolloutBuffer
from sb_grpo.distributions import make_discrete_head
from sb_grpo.envs.tensor_env import GROUPINGS, TensorVecEnv
from sb_grpo.group_validation import check_groups
from sb_grpo.policies import ActorMultiInputPolicy, ActorPolicy
from sb_grpo.types import Rollout

if TYPE_CHECKING:
    from sb_grpo.grpo import GRPO

CHOICES: dict[str, tuple[Any, ...]] = {
    "baseline": ("mean", "leave_one_out", "median", "global"),
    "normalize_advantage": ("group", "batch", "none"),
    "ended_members": ("zero", "drop"),
    "surrogate": ("clip", "cispo"),
    "aggregation": ("step", "episode", "constant"),
    "importance_level": ("step", "episode"),
    "reward_scaling": ("none", "clip", "tanh"),
    "restart": ("reset", "branch"),
    "compile": (False, True, "reduce-overhead"),
}
AT_LEAST: dict[str, float] = {
    "group_size": 1, "n_steps": 1, "n_groups": 1, "batch_size": 1, "n_epochs": 1, "micro_batch_size": 1,
    "ref_sync_interval": 1, "ent_coef": 0.0, "kl_coef": 0.0,
}  # fmt: skip
INTEGERS = ("group_size", "n_steps", "n_groups", "batch_size", "n_epochs", "micro_batch_size", "ref_sync_interval")
FLOATS = ("gamma", "gae_lambda", "ent_coef", "kl_coef", "max_grad_norm", "reward_clip", "target_kl", "ratio_cap")
OPTIONAL = ("n_steps", "n_groups", "micro_batch_size", "ref_sync_interval", "target_kl", "ratio_cap", "clip_range_high")
#: A state baseline's input whose square, summed over a rollout, is still a float32.
LARGEST_FEATURE = 1e17
POSITIVE = ("max_grad_norm", "reward_clip", "target_kl", "ratio_cap")


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


def check_arguments(model: GRPO) -> None:
    """Check every hyperparameter of a model, its env taken into account.

    :raises ValueError: for the first rule that is broken
    """
    _plain_integers(model)
    _check_types(model)
    advantage: Any = model.advantage
    if not callable(advantage) and advantage not in (*ESTIMATORS, "state"):
        raise ValueError(f"advantage={advantage!r} is unknown; use one of {[*ESTIMATORS, 'state']} or a callable.")
    for name, choices in CHOICES.items():
        if getattr(model, name) not in choices:
            raise ValueError(f"{name}={getattr(model, name)!r} is unknown; use one of {list(choices)}.")
    for name, low in AT_LEAST.items():
        value = getattr(model, name)
        if value is not None and not value >= low:
            raise ValueError(f"{name}={value} is too small: it must be at least {low}.")
    for name in POSITIVE:
        value = getattr(model, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value} must be positive{'' if name == 'max_grad_norm' else ', or left out'}.")
    if isinstance(model.env, TensorVecEnv) and model.env.device.type != model.device.type:
        raise ValueError(
            f"The env is on device='{model.env.device}' and the model on device='{model.device}': they must share one. "
            f"Pass GRPO(..., device='{model.env.device}'), or make the env on the model's device."
        )
    _check_buffer(model)
    _check_exploration(model.exploration_bonus)
    _check_ranges(model)
    check_groups(model)
    _check_groups(model)
    _check_sizes(model)
    _check_without_effect(model)


def _plain_integers(model: GRPO) -> None:
    """NumPy's integers, which overflow in the arithmetic of seeds, become Python's."""
    for name in INTEGERS:
        if isinstance(value := getattr(model, name), np.integer):
            setattr(model, name, int(value))


def _check_types(model: GRPO) -> None:
    if getattr(model, "observation_space", None) is None:
        raise ValueError("env=None: GRPO needs an environment to know its spaces. Pass an env id, an env or a VecEnv.")
    if not issubclass(model.policy_class, ActorPolicy):
        raise ValueError(
            f"policy={model.policy_class.__name__} has a critic or is no policy of sb_grpo: use 'MlpPolicy', 'CnnPolicy', "
            "'MultiInputPolicy' or a subclass of sb_grpo.policies.ActorPolicy."
        )
    if issubclass(model.policy_class, ActorMultiInputPolicy) and not isinstance(model.observation_space, spaces.Dict):
        raise ValueError(
            f"MultiInputPolicy is for Dict observations, not {model.observation_space}: use MlpPolicy or CnnPolicy."
        )
    for names, kind, what in ((INTEGERS, numbers.Integral, "an integer"), (FLOATS, numbers.Real, "a number")):
        for name in names:
            value = getattr(model, name)
            if value is None and name in OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, kind):
                raise ValueError(f"{name}={value!r} must be {what}{', or None' if name in OPTIONAL else ''}.")
    for name in ("learning_rate", "clip_range", "clip_range_high"):
        value = getattr(model, name)
        if not (callable(value) or isinstance(value, numbers.Real) or (value is None and name in OPTIONAL)):
            raise ValueError(f"{name}={value!r} must be a number or a function of the remaining progress (1 to 0).")


def _at_start(schedule: Any) -> Any:
    return schedule(1.0) if callable(schedule) else schedule


def _check_ranges(model: GRPO) -> None:
    for name in ("gamma", "gae_lambda"):
        if not 0.0 <= getattr(model, name) <= 1.0:
            raise ValueError(f"{name}={getattr(model, name)} must lie in [0, 1].")
    for name in ("clip_range", "clip_range_high"):
        start = _at_start(getattr(model, name))
        if start is not None and not start >= 0:
            raise ValueError(f"{name}={start} must not be negative; 0.2 is usual.")
    rate = _at_start(model.learning_rate)
    if not 0 <= rate < math.inf:
        raise ValueError(f"learning_rate={rate} must be a finite number, 0 or more; 3e-4 is usual.")


#: What a group is where the simulator cannot give any slot any start.
_FIXED_GROUPS = {
    "streams": "the slots' starts come from streams that are seeded together, so a group is group_size neighbouring slots",
    "synchronous": "all slots start together, so a group is group_size neighbouring slots",
}


def _check_grouping(model: GRPO, env: TensorVecEnv) -> None:
    if env.grouping not in GROUPINGS:
        raise ValueError(f"{type(env).__name__}.grouping={env.grouping!r} is unknown; use one of {list(GROUPINGS)}.")
    if env.grouping in _FIXED_GROUPS and env.num_envs % model.group_size != 0:
        raise ValueError(
            f"num_envs={env.num_envs} is no multiple of group_size={model.group_size}, but in a {type(env).__name__} "
            f"(grouping={env.grouping!r}) {_FIXED_GROUPS[env.grouping]}. Make it with num_envs="
            f"{-(-env.num_envs // model.group_size) * model.group_size}, or choose a group_size that divides {env.num_envs}."
        )


def _check_branching(model: GRPO) -> None:
    env: Any = model.env
    copies = isinstance(env, TensorVecEnv) and type(env).snapshot is not TensorVecEnv.snapshot
    if env is not None and not (copies and env.grouping in ("seeds", "state")):
        raise ValueError(
            f"restart='branch' copies states between slots, which {type(env).__name__} cannot. Use a tensor env with snapshot "
            "and restore, such as sb_grpo.envs.native.make_tensor_env(...), or restart='reset'."
        )


def _check_groups(model: GRPO) -> None:
    if isinstance(model.env, TensorVecEnv):
        _check_grouping(model, model.env)
    if model.restart == "branch":
        _check_branching(model)
    if model.group_size > 1 or model.grouping not in ("seed", "hierarchical"):
        return
    if model.normalize_advantage == "group":
        raise ValueError(
            "group_size=1 leaves nothing to normalise within a group. Use group_size >= 2, or normalize_advantage='batch'."
        )
    if model.advantage in ESTIMATORS and model.baseline != "global":
        raise ValueError(
            f"group_size=1 gives a member no peers, so advantage={model.advantage!r} would be 0 everywhere. "
            "Use group_size >= 2, or baseline='global'."
        )


def check_rollout_size(model: GRPO) -> None:
    """Check that a rollout fills a minibatch: before a training, as a loaded model may be there to be watched on one env.

    :raises ValueError: if it does not
    """
    rows = model.steps_per_env * model.n_envs
    if model.n_groups is None and rows < model.batch_size:
        steps = model.steps_per_env if model.n_steps is not None else f"None (so {model.steps_per_env})"
        raise ValueError(
            f"n_steps={steps} x n_envs={model.n_envs} gives {rows} steps, too few for one minibatch of "
            f"batch_size={model.batch_size}. Raise n_steps or lower batch_size."
        )


def _check_sizes(model: GRPO) -> None:
    if model.n_steps is not None and model.n_groups is not None:
        raise ValueError(
            f"n_steps={model.n_steps} and n_groups={model.n_groups} both set the rollout's size: pass one of them."
        )
    if model.micro_batch_size is not None:
        if model.micro_batch_size > model.batch_size:
            raise ValueError(
                f"micro_batch_size={model.micro_batch_size} is larger than batch_size={model.batch_size}: "
                "it is the part of a minibatch that is in memory at once. Lower it."
            )
        if model.importance_level == "episode":
            raise ValueError(
                "micro_batch_size cannot split episodes that importance_level='episode' needs whole: lower batch_size instead."
            )


def _check_buffer(model: GRPO) -> None:
    buffer_class: Any = model.rollout_buffer_class
    if buffer_class is None or model.env is None:
        return
    on_device = isinstance(model.env, TensorVecEnv)
    if not issubclass(buffer_class, GroupRolloutBuffer) or issubclass(buffer_class, TensorRolloutBuffer) != on_device:
        needed = "TensorRolloutBuffer" if on_device else "GroupRolloutBuffer (not of TensorRolloutBuffer)"
        raise ValueError(
            f"rollout_buffer_class={buffer_class.__name__} does not go with a {type(model.env).__name__}: it must be a "
            f"subclass of {needed}, or left out."
        )


def _check_exploration(bonus: Any) -> None:
    if bonus is not None and (isinstance(bonus, type) or not (callable(bonus) or hasattr(bonus, "build"))):
        raise ValueError(
            f"exploration_bonus={bonus!r} is no bonus: pass CountBonus(), RNDBonus(), a function of a Rollout that returns "
            "one number per step, or None."
        )


def _check_without_effect(model: GRPO) -> None:
    """Arguments that would be ignored without a word."""
    if model.ref_sync_interval is not None and model.kl_coef == 0:
        raise ValueError(
            f"ref_sync_interval={model.ref_sync_interval} has no effect with kl_coef=0: there is no reference policy to sync. "
            "Set kl_coef > 0, or leave ref_sync_interval out."
        )
    if model.ratio_cap is not None:
        clip_high = model.clip_range if model.clip_range_high is None else model.clip_range_high
        largest = 1.0 + float(_at_start(clip_high))
        if model.surrogate == "cispo":
            raise ValueError(f"ratio_cap={model.ratio_cap} has no effect with surrogate='cispo': leave it out.")
        if model.ratio_cap <= largest:
            raise ValueError(
                f"ratio_cap={model.ratio_cap} must be larger than 1 + the upper clip range, {largest}: it bounds what the "
                "clip lets through. 3 to 10 is usual."
            )
    if model.baseline_kwargs:
        if model.advantage != "state":
            raise ValueError(
                f"baseline_kwargs={model.baseline_kwargs} has no effect with advantage={model.advantage!r}: it belongs to "
                "'state'. Leave it out."
            )
        known = [name for name in inspect.signature(StateBaseline).parameters if name != "input_dim"]
        unknown = sorted(set(model.baseline_kwargs) - set(known))
        if unknown:
            raise ValueError(f"baseline_kwargs has unknown keys {unknown}; there are {known}.")


def check_advantages(name: Any, advantages: Any, rollout: Rollout) -> None:
    """Check what an estimator returned for a rollout.

    :param name: the ``advantage`` argument, for the message
    :raises ValueError: if it is no tensor of the right shape, or not finite
    """
    remedy = "Check the rewards, or bound them with reward_scaling='clip'."
    _check_per_step(f"advantage={name!r}", f"advantage ({name!r})", remedy, advantages, rollout)


def check_features(features: th.Tensor, final_features: th.Tensor, rollout: Rollout) -> None:
    """Check that the state baseline can standardise its inputs: finite, and with squares that are.

    :param features: ``[M, d]`` what the policy makes of each step's observation
    :param final_features: ``[E, d]`` of the observation after each episode's last step
    :raises ValueError: naming the step, the component and its value
    """
    for values, group, t in ((features, rollout.group[rollout.episode], rollout.t), (final_features, rollout.group, None)):
        bad = ~(values.abs() <= LARGEST_FEATURE)
        if bool(bad.any()):
            row, component = bad.nonzero()[0].tolist()
            when = f"of step {int(t[row])}" if t is not None else "after the last step"
            raise ValueError(
                f"Feature {component} {when} of an episode in group {int(group[row])} of this rollout is "
                f"{float(values[row, component]):g}, but advantage='state' needs values within +-{LARGEST_FEATURE:g}. The "
                "policy has not been updated. Features are what its features extractor makes of an observation (float32): "
                "bound or scale the observation in the env or with a wrapper, or check the extractor."
            )


def check_bonus(name: Any, bonus: Any, rollout: Rollout) -> None:
    """Check what an exploration bonus returned for a rollout.

    :param name: the ``exploration_bonus`` argument, for the message
    :raises ValueError: if it is no tensor of the right shape, or not finite
    """
    remedy = "Check the function, and lower its scale or learning_rate if it has one."
    _check_per_step(f"exploration_bonus={name!r}", f"exploration bonus ({name!r})", remedy, bonus, rollout)


def _check_per_step(argument: str, what: str, remedy: str, values: Any, rollout: Rollout) -> None:
    if not isinstance(values, th.Tensor) or values.shape != rollout.rewards.shape:
        got = tuple(values.shape) if hasattr(values, "shape") else type(values).__name__
        raise ValueError(
            f"{argument} returned {got}; it must return a torch tensor with one number per step, "
            f"shape {tuple(rollout.rewards.shape)}."
        )
    if not bool(th.isfinite(values).all()):
        row = int((~th.isfinite(values)).nonzero()[0])
        raise ValueError(
            f"The {what} of step {int(rollout.t[row])} of an episode in group "
            f"{int(rollout.group[rollout.episode[row]])} of this rollout is {float(values[row])}. The policy has not been "
            f"updated. {remedy}"
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
