"""Data types: the rollout, its minibatches, and observations of any form."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_action_dim

TensorOrDict = th.Tensor | dict[str, th.Tensor]
#: Observations of any form: arrays or tensors ``[n_envs, ...]``, or dicts of such.
Obs: TypeAlias = Any
#: Action of one env: a number, or an array of numbers.
Action: TypeAlias = int | np.integer | np.ndarray
#: Info of one env, as Gymnasium's ``step`` and ``reset`` return it.
Info: TypeAlias = dict[str, Any]
#: Keyword arguments or settings by name.
Kwargs: TypeAlias = dict[str, Any]
Settings: TypeAlias = Mapping[str, Any]
#: State by name, as a ``state_dict()`` returns it and as a ``load_state_dict()`` takes it.
State: TypeAlias = dict[str, Any]
SavedState: TypeAlias = Mapping[str, Any]
NOTHING: Settings = MappingProxyType({})
#: Path of a file, or a file that is open.
File: TypeAlias = str | Path | io.BufferedIOBase
#: Key of the number of the turn within an episode: in an info, and in the extra columns of a rollout.
TURN = "turn"


def action_row(space: spaces.Space) -> tuple[tuple[int, ...], th.dtype]:
    """Shape and type of an action as rollouts hold it."""
    if isinstance(space, spaces.Discrete):
        return (), th.int64
    return (get_action_dim(space),), th.int64 if isinstance(space, spaces.MultiDiscrete) else th.float32


class Breakdown(ValueError):
    """A training cannot go on from here: a value is not finite, or beyond all measure."""


class Rollout(NamedTuple):
    """Result of one collection: M steps of E episodes of n_groups groups, steps packed by episode."""

    observations: TensorOrDict  #: [M, ...]
    actions: th.Tensor  #: [M] or [M, n]
    log_probs: th.Tensor  #: [M] under the policy that took the action
    rewards: th.Tensor  #: [M]
    t: th.Tensor  #: [M] int64, step number within the episode, from 0 at the reset
    episode: th.Tensor  #: [M] int64, 0 to E-1, ascending
    group: th.Tensor  #: [E] int64, 0 to n_groups-1
    terminated: th.Tensor  #: [E] bool, the env said the episode is over
    truncated: th.Tensor  #: [E] bool, a time limit ended it
    #: [E, ...] after the last step; zeros where terminated, and for an EncodingPolicy on tensor envs whose estimator does not
    #: use values.
    final_observations: TensorOrDict
    n_groups: int
    max_length: int  #: no episode in here has more steps
    # The following are None, or not there, unless an option asks for it (see sb_grpo.collect.extra_fields).
    task: th.Tensor | None = None  #: [E] int64, 0 to the number of declared tasks - 1
    objectives: th.Tensor | None = None  #: [M, K] float32, the reward by objective
    episode_return: th.Tensor | None = None  #: [E] undiscounted return since the reset, steps of earlier rollouts included
    seed_group: th.Tensor | None = None  #: [E] int64, number of the episode's same-seed group in the model's stream of them
    instance: th.Tensor | None = None  #: [E] int64, row of the episode's problem instance in ``instances``
    instances: TensorOrDict | None = None  #: [n, ...] problem instances that an EncodingPolicy encodes, one per group
    extra: Mapping[str, th.Tensor] = NOTHING  #: further columns of the steps by name, [M, ...]; minibatches have them too


#: Fields of a rollout with one row per step, and with one per episode.
PER_STEP = ("observations", "actions", "log_probs", "rewards", "t", "objectives", "extra")
PER_EPISODE = ("terminated", "truncated", "final_observations", "task", "episode_return", "seed_group", "instance")


def select_episodes(rollout: Rollout, episodes: th.Tensor) -> tuple[Rollout, th.Tensor]:
    """Some episodes of a rollout as a rollout of their own.

    :param rollout: E episodes
    :param episodes: ``[E]`` bool, at least one True
    :return: the smaller rollout, and the ``[m]`` rows of the larger one that it holds
    :raises ValueError: if it is something else, such as the numbers of episodes
    """
    if episodes.dtype != th.bool or episodes.shape != rollout.group.shape or not episodes.any():
        raise ValueError(
            f"episodes is {episodes.dtype} of shape {tuple(episodes.shape)} and must be torch.bool of shape "
            f"{tuple(rollout.group.shape)} with a True in it, one flag per episode: of numbers, write "
            "th.isin(th.arange(len(rollout.group)), numbers)."
        )
    rows = episodes[rollout.episode].nonzero().squeeze(1)
    kept = episodes.nonzero().squeeze(1)
    groups, group = th.unique(rollout.group[kept], return_inverse=True)

    def of_rows(column: Obs) -> Obs:
        return None if column is None else map_obs(lambda x: x.index_select(0, rows), column)

    def of_episodes(column: Obs) -> Obs:
        return None if column is None else map_obs(lambda x: x.index_select(0, kept), column)

    part = rollout._replace(
        **{name: of_rows(getattr(rollout, name)) for name in PER_STEP},
        **{name: of_episodes(getattr(rollout, name)) for name in PER_EPISODE},
        episode=(episodes.cumsum(0) - 1)[rollout.episode[rows]],
        group=group,
        n_groups=len(groups),
    )
    return part, rows


#: No training has more same-seed groups.
MOST_GROUPS = 1 << 40


def join_rollouts(first: Rollout, second: Rollout) -> Rollout:
    """Two rollouts as one, the second's episodes and groups after the first's; ``seed_group`` then only says their order."""

    def both(name: str) -> Obs:
        columns = getattr(first, name), getattr(second, name)
        return None if columns[0] is None else map_obs(lambda *parts: th.cat(parts), *columns)

    if first.seed_group is not None:  # of several learners too; a group that goes on is two
        first = first._replace(seed_group=first.seed_group - MOST_GROUPS)
    return first._replace(
        **{name: both(name) for name in (*PER_STEP, *PER_EPISODE)},
        episode=th.cat([first.episode, second.episode + len(first.group)]),
        group=th.cat([first.group, second.group + first.n_groups]),
        n_groups=first.n_groups + second.n_groups,
        max_length=max(first.max_length, second.max_length),
    )


class AdvantageOptions(NamedTuple):
    """Options of every estimator."""

    gamma: float = 0.995  #: discount, in [0, 1]
    gae_lambda: float = 0.95  #: lambda of the lambda-return, in [0, 1]; used by ``"state"``
    normalize: str = "group"  #: divide by the spread of the ``"group"``, of the ``"batch"``, or not at all: ``"none"``


class Features(NamedTuple):
    """Features that the policy extracts from a rollout's observations."""

    steps: th.Tensor  #: [M, d] before each step
    final: th.Tensor  #: [E, d] after each episode's last step


class Estimate(NamedTuple):
    """Result of an estimator."""

    advantages: th.Tensor  #: [M]
    explained: float | None = None  #: explained variance of the values, where it has any (mean over its parts)
    metrics: Mapping[str, float] = NOTHING  #: further metrics to log, by key


class Estimator(Protocol):
    """Interface: computes one number per step of a rollout."""

    uses_values: bool
    whole_episodes: bool

    def estimate(self, rollout: Rollout, options: AdvantageOptions, features: Features | None, objective: int = 0) -> Estimate:
        """Estimate the advantages of a rollout.

        :param features: of its observations, if ``uses_values``
        :param objective: index of the reward column in the rollout's rewards
        """


class Minibatch(NamedTuple):
    """Rows of a rollout as the loss wants them."""

    observations: TensorOrDict
    actions: th.Tensor
    old_log_probs: th.Tensor
    advantages: th.Tensor
    weights: th.Tensor
    episode: th.Tensor
    extra: Mapping[str, th.Tensor] = NOTHING  #: further columns by name
    instance: th.Tensor | None = None  #: [B] int64, row of ``instances`` that a row belongs to; None: there are none
    instances: TensorOrDict | None = None  #: [n, ...] problem instances; in a part that is learnt from, B / n rows each

    def map(self, fn: Callable[[th.Tensor], th.Tensor]) -> Minibatch:
        """The same function applied to every column of rows."""
        columns: Kwargs = self._replace(instances=None)._asdict()
        mapped = {name: map_obs(fn, column) for name, column in columns.items() if column is not None}
        return Minibatch(**mapped)._replace(instances=self.instances)


@dataclass(frozen=True)
class UpdateResult:
    """Metrics of an update, and of the rollout that it was made with. They are nan where there is nothing to tell."""

    policy_loss: float = math.nan  #: surrogate of the last rollout under the updated policy
    entropy_loss: float = math.nan  #: negative mean entropy, by the rows' weights
    kl_penalty: float = math.nan  #: k3 KL to the reference policy; 0 without one
    total_loss: float = math.nan
    grad_norm: float = math.nan  #: mean over gradient steps, before clipping
    mean_entropy: float = math.nan
    approx_kl: float = math.nan  #: k3 KL between the policy that collected and the updated one
    clip_fraction: float = math.nan  #: share of the rows whose ratio is outside the clip range
    clip_fraction_low: float = math.nan
    clip_fraction_high: float = math.nan
    group_baseline: float = math.nan  #: mean return of a group
    mean_reward: float = math.nan
    reward_std: float = math.nan
    mean_advantage: float = math.nan
    advantage_std: float = math.nan
    n_epochs: int = 0  #: begun
    n_gradient_steps: int = 0
    stopped_early: bool = False  #: by ``target_kl``


def map_obs(fn: Callable[..., object], *obs: Obs) -> Obs:
    """Apply ``fn`` to observations, key by key where they are dicts."""
    if isinstance(obs[0], Mapping):
        return {key: fn(*(o[key] for o in obs)) for key in obs[0]}
    return fn(*obs)
