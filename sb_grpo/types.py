"""What travels between the boxes: the rollout, its minibatches, and observations of any form."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch as th

TensorOrDict = th.Tensor | dict[str, th.Tensor]
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Rollout(NamedTuple):
    """What one collection gathered: M steps of E episodes of n_groups groups, steps packed by episode."""

    observations: TensorOrDict  #: [M, ...]
    actions: th.Tensor  #: [M] or [M, n]
    log_probs: th.Tensor  #: [M] under the policy that took the action
    rewards: th.Tensor  #: [M]
    t: th.Tensor  #: [M] int64, step number within the episode, from 0 at the reset
    episode: th.Tensor  #: [M] int64, 0 to E-1, ascending
    group: th.Tensor  #: [E] int64, 0 to n_groups-1
    terminated: th.Tensor  #: [E] bool, the env said the episode is over
    truncated: th.Tensor  #: [E] bool, a time limit ended it
    final_observations: TensorOrDict  #: [E, ...] after the last step; zeros where terminated
    n_groups: int
    max_length: int  #: no episode in here has more steps
    # What follows is None unless an option asks for it (see sb_grpo.columns).
    task: th.Tensor | None = None  #: [E] int64, 0 to the number of declared tasks - 1
    objectives: th.Tensor | None = None  #: [M, K] float32, the reward by objective
    episode_return: th.Tensor | None = None  #: [E] undiscounted return since the reset, steps of earlier rollouts included
    seed_group: th.Tensor | None = None  #: [E] int64, number of the episode's same-seed group in the model's stream of them


def select_episodes(rollout: Rollout, episodes: th.Tensor) -> tuple[Rollout, th.Tensor]:
    """Some episodes of a rollout as a rollout of their own.

    :param rollout: E episodes
    :param episodes: ``[E]`` bool, at least one True
    :return: the smaller rollout, and the ``[m]`` rows of the larger one that it holds
    """
    rows = episodes[rollout.episode].nonzero().squeeze(1)
    kept = episodes.nonzero().squeeze(1)
    groups, group = th.unique(rollout.group[kept], return_inverse=True)

    def of_rows(column: Any) -> Any:
        return None if column is None else map_obs(lambda x: x.index_select(0, rows), column)

    def of_episodes(column: Any) -> Any:
        return None if column is None else map_obs(lambda x: x.index_select(0, kept), column)

    by_row = ("observations", "actions", "log_probs", "rewards", "t", "objectives")
    by_episode = ("terminated", "truncated", "final_observations", "task", "episode_return", "seed_group")
    part = rollout._replace(
        **{name: of_rows(getattr(rollout, name)) for name in by_row},
        **{name: of_episodes(getattr(rollout, name)) for name in by_episode},
        episode=(episodes.cumsum(0) - 1)[rollout.episode[rows]],
        group=group,
        n_groups=len(groups),
    )
    return part, rows


class Minibatch(NamedTuple):
    """Rows of a rollout as the loss wants them."""

    observations: TensorOrDict
    actions: th.Tensor
    old_log_probs: th.Tensor
    advantages: th.Tensor
    weights: th.Tensor
    episode: th.Tensor


def map_obs(fn: Any, *obs: Any) -> Any:
    """Apply ``fn`` to observations, key by key where they are dicts."""
    if isinstance(obs[0], dict):
        return {key: fn(*(o[key] for o in obs)) for key in obs[0]}
    return fn(*obs)
