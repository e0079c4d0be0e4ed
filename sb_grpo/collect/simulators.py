"""Groups for simulators whose resets cannot be seeded env by env: leaders' states, paired streams, common starts.

:class:`sb_grpo.collect.groups.TensorGroups` is the rule, and never waits for the device. Each class here replaces the one
thing that the simulator cannot do. ``TensorVecEnv.grouping`` chooses between them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.vec_env import VecEnv
from torch.utils._pytree import tree_map

from sb_grpo.collect.given_starts import GivenStarts, TensorStarts
from sb_grpo.collect.groups import HostGroups, TensorGroups
from sb_grpo.config import GroupOptions
from sb_grpo.envs.instance_env import InstanceEnv
from sb_grpo.envs.tensor_env import TensorVecEnv, map_snapshot
from sb_grpo.policies.encoding import EncodingPolicy
from sb_grpo.policies.weights import versions
from sb_grpo.types import Obs, Rollout, SavedState, map_obs


class StateGroups(TensorGroups):
    """Member 0 of a group is reset; the others start from a copy of the state that it started in.

    Episodes are handed out in order, so that only the start of the group handed out last has to be remembered between steps.
    Waits for the device once per step: simulators want a list of envs, and setting the state of a running env to itself
    is not without effect in all of them, so that a full-size masked copy is no way out.
    """

    STATE: ClassVar[tuple[str, ...]] = (*TensorGroups.STATE, "_last_start")
    _last_start: object = None

    def load_state_dict(self, state: SavedState, env: VecEnv) -> None:
        super().load_state_dict(state, env)
        assert isinstance(env, TensorVecEnv)
        if self._last_start is not None:  # in the env's own form
            now = env.snapshot(th.zeros(1, dtype=th.int64, device=self.device))
            self._last_start = map_snapshot(lambda _, saved: saved, now, self._last_start)

    def started_all(self, env: TensorVecEnv, raw_obs: Obs = None) -> None:  # type: ignore[override]
        super().started_all(env)
        self._start(env, th.arange(len(self.episode_id), device=self.device))

    def _restart(self, env: TensorVecEnv, done: th.Tensor) -> None:
        env_indices = done.nonzero().squeeze(1)
        if len(env_indices) > 0:
            leads = done & (self.episode_id % self.group_size == 0)
            env.reset_envs(leads, self._seeds())
            self._start(env, env_indices)

    def _start(self, env: TensorVecEnv, env_indices: th.Tensor) -> None:
        """Give the members among new episodes their leaders' start.

        :param env_indices: ``[n]`` envs with new episodes, in their order; leaders among them have just been reset
        """
        is_leader = self.episode_id[env_indices] % self.group_size == 0
        leaders = env_indices[is_leader]
        members = env_indices[~is_leader]
        starts = self._last_start
        n_before = 0 if self._last_start is None else 1
        if len(leaders) > 0:
            now = env.snapshot(leaders)
            starts = now if starts is None else map_snapshot(lambda before, new: th.cat([before, new]), starts, now)
        if len(members) > 0:
            # Row 0 belongs to the group that an earlier step began, the rows after it to the leaders of this step.
            rows = is_leader.cumsum(0)[~is_leader] - 1 + n_before
            env.restore(members, map_snapshot(lambda leaf: leaf[rows], starts))
        self._last_start = map_snapshot(lambda leaf: leaf[-1:], starts)


class StreamGroups(TensorGroups):
    """Env i works for member ``i % group_size`` of stream ``i // group_size``: the k-th episodes of a stream are a group.

    Members' k-th starts are equal because their streams were seeded alike. An env cannot take over another's episode, so
    members whose episodes are short would run ever further ahead of the others, and their episodes wait for them, older and
    older: an env more than ``max_lead`` episodes ahead of the slowest of its group idles, with episode id -1.
    """

    STATE: ClassVar[tuple[str, ...]] = (*TensorGroups.STATE, "_first_episode_id", "_round")
    #: None: no bound. For estimators that use episodes at once, whether or not their group is complete.
    max_lead: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._first_episode_id = self.episode_id
        self._round = th.zeros_like(self.episode_id)  # number of the episode that the env runs or waits to run

    @property
    def next_group(self) -> int:
        """Number of a group beyond those of every stream. Waits for the device."""
        return int(self._first_episode_id[-1] + self._round.max() * len(self.episode_id)) // self.group_size + 1

    def step(self, env: TensorVecEnv, done: th.Tensor) -> None:
        free = done | (self.episode_id < 0)
        self._round = self._round + done
        may_run = th.ones_like(done)
        if self.max_lead is not None:
            of_group = self._round.view(-1, self.group_size)
            may_run = (of_group - of_group.amin(dim=1, keepdim=True) <= self.max_lead).flatten()
        starts = free & may_run
        self.episode_id = th.where(may_run, self._first_episode_id + self._round * len(self.episode_id), -1)
        self.t = th.where(starts, 0, self.t + 1)
        self.episode_return = th.where(done, 0.0, self.episode_return)
        self._restart(env, starts)


class InstanceGroups(StreamGroups):
    """Neighbouring envs work on one instance; a member that has ended idles, with episode id -1, until all of its group have.

    So a group is a row of envs, and what is computed once per instance needs no look at which envs share it.
    """

    max_lead = 0
    unequal_starts = False  #: members are meant to start unequally, so their starts are not compared
    code: Obs = None  #: [n_envs / group_size, ...] encoded instances of the running groups, in the tensors of a policy
    #: What made the code: policy, its weights, their versions.
    _encoder: tuple[EncodingPolicy, list[th.nn.Parameter], list[int]] | None = None
    _uncoded: th.Tensor  # [n_envs / group_size] bool, groups that have begun since

    def started_all(self, env: InstanceEnv, raw_obs: Obs = None) -> None:  # type: ignore[override]
        env.arrange(self.group_size)
        super().started_all(env)
        self.forget_code()

    def forget_code(self) -> None:
        """Encode every instance before the next step."""
        self._encoder = None

    @th.no_grad()
    def encode(self, policy: EncodingPolicy, env: InstanceEnv) -> None:
        """Encode the instances that have begun since the last call, or all of them if the weights have changed.

        :param policy: that acts
        """
        env.apart = True
        instances = env.visible_instances
        if self._encoder is None or self._encoder[0] is not policy or self._encoder[2] != versions(self._encoder[1]):
            weights = list(policy.parameters())
            self._encoder = policy, weights, versions(weights)
            self.code = policy.encode(instances)
        elif bool(self._uncoded.any()):
            rows = self._uncoded.nonzero().squeeze(1)
            new = policy.encode(map_obs(lambda x: x.index_select(0, rows), instances))
            self.code = tree_map(lambda old, part: old.index_copy(0, rows, part), self.code, new)
        self._uncoded = th.zeros(len(self.episode_id) // self.group_size, dtype=th.bool, device=self.device)

    def _restart(self, env: TensorVecEnv, done: th.Tensor) -> None:
        super()._restart(env, done)
        if self._encoder is not None:
            self._uncoded = self._uncoded | done[:: self.group_size]

    def note_starts(self, rollout: Rollout) -> None:
        if not self.unequal_starts:
            super().note_starts(rollout)


class SynchronousGroups(TensorGroups):
    """All groups start together; an env whose episode has ended idles, with episode id -1, until the last has ended.

    Waits for the device once per step, to see whether all have.
    """

    STATE: ClassVar[tuple[str, ...]] = (*TensorGroups.STATE, "_first_episode_id")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._first_episode_id = self.episode_id

    @property
    def next_group(self) -> int:
        return int(self._first_episode_id[-1]) // self.group_size + 1

    def _next_episode_ids(self, done: th.Tensor) -> th.Tensor:
        return self.episode_id.masked_fill(done, -1)

    def _restart(self, env: TensorVecEnv, done: th.Tensor) -> None:
        if bool((self.episode_id < 0).all()):
            self._first_episode_id = self.episode_id = self._first_episode_id + len(self.episode_id)
            self.t = th.zeros_like(self.t)  # it has counted idle steps
            self._begin(env, None)


GROUPS: dict[str, type[TensorGroups]] = {
    "seeds": TensorGroups,
    "state": StateGroups,
    "streams": StreamGroups,
    "synchronous": SynchronousGroups,
    "instances": InstanceGroups,
}


def make_groups(
    env: VecEnv,
    group_size: int,
    base_seed: int,
    first_group: int,
    device: th.device,
    *,
    options: GroupOptions,
    whole_episodes: bool,
) -> HostGroups | TensorGroups:
    """The groups that go with an env.

    :param env: tensor env, or host envs
    :param group_size: members per group
    :param base_seed: seed of the stream of groups
    :param first_group: number of the first group to hand out
    :param device: of tensor envs
    :param options: how members start
    :param whole_episodes: the estimator waits for complete groups
    """
    if not isinstance(env, TensorVecEnv):
        given = GivenStarts(options, base_seed, env) if options.starts is not None or options.tell_member else None
        return HostGroups(env.num_envs, group_size, base_seed, first_group, options.shared_noise, given)
    on_device = None if options.starts is None else TensorStarts(options, base_seed, env, env.num_envs // group_size + 2)
    groups = GROUPS[env.grouping](env.num_envs, group_size, base_seed, first_group, device, on_device)
    if isinstance(groups, InstanceGroups):
        assert isinstance(env, InstanceEnv)
        groups.unequal_starts = env.unequal_starts
    elif isinstance(groups, StreamGroups) and whole_episodes:
        groups.max_lead = 1  # episodes that wait for their group must not grow old
    return groups
