"""Groups: which (group, member) each env runs, with which reset seed, and whether the starts really are equal.

A group is the set of episodes that share a reset seed. It is a property of episodes, not of envs: any number of
envs works through one stream of episodes, and an env whose episode ended takes the next episode at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Protocol

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from sb_grpo import distributed
from sb_grpo.collect.given_starts import GivenStarts, TensorStarts
from sb_grpo.collect.starts import (
    Start,
    alike_message,
    as_start,
    hidden_message,
    left_behind,
    not_reset_message,
    same_inside,
    same_start,
    start_mismatch_message,
    start_of,
)
from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.installing import install_seeded_reset
from sb_grpo.envs.ownership import EnvOwnership, ownership_of, reset_is_over, resetting
from sb_grpo.envs.random import group_seed, group_seeds, mix, signed
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.policies.extra_inputs import env_part
from sb_grpo.state import attributes, put_attributes
from sb_grpo.types import Info, Kwargs, Obs, Rollout, SavedState, State

NO_EPISODE = -1
#: Different starts that are told apart in counting them.
MOST_STARTS = 1_000
#: Groups after which it is said that all have started alike.
ENOUGH_GROUPS = 10


class Groups(Protocol):
    """Interface: runs a stream of episodes in the envs of a VecEnv.

    Episode ``j`` is member ``j % group_size`` of group ``j // group_size``.

    ``episode_id`` and ``t`` (which one each env runs, and its step in the episode) are arrays for host envs and tensors for
    tensor envs, so ``sb_grpo.on_policy`` and ``sb_grpo.collect.device_loop``, which know their kind, advance them.
    """

    group_size: int
    start_mismatches: int  #: episodes that did not start like the first one of their group
    starts_seen: dict[str, int]  #: groups by how they started; empty where that is not counted

    @property
    def next_group(self) -> int:
        """Number of the first group of which no episode has been handed out."""

    def queue_all(self, env: VecEnv) -> None:
        """Take the envs, and queue an episode for every env for the reset that must follow."""

    def started_all(self, env: VecEnv, raw_obs: Obs = None) -> None:
        """Every queued episode has been started."""

    def in_step_with(self, env: VecEnv) -> bool:
        """Nobody else has reset or stepped these envs since: they still run the episodes noted here."""

    def note_starts(self, rollout: Rollout) -> None:
        """Compare the starts of a rollout's episodes, where that has not been done when they were made."""

    def state_dict(self) -> State:
        """The episodes, and all that tells which come next."""

    def load_state_dict(self, state: SavedState, env: VecEnv) -> None:
        """Run the episodes of other groups in an env, which these groups take."""


class HostGroups:
    """Hands out episodes to the envs of a VecEnv and knows the step that each of them is at.

    Episodes are numbered through: episode ``j`` is member ``j % group_size`` of group ``j // group_size``. Every env always
    has one episode running and one queued, because SB3 resets inside ``step``, before anybody could choose. Several learners
    number their own groups through; seeds are those of the groups in the stream of all
    (:func:`sb_grpo.distributed.global_group`).

    :param n_envs: number of envs
    :param group_size: members per group
    :param base_seed: seed of the stream of groups
    :param first_group: number of the first group to hand out
    :param shared_noise: False: the env's own noise differs between members (the start state stays equal)
    :param given: starts that the user gives; None: none
    """

    STATE: ClassVar[tuple[str, ...]] = (
        "group_size", "next_episode_id", "episode_id", "t", "start_mismatches", "starts_seen", "_queued", "_given_back",
        "_first_start", "_members_ended", "_times_lost",
    )  # fmt: skip

    def __init__(
        self,
        n_envs: int,
        group_size: int,
        base_seed: int,
        first_group: int = 0,
        shared_noise: bool = True,
        given: GivenStarts | None = None,
    ) -> None:
        self.group_size = group_size
        self.base_seed = base_seed
        self.shared_noise = shared_noise
        self.given = given
        self.next_episode_id = first_group * group_size
        self.episode_id = np.zeros(n_envs, dtype=np.int64)
        self.t = np.zeros(n_envs, dtype=np.int64)
        self.start_mismatches = 0
        self.starts_seen: dict[str, int] = {}
        self._warned: set[str] = set()
        self._queued = np.zeros(n_envs, dtype=np.int64)
        self._given_back: list[int] = []
        self._first_start: dict[int, Start] = {}
        self._members_ended: dict[int, int] = {}
        self._ownership: EnvOwnership | None = None
        self._copied_in_step = False
        self._times_lost = 0

    @property
    def next_group(self) -> int:
        """Number of the first group of which no episode has been handed out."""
        return -(-self.next_episode_id // self.group_size)

    def queue_all(self, env: VecEnv) -> None:
        """Take the envs, and queue an episode for every env for the explicit ``env.reset()`` that must follow."""
        self._take(env)
        for env_index in range(len(self.episode_id)):
            self._queue(env_index)

    def _take(self, env: VecEnv) -> None:
        install_seeded_reset(env)
        self._ownership = ownership_of(env)
        self._ownership.take(self)

    def state_dict(self) -> State:
        """The episodes that run, wait and come next, and the starts of their groups."""
        return attributes(self, self.STATE)

    def load_state_dict(self, state: SavedState, env: VecEnv) -> None:
        """Take an env for the episodes of other groups; :meth:`begin_again` starts them there."""
        put_attributes(self, self.STATE, state)
        self._first_start = {group: as_start(start) for group, start in self._first_start.items()}
        self._take(env)

    def __getstate__(self) -> State:
        # A copy has no envs yet; it takes those that were copied with it, and goes on with their episodes.
        return {
            **vars(self),
            "_ownership": None,
            "_copied_in_step": self._ownership is not None and self.in_step_with(self._ownership.base),
        }

    @property
    def group_ids(self) -> np.ndarray:
        """``[n_envs]`` number of the group that each env's episode belongs to, in the stream of all learners."""
        return distributed.global_group(self.episode_id // self.group_size)

    @property
    def at_starts(self) -> bool:
        """No running episode has taken a step."""
        return not self.t.any()

    def begin_again(self, env: VecEnv) -> VecEnvObs:
        """Reset the env, and queue the same episodes again: every env begins the episode that it runs. Returns the
        observations.
        """
        self._take(env)
        for env_index, episode_id in enumerate(self.episode_id.tolist()):
            self._send(env_index, episode_id)
        with resetting(env):
            obs = env.reset()
        for env_index, episode_id in enumerate(self._queued.tolist()):
            self._send(env_index, episode_id)
        return obs

    def started_all(self, env: VecEnv, raw_obs: Obs = None) -> None:
        """Take note that ``env.reset()`` started every queued episode, and queue the episodes after those.

        :param raw_obs: as :meth:`starts` wants it
        """
        for env_index, start in self.starts(env, range(len(self.episode_id)), raw_obs).items():
            self._start(env, env_index, start)

    @staticmethod
    def starts(env: VecEnv, env_indices: Sequence[int], raw_obs: Obs = None) -> dict[int, Start | None]:
        """Starts of the episodes that begin now, by env.

        :param env_indices: that have just been reset
        :param raw_obs: ``[n_envs, ...]`` after the reset, below any VecNormalize: for VecEnvs whose reset infos hold no digest
        """
        return {env_index: start_of(env, env_index, raw_obs) for env_index in env_indices}

    def in_step_with(self, env: VecEnv) -> bool:
        """Nobody else has reset or stepped these envs since: they still run the episodes noted here."""
        if self._copied_in_step:
            self._copied_in_step = False
            self._take(env)
            for env_index in np.flatnonzero(self._queued != NO_EPISODE).tolist():
                self._send(env_index, int(self._queued[env_index]))
            reset_is_over(env)
        ownership = self._ownership
        return ownership is not None and ownership.base is env.unwrapped and ownership.owner is self and ownership.has_its_envs

    def seeds_for_others(self) -> list[int]:
        """One seed per env for whoever takes the envs next, another one every time."""
        self._times_lost += 1
        stream = mix(self.base_seed, self.next_episode_id, 2)  # the 2 keeps it apart from groups and from noise
        return [mix(stream, self._times_lost, env_index) >> 33 for env_index in range(len(self.episode_id))]

    def step_envs(self, env: VecEnv, actions: np.ndarray) -> tuple[Obs, np.ndarray, np.ndarray, list[Info]]:
        """``env.step(actions)``, made known as the trainer's own: its resets may consume the queued seeds.

        A wrapper may give rewards and ends as lists or tensors.
        """
        assert self._ownership is not None
        self._ownership.actor = self
        try:
            obs, rewards, dones, infos = env.step(actions)
        finally:
            self._ownership.actor = None
        return obs, np.asarray(rewards), np.asarray(dones), infos

    def step(self, env: VecEnv, starts: dict[int, Start | None], lost: Collection[int] = ()) -> int:
        """Advance every env by one step; envs that are done have already been reset by the VecEnv.

        :param starts: of :meth:`starts`, right after the step
        :param lost: envs whose episode has not ended, but was lost with its worker: their episodes are handed out once more
        :return: number of groups of which the last member ended in this step
        """
        self.t += 1
        completed = 0
        for env_index, start in starts.items():
            if env_index in lost:
                self._given_back = sorted([*self._given_back, int(self.episode_id[env_index])])
            else:
                completed += self._end(int(self.episode_id[env_index]))
            self._start(env, env_index, start)
        return completed

    def give_up(self, again: bool) -> None:
        """Somebody else has taken the envs: no running episode can go on, and no queued one has begun.

        :param again: hand out the running episodes once more, from their starts; otherwise they have ended here
        """
        if again:
            self._given_back += self.episode_id.tolist()
        else:
            for episode_id in self.episode_id.tolist():
                self._end(episode_id)
        self._given_back = sorted([*self._given_back, *self._queued[self._queued != NO_EPISODE].tolist()])

    def note_starts(self, rollout: Rollout) -> None:
        """Starts were compared when they were made; here for the same interface as tensor groups."""

    def _end(self, episode_id: int) -> bool:
        """Count a member that has ended; True if it was the last of its group."""
        group = episode_id // self.group_size
        ended = self._members_ended.pop(group, 0) + 1
        if ended < self.group_size:
            self._members_ended[group] = ended
            return False
        self._first_start.pop(group, None)
        if self.given is not None:
            self.given.forget(distributed.global_group(group))
        return True

    def _queue(self, env_index: int) -> bool | int:
        if self._given_back:
            episode_id = self._given_back.pop(0)
        else:
            episode_id = self.next_episode_id
            self.next_episode_id = self.next_episode_id + 1
        self._queued[env_index] = episode_id
        return self._send(env_index, episode_id)

    def _send(self, env_index: int, episode_id: int) -> bool | int:
        """Tell an env how an episode starts. True where that has not been reset for the one before, else its steps."""
        assert self._ownership is not None
        group, member = divmod(episode_id, self.group_size)
        group = distributed.global_group(group)
        noise_seed = None if self.shared_noise else mix(self.base_seed, group * self.group_size + member, 1)
        return self._ownership.queue(env_index, *self._seed_and_options(group, member), noise_seed)

    def _seed_and_options(self, group: int, member: int) -> tuple[int, Kwargs | None]:
        """Reset seed and reset options of a member.

        :param group: number in the stream of all learners
        """
        seed = group_seed(self.base_seed, group)
        return (seed, None) if self.given is None else self.given.of_member(group, member, seed)

    def _start(self, env: VecEnv, env_index: int, start: Start | None) -> None:
        episode_id = int(self._queued[env_index])
        self.episode_id[env_index] = episode_id
        self.t[env_index] = 0
        self._queued[env_index] = NO_EPISODE
        if self.in_step_with(env):  # else somebody has taken the envs since they were reset
            steps = self._queue(env_index)
            if steps is True:
                self.start_mismatches += 1
                self._warn("not reset", not_reset_message, env, env_index)
            elif start is not None:
                self._check_start(env, episode_id // self.group_size, left_behind(start, steps))

    def _check_start(self, env: VecEnv, group: int, start: Start) -> None:
        if group not in self._first_start:
            self._first_start[group] = start
            self._count_start(env, start)
            return
        if self.given is not None and self.given.tell_member:  # may start differently
            return
        first = self._first_start[group]
        seen = same_start(first, start)
        inside = same_inside(first, start)
        if seen and inside:
            return
        self.start_mismatches += 1
        group = distributed.global_group(group)
        message = hidden_message if seen else start_mismatch_message
        self._warn(message.__name__, message, env, group, self._seed_and_options(group, 0)[0], first, start)

    def _count_start(self, env: VecEnv, start: Start) -> None:
        """A group has begun."""
        shown = f"{start[0].digest} {start[-1].digest}"
        if shown in self.starts_seen or len(self.starts_seen) < MOST_STARTS:
            self.starts_seen[shown] = self.starts_seen.get(shown, 0) + 1
        meant = self.given is not None and self.given.starts is not None
        if len(self.starts_seen) == 1 and self.starts_seen[shown] == ENOUGH_GROUPS and not meant:
            self._warn("alike", alike_message, env, ENOUGH_GROUPS)

    def _warn(self, kind: str, message: Callable[..., str], *args: object) -> None:
        """Say one kind of thing once."""
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message(*args), UserWarning, stacklevel=2)


class TensorGroups:
    """The :class:`HostGroups` of a tensor env: episodes are handed to free envs by tensor arithmetic.

    ``sb_grpo.collect.simulators`` holds its kin for simulators whose resets cannot be seeded env by env.

    No episode is queued ahead: a tensor env is reset after the step, when it is known which envs are free. Several envs that
    end in one step take the next episodes in the order of the envs.

    :param n_envs: number of envs
    :param group_size: members per group
    :param base_seed: seed of the stream of groups
    :param first_group: number of the first group to hand out
    :param device: torch device
    :param given: starts that the user gives; None: none
    """

    STATE: ClassVar[tuple[str, ...]] = (
        "group_size",
        "episode_id",
        "_next_episode_id",
        "t",
        "episode_return",
        "memory",
        "start_mismatches",
    )

    def __init__(
        self,
        n_envs: int,
        group_size: int,
        base_seed: int,
        first_group: int,
        device: th.device,
        given: TensorStarts | None = None,
    ) -> None:
        self.group_size = group_size
        self.device = device
        self.given = given
        # A tensor: as a number it would be part of every compiled graph, and each seed would compile anew.
        self.seed_word = th.tensor(signed(base_seed % (1 << 64)), device=device)
        self.episode_id = th.arange(n_envs, device=device) + first_group * group_size
        self._next_episode_id = self.episode_id[-1] + 1
        self.t = th.zeros(n_envs, dtype=th.int64, device=device)
        self.episode_return = th.zeros(n_envs, device=device)
        self.memory: th.Tensor | None = None  #: [n_envs, n] of a policy that has one, after the last step
        self.start_mismatches = 0
        self.starts_seen: dict[str, int] = {}
        self._left_at: tuple[TensorVecEnv, int] | None = None

    @property
    def next_group(self) -> int:
        """Number of the first group of which no episode has been handed out. Waits for the device."""
        return -(-int(self._next_episode_id) // self.group_size)

    def queue_all(self, env: VecEnv) -> None:
        """Nothing to queue; here for the same interface as host groups."""

    def started_all(self, env: VecEnv, raw_obs: Obs = None) -> None:
        """Start the first episode in every env.

        :param raw_obs: not needed; here for the same interface as host groups
        """
        assert isinstance(env, TensorVecEnv)
        self._begin(env, None)
        self._left_at = env, env.calls

    def state_dict(self) -> State:
        """The episodes that run, the one that comes next, and how far the episodes are."""
        return attributes(self, self.STATE)

    def load_state_dict(self, state: SavedState, env: VecEnv) -> None:
        """Go on with the episodes of other groups, in an env that is where theirs was."""
        assert isinstance(env, TensorVecEnv)
        put_attributes(self, self.STATE, state)
        self._left_at = env, env.calls

    def in_step_with(self, env: VecEnv) -> bool:
        """Nobody has reset or stepped this env through SB3's interface since the groups were started."""
        return isinstance(env, TensorVecEnv) and self._left_at == (env, env.calls)

    def note_starts(self, rollout: Rollout) -> None:
        """Count the episodes whose first observation differs from that of the first one of their group in this rollout."""
        observations = env_part(rollout.observations)
        rows = (rollout.t == 0).nonzero().squeeze(1)
        group = rollout.group[rollout.episode[rows]]
        first = th.full((rollout.n_groups,), len(rollout.t), device=rows.device).scatter_reduce(0, group, rows, "amin")
        differs = observations[rows] != observations[first[group]]
        self.start_mismatches += int(differs.unsqueeze(-1).flatten(1).any(dim=1).sum())

    def step(self, env: TensorVecEnv, done: th.Tensor) -> None:
        """Advance every env by one step and start the next ones where episodes ended.

        :param done: ``[n_envs]`` bool
        """
        self.episode_id = self._next_episode_ids(done)
        self.t = th.where(done, 0, self.t + 1)
        self.episode_return = th.where(done, 0.0, self.episode_return)
        self._restart(env, done)

    def _next_episode_ids(self, done: th.Tensor) -> th.Tensor:
        """``[n_envs]`` episodes after a step: free envs take the next ones."""
        place = done.cumsum(0)
        episode_id = th.where(done, self._next_episode_id + place - 1, self.episode_id)
        self._next_episode_id = self._next_episode_id + place[-1]
        return episode_id

    def _restart(self, env: TensorVecEnv, done: th.Tensor) -> None:
        """Start the episodes of free envs."""
        self._begin(env, done)

    def _begin(self, env: TensorVecEnv, done: th.Tensor | None) -> None:
        """Reset envs to the starts of the groups that they work for.

        :param done: ``[n_envs]`` bool; None: all envs
        """
        seeds = self._seeds()
        states = None
        if self.given is not None:
            if self.given.waits and done is not None and not bool(done.any()):
                return
            groups = distributed.global_group(self.episode_id // self.group_size)
            seeds, has_state, states = self.given.of_groups(groups, seeds)
        if done is None:
            env.reset_all(seeds)
        else:
            env.reset_envs(done, seeds)
        if states is not None:
            assert isinstance(env, FunctionalTensorEnv)
            env.set_states(has_state if done is None else done & has_state, states)

    def _seeds(self) -> th.Tensor:
        """``[n_envs]`` reset seed of the group that each env works for."""
        return group_seeds(self.seed_word, distributed.global_group(self.episode_id // self.group_size))
