"""The one pass over the arguments of a model: types and ranges by the table of :mod:`sb_grpo.config`, then all rules between
arguments, and between them and the env. Every message names value, rule and remedy.

A rule is a function of a :class:`Config` that yields a message for everything it finds broken; :data:`RULES` holds all.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, ParamSpec, TypeVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo import distributed
from sb_grpo.baselines.estimators import make_estimator
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.collect.given_starts import STARTS, each_start
from sb_grpo.config import (
    FEW_STARTS,
    FLAG,
    GROUP_WEIGHTS,
    RANGES,
    GroupOptions,
    Multitask,
    Rewards,
    Rule,
    UpdateOptions,
    check_choice,
    check_each,
    check_keys,
    check_values,
    constructor_of,
    from_config,
    is_number,
    meant,
    number,
    read_options,
    shown,
    steps_per_env,
    to_python,
)
from sb_grpo.envs.installing import check_no_pool, time_limit
from sb_grpo.envs.instance_env import InstanceEnv
from sb_grpo.envs.tensor_env import GROUPINGS, TensorVecEnv
from sb_grpo.learn.losses import Clipped, Loss, Sapo, make_loss
from sb_grpo.policies import ActorMultiInputPolicy, ActorPolicy, EncodingPolicy
from sb_grpo.policies.heads import make_discrete_head
from sb_grpo.types import Rollout, Settings

P = ParamSpec("P")
R = TypeVar("R")


class Options(NamedTuple):
    """The objects that a model's arguments describe."""

    estimator: Any  #: settings; its ``build`` makes what learns
    loss: Loss
    groups: GroupOptions
    update: UpdateOptions
    multitask: Multitask
    rewards: Rewards

    @classmethod
    def read(cls, given: Settings) -> Options:
        """Read them from arguments by name.

        :raises ValueError: for unknown names and keys
        """
        return cls(
            make_estimator(given["advantage"], given["advantage_kwargs"]),
            make_loss(given["loss"], given["loss_kwargs"]),
            *(read_options(name, given[name]) for name in ("group_kwargs", "update_kwargs", "multitask", "rewards")),
        )


@dataclass(frozen=True)
class Config:
    """Arguments of a model as they are now, and the env that they are to go with: the values that rules look at."""

    settings: Mapping[str, object]  #: every argument of the constructor by name
    options: Options
    env: VecEnv | None
    observation_space: spaces.Space | None
    action_space: spaces.Space
    n_envs: int  #: of all learners
    device: th.device
    policy_class: type
    policy_kwargs: Settings
    use_sde: bool
    n_steps: int | None
    n_groups: int | None
    batch_size: int
    group_size: int  #: at the progress that is looked at
    clip_range: float | Schedule
    normalize_advantage: str
    advantage: object
    kl_coef: float
    rollout_buffer_class: type | None
    rollout_buffer_kwargs: Settings | None

    @property
    def simulator(self) -> TensorVecEnv | None:
        """The env, if it is one of tensors."""
        return self.env if isinstance(self.env, TensorVecEnv) else None

    @property
    def steps_per_env(self) -> int:
        """Steps per env that a rollout aims at."""
        return steps_per_env(self.n_steps, self.n_envs)


Broken = Iterator[str]


def validate(c: Config) -> None:
    """Check every argument by itself, then all rules between them and with the env.

    :raises ValueError: for the first rule that is broken
    """
    check_each(c.settings)
    for rule in RULES:
        for message in rule(c):
            raise ValueError(message)


def give_warnings(c: Config) -> None:
    """Warn of arguments that are allowed, but have less effect than they seem to have."""
    for rule in WARNINGS:
        for message in rule(c):
            warnings.warn(message, UserWarning, stacklevel=4)


# ---------------------------------------------------------------- env, spaces, device, policy class, buffer


def env_is_given(c: Config) -> Broken:
    if c.observation_space is None:
        yield "env=None: GRPO needs an environment to know its spaces. Pass an env id, an env or a VecEnv."


def policy_is_an_actor(c: Config) -> Broken:
    kind = c.policy_class
    if not isinstance(kind, type) or not issubclass(kind, ActorPolicy):
        yield (
            f"policy={getattr(kind, '__name__', kind)} has a critic or is no policy of sb_grpo: "
            "use 'MlpPolicy', 'CnnPolicy', 'MultiInputPolicy' or a subclass of sb_grpo.policies.ActorPolicy."
        )
    elif issubclass(kind, ActorMultiInputPolicy) and not isinstance(c.observation_space, spaces.Dict):
        yield f"MultiInputPolicy is for Dict observations, not {c.observation_space}: use MlpPolicy or CnnPolicy."


def instances_can_be_encoded(c: Config) -> Broken:
    """An EncodingPolicy learns from whole groups, whose instances it encodes."""
    kind = c.policy_class
    if not issubclass(kind, EncodingPolicy):
        return
    if c.simulator is not None and not isinstance(c.simulator, InstanceEnv):
        yield (
            f"policy={kind.__name__} encodes instances, which a {type(c.env).__name__} does not give apart: derive the env "
            "from sb_grpo.envs.InstanceEnv, or use 'MlpPolicy'."
        )
    if c.options.estimator.uses_values and kind.state_features is EncodingPolicy.state_features:
        yield (
            f"advantage={c.advantage!r} needs features of states, which policy={kind.__name__} has not: override "
            "state_features() and set features_dim, or use advantage='outcome' or 'step'."
        )
    refused = {
        "lower batch_size": ("update_kwargs: micro_batch_size", c.options.update.micro_batch_size is not None),
        "leave it out": ("multitask: surgery=True", c.options.multitask.surgery),
        "leave the bonus out": ("rewards: bonus", c.options.rewards.bonus is not None),
        "start the script without torchrun": ("Training with several learners", distributed.world().size > 1),
    }
    for remedy, (name, is_set) in refused.items():
        if is_set:
            yield (
                f"{name} looks at single steps or parts of them, but policy={kind.__name__} learns from whole groups: "
                f"{remedy}, or use 'MlpPolicy'."
            )


def env_and_model_share_a_device(c: Config) -> Broken:
    if c.simulator is not None and c.simulator.device.type != c.device.type:
        yield (
            f"The env is on device='{c.simulator.device}' and the model on device='{c.device}': they must share one. "
            f"Pass GRPO(..., device='{c.simulator.device}'), or make the env on the model's device."
        )


def sde_is_for_boxes(c: Config) -> Broken:
    if c.use_sde and not isinstance(c.action_space, spaces.Box):
        yield f"use_sde=True is for Box actions, not {c.action_space}: leave it out."


#: Arguments of a rollout buffer that the model hands over itself.
OF_THE_BUFFER = ("buffer_size", "observation_space", "action_space", "device", "n_envs")


def buffer_goes_with_the_env(c: Config) -> Broken:
    if c.env is None:
        return
    on_device = c.simulator is not None
    kind = c.rollout_buffer_class or (TensorRolloutBuffer if on_device else GroupRolloutBuffer)
    if not issubclass(kind, GroupRolloutBuffer) or issubclass(kind, TensorRolloutBuffer) != on_device:
        needed = "TensorRolloutBuffer" if on_device else "GroupRolloutBuffer (not of TensorRolloutBuffer)"
        yield (
            f"rollout_buffer_class={kind.__name__} does not go with a {type(c.env).__name__}: it must be a "
            f"subclass of {needed}, or left out."
        )
    check_constructor_keys("rollout_buffer_kwargs", kind, c.rollout_buffer_kwargs or {}, OF_THE_BUFFER)


# ---------------------------------------------------------------- tasks, grouping, weights, objectives


def tasks_are_known(c: Config) -> Broken:
    multitask = c.options.multitask
    if multitask.tasks is None:
        if multitask.task_key != "task":
            yield f"task_key={multitask.task_key!r} has no effect without tasks: declare them with tasks=."
    elif c.simulator is not None:
        if c.simulator.tasks is None:
            yield (
                f"tasks={multitask.tasks!r}, but {type(c.env).__name__} has one task only: its property tasks is None. Give "
                "it one that returns the task of every env, int64."
            )
        if multitask.task_key != "task":
            yield f"task_key={multitask.task_key!r} has no effect with a tensor env, whose property tasks is asked."


#: Keys of ``grouping_kwargs`` by grouping; the other groupings take none.
GROUPING_KEYS = {"difficulty": ("n_quantiles",), "length": ("n_quantiles",), "auto": ("n_clusters", "window")}


def grouping_has_what_it_needs(c: Config) -> Broken:
    multitask = c.options.multitask
    grouping = multitask.grouping
    if grouping in ("task", "hierarchical") and multitask.tasks is None:
        yield f"grouping={grouping!r} needs to know the tasks: declare them with tasks=, as a number or a list of names."
    known = () if callable(grouping) else GROUPING_KEYS.get(grouping, ())
    check_keys("multitask: grouping_kwargs", multitask.grouping_kwargs or {}, known, f"grouping={grouping!r}")
    without_effect = (
        (callable(grouping) or grouping in ("difficulty", "length", "auto"))
        and c.options.estimator.uses_values
        and c.normalize_advantage != "group"
        and multitask.weights is None
    )
    if without_effect:
        yield (
            f"grouping={grouping!r} has no effect with advantage={c.advantage!r} and "
            f"normalize_advantage={c.normalize_advantage!r}: use normalize_advantage='group', or weights=."
        )


def weights_follow_lasting_groups(c: Config) -> Broken:
    multitask = c.options.multitask
    kind = multitask.weights
    if kind is None:
        if multitask.weights_kwargs:
            yield (
                f"multitask: weights_kwargs={multitask.weights_kwargs} has no effect without weights: choose one of "
                f"{list(GROUP_WEIGHTS)}."
            )
        return
    known = RANGES["multitask: weights_kwargs"]
    check_keys("multitask: weights_kwargs", multitask.weights_kwargs or {}, known, f"weights={kind!r}")
    lasting = hasattr(multitask.grouping, "n_labels") if callable(multitask.grouping) else multitask.grouping != "seed"
    if kind in ("performance", "adaptive") and not lasting:
        reason = "same-seed groups never come back" if multitask.grouping == "seed" else "labels have no lasting meaning"
        yield (
            f"weights={kind!r} follows groups over time, but with grouping={multitask.grouping!r} {reason}. Use "
            "weights='balanced', grouping='task', or a function with an attribute n_labels."
        )


def surgery_has_tasks(c: Config) -> Broken:
    multitask = c.options.multitask
    if multitask.surgery and len(multitask.names) < 2:
        yield (
            f"multitask: surgery=True settles conflicts between tasks, but tasks={multitask.tasks!r}. Declare at least 2 with "
            "tasks=, as a number or a list of names."
        )


def objectives_add_up(c: Config) -> Broken:
    rewards = c.options.rewards
    objectives = rewards.objectives
    if objectives is None:
        if rewards.normalization != "sum":
            yield "rewards: normalization='each' has no effect without objectives: give their weights by name."
        return
    if not any(objectives.values()):
        yield f"objectives={objectives} are all 0: there would be nothing to learn from."
    if rewards.normalization == "each" and c.normalize_advantage == "none":
        yield (
            "rewards: normalization='each' has no effect with normalize_advantage='none'. Use 'group' or 'batch', or "
            "normalization='sum'."
        )
    if rewards.normalization == "each" and rewards.bonus is not None:
        yield (
            "rewards: bonus= is added to the one reward of a step, but normalization='each' keeps the objectives "
            "apart. Use normalization='sum'."
        )
    if c.simulator is not None and tuple(objectives) != tuple(c.simulator.objective_names):
        yield (
            f"objectives has weights for {list(objectives)}, but {type(c.env).__name__}.objective_names is "
            f"{list(c.simulator.objective_names)}: give a weight for each of them, in this order (0 to ignore one)."
        )


def noise_can_be_own(c: Config) -> Broken:
    if c.simulator is not None and not c.options.groups.shared_noise:
        yield (
            "group_kwargs: shared_noise=False lets the members of a group draw noise of their own in step(), which a "
            f"{type(c.env).__name__} cannot do: its luck follows from the reset seed alone. Use host envs (make_vec_env), "
            "or leave it out."
        )


def starts_go_with_the_env(c: Config) -> Broken:
    groups = c.options.groups
    starts = groups.starts
    if groups.starts_order != "cycle" and (starts is None or callable(starts)):
        reason = "without starts" if starts is None else "on a function, which is called with the groups' numbers in turn"
        yield (
            f"group_kwargs: starts_order={groups.starts_order!r} has no effect {reason}: pass starts as a sequence, or leave "
            "the order out."
        )
    if groups.tell_member and c.simulator is not None:
        yield (
            "group_kwargs: tell_member=True puts the member's number into the reset options, but the resets of a "
            f"{type(c.env).__name__} (a tensor env) get none. Use host envs (make_vec_env), or leave it out."
        )
    if starts is None:
        return
    if c.simulator is not None and c.simulator.grouping in ("state", "streams"):
        yield (
            f"group_kwargs: starts gives groups their seeds, but resets of a {type(c.env).__name__} (grouping="
            f"{c.simulator.grouping!r}) do not go by seeds. Use an env whose grouping is 'seeds', or leave it out."
        )
    if not callable(starts):
        for _ in each_start(starts, c.env, STARTS):
            pass


# ---------------------------------------------------------------- number of members

#: Meaning of a group where the simulator cannot give any env any start.
FIXED_GROUPS = {
    "streams": "the envs' starts come from streams that are seeded together, so a group is group_size neighbouring envs",
    "synchronous": "all envs start together, so a group is group_size neighbouring envs",
    "instances": "group_size neighbouring envs work on one instance",
}


def groups_fit_the_simulator(c: Config) -> Broken:
    env = c.simulator
    if env is None:
        return
    if env.grouping not in GROUPINGS:
        yield f"{type(env).__name__}.grouping={env.grouping!r} is unknown; use one of {list(GROUPINGS)}."
    if env.grouping in FIXED_GROUPS and env.num_envs % c.group_size != 0:
        yield (
            f"num_envs={env.num_envs} is no multiple of group_size={c.group_size}, but in a {type(env).__name__} "
            f"(grouping={env.grouping!r}) {FIXED_GROUPS[env.grouping]}. Make it with num_envs="
            f"{-(-env.num_envs // c.group_size) * c.group_size}, or choose a group_size that divides {env.num_envs}."
        )


def members_can_be_paired(c: Config) -> Broken:
    obstacle = obstacle_to_pairs(c.group_size, c.options.multitask.grouping, c.env)
    if asks_for_pairs(c.options.estimator) and obstacle is not None:
        yield (
            f"advantage_kwargs: paired={c.options.estimator.paired!r} subtracts the luck that members of a same-seed group "
            f"share, but {obstacle}, or paired=False."
        )


def episodes_can_be_clustered(c: Config) -> Broken:
    multitask = c.options.multitask
    if multitask.grouping == "auto" and c.n_groups is not None:
        n_clusters = (multitask.grouping_kwargs or {}).get("n_clusters", 4)
        episodes = c.n_groups * c.group_size
        if n_clusters > episodes:
            yield (
                f"grouping_kwargs: n_clusters={n_clusters} is more than the {episodes} episodes of a rollout (n_groups="
                f"{c.n_groups} x group_size={c.group_size}). Lower n_clusters or raise n_groups."
            )


def a_member_has_others(c: Config) -> Broken:
    if c.group_size > 1 or c.options.multitask.grouping not in ("seed", "hierarchical"):
        return
    if c.normalize_advantage == "group":
        yield "group_size=1 leaves nothing to normalise within a group. Use group_size >= 2, or normalize_advantage='batch'."
    if getattr(c.options.estimator, "needs_other_members", False):
        yield (
            f"group_size=1 leaves no other members in a group, so advantage={c.advantage!r} would be 0 everywhere. "
            "Use group_size >= 2, or advantage_kwargs=dict(baseline='global')."
        )


def refill_has_groups_to_count(c: Config) -> Broken:
    if not c.options.groups.refill:
        return
    if c.n_groups is None or c.group_size == 1:
        yield (
            f"group_kwargs: refill=True collects on until n_groups groups have a spread, but n_groups={c.n_groups} and "
            f"group_size={c.group_size}. Pass n_groups=8 and group_size=8, for example, or leave it out."
        )
    objectives = c.options.rewards.objectives
    if c.options.multitask.grouping not in ("seed", "hierarchical") or objectives is not None:
        yield (
            "group_kwargs: refill=True looks at the env's own rewards within same-seed groups, which "
            f"grouping={c.options.multitask.grouping!r} or objectives={objectives!r} would replace. Leave one of them out."
        )


def asks_for_pairs(estimator: object) -> bool:
    """``paired`` was given, and is not False. A coefficient of 0 asks for pairs too."""
    paired = getattr(estimator, "paired", None)
    return paired is not None and paired is not False


def obstacle_to_pairs(group_size: int, grouping: object, env: object) -> str | None:
    """The reason why members of a group have no other members that share their noise, and the remedy; None where they have."""
    if group_size == 1:
        return "group_size=1 leaves no other members in a group. Use group_size >= 2"
    if grouping not in ("seed", "hierarchical"):
        return f"grouping={grouping!r} compares episodes of different seeds. Use grouping='seed' (or 'hierarchical')"
    if isinstance(env, TensorVecEnv) and env.grouping == "state":
        return (
            f"{type(env).__name__} cannot seed its resets (grouping='state'), so that members share a start and nothing more. "
            "Use an env whose reset seeds decide its randomness"
        )
    return None


# ---------------------------------------------------------------- sizes


def rollout_fits_into_memory(c: Config) -> Broken:
    """A rollout that no memory holds would be found out by the system, which ends the process."""
    space = c.observation_space
    parts: list[Any] = [*space.spaces.values()] if isinstance(space, spaces.Dict) else [space]
    per_step = 64 + sum(int(np.prod(part.shape or (1,))) * part.dtype.itemsize for part in parts)
    needed = per_step * c.steps_per_env * c.n_envs
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        yield (
            f"n_steps={c.n_steps} x n_envs={c.n_envs} needs {needed / 2**30:.0f} GiB for a rollout of observations "
            f"{space}, but there are {there / 2**30:.0f} GiB. Lower n_steps, or use fewer envs."
        )


def one_argument_sets_the_rollout(c: Config) -> Broken:
    if c.n_steps is not None and c.n_groups is not None:
        yield (
            f"n_steps={c.n_steps} and n_groups={c.n_groups} both set the rollout's size: pass one of them, "
            "and None for the other where an entry or a saved model has set it."
        )


def minibatch_can_be_split(c: Config) -> Broken:
    size = c.options.update.micro_batch_size
    length = c.options.update.sequence_length
    if size is None:
        return
    if size > c.batch_size:
        yield (
            f"micro_batch_size={size} is larger than batch_size={c.batch_size}: "
            "it is the part of a minibatch that is in memory at once. Lower it."
        )
    if length is not None and size < length:
        yield (
            f"micro_batch_size={size} is smaller than sequence_length="
            f"{length}: gradients go back through that many steps, which must be in memory at once. "
            "Raise the one or lower the other, or leave sequence_length out."
        )
    level = c.options.loss.importance_level
    if level != "step":
        yield f"micro_batch_size cannot split episodes that importance_level={level!r} needs whole: lower batch_size instead."


def learners_can_share_the_work(c: Config) -> Broken:
    n = distributed.world().size
    if n == 1:
        return
    if c.n_groups is not None and c.n_groups % n:
        yield (
            f"n_groups={c.n_groups} is no multiple of the {n} learners, each of which collects its share: use "
            f"n_groups={-(-c.n_groups // n) * n}, or another --nproc-per-node."
        )
    if c.batch_size < n:
        yield (
            f"batch_size={c.batch_size} is smaller than the number of learners, {n}, whose rows make up a minibatch "
            "together: raise it, or start fewer with --nproc-per-node."
        )
    multitask = c.options.multitask
    bonus = c.options.rewards.bonus
    of_all_episodes = {
        f"multitask: grouping={multitask.grouping!r}": multitask.grouping != "seed",
        f"multitask: weights={multitask.weights!r}": multitask.weights is not None,
        "multitask: surgery=True": multitask.surgery,
        f"rewards: bonus={bonus!r}": bonus is not None,
        f"advantage={c.advantage!r} with baseline='global'": c.advantage in ("step", "anchor")
        and getattr(c.options.estimator, "baseline", None) == "global",
    }
    for name, is_set in of_all_episodes.items():
        if is_set:
            yield (
                f"{name} compares or learns over all episodes, which {n} learners do not share: start the script without "
                "torchrun, or leave it out (docs/scale.md says what several learners can do)."
            )


# ---------------------------------------------------------------- arguments that would be ignored without a word


def reference_has_an_effect(c: Config) -> Broken:
    loss = c.options.loss
    if loss.ref_sync_interval is not None and c.kl_coef == 0:
        yield (
            f"loss_kwargs: ref_sync_interval={loss.ref_sync_interval} has no effect with kl_coef=0: there is no reference "
            "policy to sync. Set kl_coef > 0, or leave ref_sync_interval out."
        )
    if loss.kl_correction and c.kl_coef == 0:
        yield (
            "loss_kwargs: kl_correction=True has no effect with kl_coef=0: there is no KL to correct. Set kl_coef > 0, or "
            "leave kl_correction out."
        )
    if loss.ref_policy is not None and c.kl_coef == 0:
        yield (
            "loss_kwargs: ref_policy has no effect with kl_coef=0: nothing is measured against it. Set kl_coef > 0; or, to "
            "start from those weights, sb_grpo.policies.load_actor(model.policy, ...)."
        )


def loss_reads_what_there_is(c: Config) -> Broken:
    loss = c.options.loss
    if isinstance(loss, Sapo) and loss.clip_range_high is not None:
        yield (
            f"loss_kwargs: clip_range_high={loss.clip_range_high!r} has no effect with loss='sapo', whose gate takes the "
            "place of the clip: use temperature_pos and temperature_neg, or leave clip_range_high out."
        )
    if loss.importance_level == "turn" and c.simulator is not None:
        yield (
            f"loss_kwargs: importance_level='turn' reads info['turn'], but {type(c.env).__name__} is a tensor env, which "
            "makes no infos while it trains. Use importance_level='step' or 'episode'."
        )


def ratio_cap_is_above_the_clip(c: Config) -> Broken:
    loss = c.options.loss
    if isinstance(loss, Clipped) and loss.ratio_cap is not None:
        clip_high = c.clip_range if loss.clip_range_high is None else loss.clip_range_high
        largest = 1.0 + float(FloatSchedule(clip_high)(1.0))
        if loss.ratio_cap <= largest:
            yield (
                f"loss_kwargs: ratio_cap={loss.ratio_cap} must be larger than 1 + the upper clip range, {largest}: it "
                "bounds what the clip lets through. 3 to 10 is usual."
            )


# ---------------------------------------------------------------- arguments of the policy

#: Settings that only a policy with a memory looks at.
OF_MEMORY = ("memory_size", "n_layers", "memory_span")
#: Settings of sb3-contrib's recurrent policies, and the remedy here.
OF_RECURRENT_PPO = {
    "lstm_hidden_size": "use memory_size",
    "n_lstm_layers": "use n_layers",
    "shared_lstm": "there is no critic to share it with, leave it out",
    "enable_critic_lstm": "there is no critic, leave it out",
    "lstm_kwargs": "memory_size, n_layers and memory_span are what can be set, leave it out",
}


def policy_has_a_memory_where_it_needs_one(c: Config) -> Broken:
    kwargs = c.policy_kwargs
    kind = c.policy_class
    parameters = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    for key, remedy in OF_RECURRENT_PPO.items():
        if key in kwargs and key not in parameters:
            yield f"policy_kwargs: {key}={kwargs[key]!r} is a setting of RecurrentPPO: {remedy}."
    if kwargs.get("memory") is not None:
        if not any(p.name == "memory" or p.kind is p.VAR_KEYWORD for p in parameters.values()):
            yield (
                f"policy_kwargs: memory={kwargs['memory']!r}, but {kind.__name__}.__init__ takes no memory: "
                "hand **kwargs on to sb_grpo.policies.ActorPolicy, or use 'MlpPolicy', 'CnnPolicy' or 'MultiInputPolicy'."
            )
    elif "memory" in parameters:
        for key in OF_MEMORY:
            if key in kwargs:
                yield (
                    f"policy_kwargs: {key}={kwargs[key]!r} has no effect without a memory: add memory='lstm' or "
                    "'gru', or leave it out."
                )


def sequences_fit_into_rollouts(c: Config) -> Broken:
    length = c.options.update.sequence_length
    if length is None:
        return
    if c.policy_kwargs.get("memory") is None:
        yield (
            f"update_kwargs: sequence_length={length!r} has no effect without a memory: pass "
            "policy_kwargs=dict(memory='gru'), or leave it out."
        )
    whole_episodes = c.options.estimator.whole_episodes or c.n_groups is not None
    limit = None if c.env is None else time_limit(c.env)
    longest = min((n for n in (None if whole_episodes else c.steps_per_env, limit) if n is not None), default=None)
    if longest is not None and length > longest:
        yield (
            f"update_kwargs: sequence_length={length} is longer than any sequence of a rollout, which has at most "
            f"{longest} steps of an episode. Lower it, or leave it out."
        )


#: Arguments that a model hands to a policy itself.
FROM_THE_MODEL = ("observation_space", "action_space", "lr_schedule", "use_sde")


def policy_and_its_parts_take_the_names(c: Config) -> Broken:
    kwargs = c.policy_kwargs
    check_constructor_keys("policy_kwargs", c.policy_class, kwargs, FROM_THE_MODEL)
    parameters = inspect.signature(c.policy_class.__init__).parameters  # type: ignore[misc]
    for part, from_the_policy in (("features_extractor", ["observation_space"]), ("optimizer", ["params", "lr"])):
        kind = kwargs.get(f"{part}_class") or getattr(parameters.get(f"{part}_class"), "default", None)
        inner = kwargs.get(f"{part}_kwargs") or {}
        if part == "optimizer" and "lr" in inner:
            yield f"policy_kwargs: optimizer_kwargs has lr={inner['lr']!r}, which is the model's learning_rate: pass it there."
        if isinstance(kind, type):
            check_constructor_keys(f"policy_kwargs: {part}_kwargs", kind, inner, from_the_policy)
            if kind.__module__.startswith("torch.optim"):
                check_values(f"policy_kwargs: {part}_kwargs", inner, _rules_of(kind))


def check_constructor_keys(where: str, kind: type, kwargs: Collection[str], taken: Collection[str]) -> None:
    """Check the keys of a dict that a class is built with. A class that takes any name is asked nothing.

    :param where: the argument that the dict is, for the message
    :param taken: names that are handed over in another way
    :raises ValueError: for the first unknown one, with the nearest name
    """
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = [p.name for p in list(parameters)[1:] if p.kind is not p.VAR_POSITIONAL and p.name not in taken]
        check_keys(where, kwargs, names, kind.__name__)


def _rules_of(kind: type) -> dict[str, Rule]:
    """Rules for the settings of an optimiser of torch: each must be of the kind of its default."""
    rules: dict[str, Rule] = {}
    factor = number(-1e6, 1e6)
    for name, parameter in inspect.signature(kind).parameters.items():
        usual = parameter.default
        if isinstance(usual, bool):
            rules[name] = FLAG
        elif is_number(usual):
            rules[name] = factor._replace(text=f"{factor.text}; {usual} is usual")
        elif isinstance(usual, tuple) and all(is_number(part) for part in usual):
            rules[name] = Rule(f"must be {len(usual)} numbers, as {usual}", partial(_are_factors, len(usual)))
    return rules


def _are_factors(n: int, value: object) -> bool:
    return (
        isinstance(value, tuple | list) and len(value) == n and all(number(-1e6, 1e6).fine(to_python(part)) for part in value)
    )


def routes_are_those_of_the_tasks(c: Config) -> Broken:
    n_tasks = c.policy_kwargs.get("n_tasks")
    names = c.options.multitask.names
    if n_tasks is not None and names and n_tasks != len(names):
        yield f"policy_kwargs: n_tasks={n_tasks}, but multitask: tasks declares {len(names)}: pass n_tasks={len(names)}."


#: All rules, in the order in which they are asked: later ones rely on earlier ones.
RULES: tuple[Callable[[Config], Broken], ...] = (
    env_is_given,
    policy_is_an_actor,
    instances_can_be_encoded,
    env_and_model_share_a_device,
    sde_is_for_boxes,
    buffer_goes_with_the_env,
    tasks_are_known,
    grouping_has_what_it_needs,
    weights_follow_lasting_groups,
    surgery_has_tasks,
    objectives_add_up,
    noise_can_be_own,
    starts_go_with_the_env,
    groups_fit_the_simulator,
    members_can_be_paired,
    episodes_can_be_clustered,
    a_member_has_others,
    refill_has_groups_to_count,
    rollout_fits_into_memory,
    one_argument_sets_the_rollout,
    minibatch_can_be_split,
    reference_has_an_effect,
    loss_reads_what_there_is,
    ratio_cap_is_above_the_clip,
    learners_can_share_the_work,
    policy_has_a_memory_where_it_needs_one,
    sequences_fit_into_rollouts,
    policy_and_its_parts_take_the_names,
    routes_are_those_of_the_tasks,
)

# ---------------------------------------------------------------- warnings

#: Methods that SB3's algorithms or predict() call on a policy and a training does not: the one in use, and its purpose.
NEVER_CALLED = {
    "forward": ("sample", "acts in training"),
    "act_and_remember": ("sample", "acts in training"),
    "_predict": ("sample", "acts in training"),
    "get_distribution": ("_scores", "the distribution is made of"),
    "evaluate_actions": ("_scores", "log-probabilities and entropies are made of"),
    "_get_action_dist_from_latent": ("_scores", "the distribution is made of"),
    "_build": ("_build_action_head", "makes the layers"),
    "_build_mlp_extractor": ("_build_action_head", "makes the layers: put a network of your own into self.policy_net"),
}


def methods_of_the_policy_are_called(c: Config) -> Broken:
    """A method of a user's policy class that is not used, unless the one that is used in its place is there too."""
    kind = c.policy_class
    above = kind.__mro__[: kind.__mro__.index(ActorPolicy)]
    brought = {name for cls in above if not cls.__module__.startswith("sb_grpo.") for name in vars(cls)}
    for name, (used, does) in NEVER_CALLED.items():
        if name in brought and used not in brought:
            yield (
                f"policy={kind.__name__} has a {name}() of its own, which training does not call. What counts is "
                f"{used}(), which {does}: override that, or pass features_extractor_class or net_arch in policy_kwargs."
            )


def pairs_share_their_noise(c: Config) -> Broken:
    if asks_for_pairs(c.options.estimator) and not c.options.groups.shared_noise:
        yield (
            f"advantage_kwargs: paired={c.options.estimator.paired!r} with shared_noise=False: members draw noise of their "
            "own in step(), so nothing is left to pair but the start. Use shared_noise=True where pairing is to help."
        )


WARNINGS: tuple[Callable[[Config], Broken], ...] = (methods_of_the_policy_are_called, pairs_share_their_noise)


def check_rollout_size(c: Config) -> None:
    """Warn where a rollout does not fill a minibatch: before a training, as a loaded model may be there to be watched."""
    rows = c.steps_per_env * c.n_envs
    if c.n_groups is None and rows < c.batch_size:
        warnings.warn(
            f"n_steps={c.steps_per_env} x n_envs={c.n_envs} gives {rows} steps, too few for one minibatch of "
            f"batch_size={c.batch_size}: each rollout is one minibatch. Raise n_steps or lower batch_size.",
            UserWarning,
            stacklevel=2,
        )


def warn_of_few_starts(c: Config, rollout: Rollout, steps_per_env: int) -> bool:
    """Warn where a rollout shows fewer than :data:`FEW_STARTS` different starts.

    :param c: with the group size of the rollout
    :param steps_per_env: of a rollout
    :return: it did
    """
    n_starts = distributed.count(rollout.n_groups)
    if n_starts >= FEW_STARTS:
        return False
    n_episodes = distributed.count(len(rollout.group))
    remedies = ["lower group_size"] if c.group_size > 1 else []
    remedies += ["raise n_envs", "raise n_steps" if c.n_groups is None else f"raise n_groups={c.n_groups}"]
    incomplete = ""
    if c.group_size > n_episodes:
        incomplete = (
            f" group_size={c.group_size} is more than the {n_episodes} episodes of a rollout, so none holds a whole group."
        )
    warnings.warn(
        f"This rollout shows {n_starts} different starts (group_size={c.group_size}, n_envs={c.n_envs}, "
        f"n_steps={steps_per_env}). With fewer than {FEW_STARTS} the policy learns their luck, and rollout/ep_rew_mean is a "
        f"mean over few.{incomplete} "
        f"To see more: {', '.join(remedies)}. group_size=None derives a size from n_envs and advantage.",
        UserWarning,
        stacklevel=4,
    )
    return True


# ---------------------------------------------------------------- the constructor

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


def check_names(given: Mapping[str, object]) -> None:
    """Check that no argument is one that only PPO, A2C or TRPO have.

    :param given: values by name
    :raises TypeError: naming the argument and the remedy
    """
    for name in OF_OTHERS.keys() & given.keys():
        raise TypeError(f"GRPO got an unexpected keyword argument {name!r}: {name}={shown(given[name])} is {OF_OTHERS[name]}")


def _keys_by_dict() -> dict[str, list[str]]:
    """Keys of the dicts among the arguments, by dict; a dict within a dict is ``"multitask: weights_kwargs"``."""
    keys = {where: list(rules) for where, rules in RANGES.items() if where.partition(":")[0] in RANGES[""]}
    keys["loss_kwargs"] += [field.name for field in fields(Clipped)]
    keys["policy_kwargs"] += [name for name in constructor_of(ActorPolicy) if name not in FROM_THE_MODEL]
    return keys


#: Dicts that a name is a key of.
PLACES = {
    name: [where for where, names in _keys_by_dict().items() if name in names]
    for name in dict.fromkeys(name for names in _keys_by_dict().values() for name in names)
}


def check_places(unknown: Mapping[str, object]) -> None:
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


def checking_arguments(init: Callable[P, R]) -> Callable[P, R]:
    """A constructor that gets its numbers as Python's and its settings as dicts, after a check of every argument by itself
    and of names that it does not know."""

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
        bound.apply_defaults()
        bound.arguments.update(from_config(bound.arguments))
        check_each(bound.arguments)
        check_env_id(bound.arguments["env"])
        return init(*bound.args, **bound.kwargs)

    return checked


def check_policy_name(name: str, known: Collection[str]) -> None:
    """Check that a policy has a name that there is.

    :param known: names there are
    :raises ValueError: if it is none of them; for sb3-contrib's recurrent policies with the argument to use in their place
    """
    without = name.replace("Lstm", "")
    if name != without and without in known:
        raise ValueError(f"policy={name!r}: here a memory is a setting. Use {without!r}, policy_kwargs=dict(memory='lstm').")
    check_choice("policy", name, known)


# ---------------------------------------------------------------- envs


#: Signs in the ids of envs that come with an extra: its name, and the package that registers them.
EXTRAS = {
    "ALE/": ("atari", "ale_py"), "NoFrameskip-v": ("atari", "ale_py"), "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
}  # fmt: skip


def check_env_id(env: object) -> None:
    """Check that a name is that of a registered env.

    :param env: anything; only text is looked at
    :raises ValueError: with Gymnasium's reason
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


def check_env(env: object) -> None:
    """Check that this is an env whose spaces are among those that SB3's PPO takes.

    :raises ValueError: naming the value and the remedy
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
    observation_space = env.observation_space
    action_space = env.action_space
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


def check_early_reset(env: VecEnv, can_continue: bool) -> None:
    """Check that envs may be reset in mid-episode, as a new ``learn()`` does: a strict Monitor forbids it.

    :param can_continue: the episodes could go on instead
    :raises ValueError: if one of the envs has ``Monitor(allow_early_resets=False)``
    """
    monitored = [env_index for env_index, found in enumerate(env.env_is_wrapped(Monitor)) if found]
    early = env.get_attr("allow_early_resets", monitored) if monitored else []
    strict = [env_index for env_index, allowed in zip(monitored, early, strict=True) if not allowed]
    if strict and not all(env.get_attr("needs_reset", strict)):
        continuing = "Continue with learn(..., reset_num_timesteps=False), or build" if can_continue else "Build"
        raise ValueError(
            "learn() has to reset the envs in mid-episode, but Monitor(allow_early_resets=False) forbids that. "
            f"{continuing} the Monitor with allow_early_resets=True."
        )


# ---------------------------------------------------------------- files


def check_log_folder(folder: str | None) -> None:
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
