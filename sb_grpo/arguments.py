"""What the constructor's arguments must satisfy, alone and together. Every error names value, rule and remedy."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ParamSpec, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo import ranks
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.envs.installing import check_no_pool
from sb_grpo.envs.tensor_env import GROUPINGS, TensorVecEnv
from sb_grpo.given import Arguments
from sb_grpo.group_arguments import check_comparable, check_groups
from sb_grpo.learn.losses import Clipped
from sb_grpo.policies import ActorMultiInputPolicy, ActorPolicy
from sb_grpo.policies.heads import make_discrete_head
from sb_grpo.policy_arguments import FROM_THE_MODEL, check_constructor_keys, warn_of_overrides
from sb_grpo.ranges import NESTED, RANGES, check_settings, check_single
from sb_grpo.rules import at_progress, check_values, constructor_of, from_config, meant, plain, shown, steps_per_env
from sb_grpo.types import Rollout

#: Signs in the ids of envs that come with an extra: its name, and the package that registers them.
EXTRAS = {
    "ALE/": ("atari", "ale_py"), "NoFrameskip-v": ("atari", "ale_py"), "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
}  # fmt: skip
#: Arguments of a rollout buffer that the model hands over itself.
OF_THE_BUFFER = ("buffer_size", "observation_space", "action_space", "device", "n_envs")
P = ParamSpec("P")
R = TypeVar("R")
#: As they are when the model has been set up, which is another form than the one they were given in.
NOT_AGAIN = ("device", "normalize_advantage", "policy")

_OF_A_CRITIC = "a setting of PPO's critic, and here there is no critic. Leave it out."
_OF_TRPO = "a setting of TRPO's step, and here steps are PPO's. Leave it out; target_kl=0.01 bounds an update."
_OF_A2C = (
    "a setting of A2C's optimiser. Leave it out, or pass policy_kwargs=dict(optimizer_class=torch.optim.RMSprop, "
    "optimizer_kwargs=dict(alpha=0.99, eps=1e-5))."
)
#: Arguments of PPO, A2C and TRPO that GRPO does not have: a description, and the remedy.
OF_OTHERS = {
    **dict.fromkeys(("vf_coef", "clip_range_vf", "n_critic_updates"), _OF_A_CRITIC),
    **dict.fromkeys(("cg_max_steps", "cg_damping", "sub_sampling_factor"), _OF_TRPO),
    **dict.fromkeys(("line_search_shrinking_factor", "line_search_max_iter"), _OF_TRPO),
    **dict.fromkeys(("use_rms_prop", "rms_prop_eps"), _OF_A2C),
}


def check_names(given: Mapping[str, Any]) -> None:
    """Check that no argument is one that only PPO, A2C or TRPO have.

    :param given: values by name
    :raises TypeError: naming the argument and the remedy
    """
    for name in OF_OTHERS.keys() & given.keys():
        raise TypeError(f"GRPO got an unexpected keyword argument {name!r}: {name}={shown(given[name])} is {OF_OTHERS[name]}")


def checking_arguments(init: Callable[P, R]) -> Callable[P, R]:
    """A constructor that looks at every argument by itself first, and says what to do about names of others."""

    signature = inspect.signature(init)
    known = signature.parameters

    @wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = {name: value for name, value in kwargs.items() if name not in known}
        check_names(unknown)
        check_places(unknown)
        if unknown:
            name = next(iter(unknown))
            raise TypeError(f"GRPO got an unexpected keyword argument {name!r}{meant(name, [*known, *PLACES])}")
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return init(*args, **kwargs)  # Python's own words have the constructor's name in them
        given = {name: plain(value) for name, value in from_config(bound.arguments).items()}
        bound.arguments.update(given)
        check_single(given)
        check_env_id(given.get("env"))
        return init(*bound.args, **bound.kwargs)

    return checked


def _keys_by_dict() -> dict[str, list[str]]:
    """Keys of the dicts among the arguments, by dict; a dict within a dict is ``"multitask: weights_kwargs"``."""
    keys = {where: list(rules) for where, rules in RANGES.items() if where.partition(":")[0] in NESTED}
    keys["loss_kwargs"] += [field.name for field in fields(Clipped)]
    keys["policy_kwargs"] += [name for name in constructor_of(ActorPolicy) if name not in FROM_THE_MODEL]
    return keys


#: Dicts that a name is a key of.
PLACES = {
    name: [where for where, names in _keys_by_dict().items() if name in names]
    for name in dict.fromkeys(name for names in _keys_by_dict().values() for name in names)
}


def check_places(unknown: Mapping[str, Any]) -> None:
    """Check that no key of a dict among the arguments stands beside it.

    :param unknown: names that are no arguments, and their values
    :raises TypeError: as for every unknown argument, with the dict that the name belongs to
    """
    for name, value in unknown.items():
        if name in PLACES:
            ways = " or ".join(_within(where, f"{name}={shown(value)}") for where in PLACES[name])
            raise TypeError(f"GRPO got an unexpected keyword argument {name!r}, which is a key of a dict: pass {ways}.")


def _within(where: str, text: str) -> str:
    for part in reversed(where.split(": ")):
        text = f"{part}=dict({text})"
    return text


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
        remedy = "import the package that registers it, or write 'package:Name-v0'"
        for sign, (extra, package) in EXTRAS.items():
            if sign in env:
                remedy = f'install the extra that brings it, pip install -e ".[{extra}]", and import {package}'
        raise ValueError(f"env={shown(env)} is no registered environment ({error}): {remedy}.") from error


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


#: Members per group where an estimator compares them.
COMPARED = 8
#: Different starts that a rollout should show: with fewer, a mean over the rollout says more of their luck than of the policy.
FEW_STARTS = 8


def default_group_size(
    estimator: Any, compares: bool, obstacle: str | None, n_envs: int, steps_per_env: int, limit: int | None
) -> int:
    """Members per group where ``group_size`` is None.

    Members of a group share their start, so a group costs a rollout different starts. Where members are compared they need
    peers: 8. ``"state"`` uses a group for its pairs alone, which get as many members as leave :data:`FEW_STARTS` different
    starts in a rollout, four of them side by side: 2 on 8 envs with episodes of 200 steps, 1 (no pairs) with longer ones.
    The size divides the number of envs, so that members run side by side.

    :param estimator: an object that does not say what it needs (``needs_peers``) is taken to compare members
    :param compares: something else than the estimator compares members
    :param obstacle: the reason why members cannot be paired; None: they can
    :param n_envs: of all learners
    :param steps_per_env: of a rollout
    :param limit: steps of an episode at most; None: unknown, as the number of starts is then: no pairs unless asked for
    :return: 1 to 8
    """
    if compares or getattr(estimator, "needs_peers", None) is not False:
        return COMPARED
    paired = getattr(estimator, "paired", False)
    if paired is False or (paired is None and obstacle is not None):
        return 1
    starts = 0.0 if limit is None else n_envs * (1.0 + steps_per_env / limit)
    fitting = max(min(int(starts / FEW_STARTS), n_envs // 4, COMPARED), 1 if paired is None else 2)
    return next((size for size in range(fitting, 1, -1) if n_envs % size == 0), fitting if fitting == 2 else 1)


def warn_of_few_starts(given: Arguments, rollout: Rollout, steps_per_env: int) -> bool:
    """Warn where a rollout shows fewer than :data:`FEW_STARTS` different starts.

    :param given: with the group size of the rollout
    :param steps_per_env: of a rollout
    :return: it did
    """
    n_starts = ranks.count(rollout.n_starts)
    if n_starts >= FEW_STARTS:
        return False
    size, n_envs, n_episodes = given.group_size, given.n_envs, ranks.count(len(rollout.group))
    remedies = ["lower group_size"] if size > 1 else []
    remedies += ["raise n_envs", "raise n_steps" if given.n_groups is None else f"raise n_groups={given.n_groups}"]
    incomplete = ""
    if size > n_episodes:
        incomplete = f" group_size={size} is more than the {n_episodes} episodes of a rollout, so none holds a whole group."
    warnings.warn(
        f"This rollout shows {n_starts} different starts (group_size={size}, n_envs={n_envs}, n_steps={steps_per_env}). With "
        f"fewer than {FEW_STARTS} the policy learns their luck, and rollout/ep_rew_mean is a mean over few.{incomplete} "
        f"To see more: {', '.join(remedies)}. group_size=None derives a size from n_envs and advantage.",
        UserWarning,
        stacklevel=4,
    )
    return True


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
    if given.env is None:
        return
    on_device = isinstance(given.env, TensorVecEnv)
    usual = TensorRolloutBuffer if isinstance(given.env, TensorVecEnv) else GroupRolloutBuffer
    kind: Any = given.rollout_buffer_class or usual
    if not issubclass(kind, GroupRolloutBuffer) or issubclass(kind, TensorRolloutBuffer) != on_device:
        needed = "TensorRolloutBuffer" if on_device else "GroupRolloutBuffer (not of TensorRolloutBuffer)"
        raise ValueError(
            f"rollout_buffer_class={kind.__name__} does not go with a {type(given.env).__name__}: it must be a "
            f"subclass of {needed}, or left out."
        )
    check_constructor_keys("rollout_buffer_kwargs", kind, given.rollout_buffer_kwargs or {}, OF_THE_BUFFER)


def check_log_folder(folder: Any) -> None:
    """Make the folder for TensorBoard, before anything is trained for it.

    :param folder: a path; None: nothing is logged
    :raises ValueError: if it cannot be made, or written to
    """
    if folder is None:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder or None):
            return
    except (OSError, ValueError) as error:
        raise ValueError(
            f"tensorboard_log={shown(folder)} cannot be made or written to ({getattr(error, 'strerror', error)}): pass the "
            "path of a folder that can, or None."
        ) from error


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
