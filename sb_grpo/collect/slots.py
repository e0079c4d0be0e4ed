"""Groups: which (group, member) job each env slot runs, with which reset seed, and whether the starts really are equal.

A group is the set of episodes that share a reset seed. It is a property of episodes, not of env slots: any number of
slots works through one stream of jobs, and a slot whose episode ended takes the next job at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Protocol

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from sb_grpo import ranks
from sb_grpo.collect.given_starts import GivenStarts, TensorStarts
from sb_grpo.collect.starts import (
    Start,
    alike_message,
    as_start,
    hidden_message,
    left_behind,
    mismatch_message,
    not_reset_message,
    same_inside,
    same_start,
    start_of,
)
from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.hold import Hold, hold_of, reset_is_over, resetting
from sb_grpo.envs.installing import install_seeded_reset
from sb_grpo.envs.random import group_seed, group_seeds, mix, signed
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.policies.beside import env_part
from sb_grpo.state import attributes, put_attributes
from sb_grpo.types import Info, Kwargs, Obs, Rollout, SavedState, State

NO_JOB = -1
#: Different starts that are told apart in counting them.
MOST_STARTS = 1_000
#: Groups after which it is said that all have started alike.
ENOUGH_GROUPS = 10


class Slots(Protocol):
    """Interface: runs a stream of jobs in the slots of an env.

    Job ``j`` is member ``j % group_size`` of group ``j // group_size``.

    ``job`` and ``t`` (which one each slot runs, and its step in the episode) are arrays for host envs and tensors for tensor
    envs, so ``sb_grpo.on_policy`` and ``sb_grpo.collect.device_loop``, which know their kind, advance them.
    """

    group_size: int
    start_mismatches: int  #: episodes that did not start like the first one of their group
    starts_seen: dict[str, int]  #: groups by how they started; empty where that is not counted

    @property
    def next_group(self) -> int:
        """Number of the first group of which no job has been handed out."""

    def queue_all(self, env: VecEnv) -> None:
        """Take the envs, and queue a job in every slot for the reset that must follow."""

    def started_all(self, env: VecEnv, raw_obs: Obs = None) -> None:
        """Every queued job has been started."""

    def in_step_with(self, env: VecEnv) -> bool:
        """Nobody else has reset or stepped these envs since: they still run the jobs noted here."""

    def note_starts(self, rollout: Rollout) -> None:
        """Compare the starts of a rollout's episodes, where that has not been done when they were made."""

    def state_dict(self) -> State:
        """The jobs, and all that tells which come next."""

    def load_state_dict(self, state: SavedState, env: VecEnv) -> None:
        """Run the jobs of other slots in an env, which these slots take."""


class GroupSlots:
    """Hands out jobs to the slots of a VecEnv of host envs and keeps each slot's place in its episode.

    Jobs are numbered through: job ``j`` is member ``j % group_size`` of group ``j // group_size``. Every slot always
    has one job running and one queued, because SB3 resets inside ``step``, before anybody could choose. Several learners
    number their own groups through; seeds are those of the groups in the stream of all (:func:`sb_grpo.ranks.dealt`).

    :param n_envs: number of slots
    :param group_size: members per group
    :param base_seed: seed of the stream of groups
    :param first_group: number of the first group to hand out
    :param shared_noise: False: the env's own noise differs between members (the start state stays equal)
    :param given: starts that the user gives; None: none
    """

    STATE: ClassVar[tuple[str, ...]] = (
        "group_size", "next_job", "job", "t", "start_mismatches", "starts_seen", "_queued", "_given_back", "_first_start",
        "_members_ended", "_times_lost",
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
        self.next_job = first_group * group_size
        self.job = np.zeros(n_envs, dtype=np.int64)
        self.t = np.zeros(n_envs, dtype=np.int64)
        self.start_mismatches = 0
        self.starts_seen: dict[str, int] = {}
        self._warned: set[str] = set()
        self._queued = np.zeros(n_envs, dtype=np.int64)
        self._given_back: list[int] = []
        self._first_start: dict[int, Start] = {}
        self._members_ended: dict[int, int] = {}
        self._hold: Hold | None = None
        self._copied_in_step = False
        self._times_lost = 0

    @property
    def next_group(self) -> int:
        """Number of the first group of which no job has been handed out."""
        return -(-self.next_job // self.group_size)

    def queue_all(self, env: VecEnv) -> None:
        """Take the envs, and queue a job in every slot for the explicit ``env.reset()`` that must follow."""
        self._take(env)
        for slot in range(len(self.job)):
            self._queue(slot)

    def _take(self, env: VecEnv) -> None:
        install_seeded_reset(env)
        self._hold = hold_of(env)
        self._hold.take(self)

    def state_dict(self) -> State:
        """The jobs that run, wait and come next, and the starts of their groups."""
        return attributes(self, self.STATE)

    def load_state_dict(self, state: SavedState, env: VecEnv) -> None:
        """Take an env for the jobs of other slots; :meth:`begin_again` starts them there."""
        put_attributes(self, self.STATE, state)
        self._first_start = {group: as_start(start) for group, start in self._first_start.items()}
        self._take(env)

    def __getstate__(self) -> State:
        # A copy has no envs yet; it takes those that were copied with it, and goes on with their episodes.
        return {**vars(self), "_hold": None, "_copied_in_step": self._hold is not None and self.in_step_with(self._hold.base)}

    @property
    def groups(self) -> np.ndarray:
        """``[n_envs]`` number of the group that each env's episode belongs to, in the stream of all learners."""
        return ranks.dealt(self.job // self.group_size)

    @property
    def at_starts(self) -> bool:
        """No running episode has taken a step."""
        return not self.t.any()

    def begin_again(self, env: VecEnv) -> VecEnvObs:
        """Reset the env, and queue the same jobs again: every slot begins the job that it runs. Returns the observations."""
        self._take(env)
        for slot, job in enumerate(self.job.tolist()):
            self._send(slot, job)
        with resetting(env):
            obs = env.reset()
        for slot, job in enumerate(self._queued.tolist()):
            self._send(slot, job)
        return obs

    def started_all(self, env: VecEnv, raw_obs: Obs = None) -> None:
        """Take note that ``env.reset()`` started every queued job, and queue the jobs after those.

        :param raw_obs: as :meth:`starts` wants it
        """
        for slot, start in self.starts(env, range(len(self.job)), raw_obs).items():
            self._start(env, slot, start)

    @staticmethod
    def starts(env: VecEnv, slots: Sequence[int], raw_obs: Obs = None) -> dict[int, Start | None]:
        """Starts of the episodes that begin now, by slot.

        :param slots: that have just been reset
        :param raw_obs: ``[n_envs, ...]`` after the reset, below any VecNormalize: for VecEnvs whose reset infos hold no digest
        """
        return {slot: start_of(env, slot, raw_obs) for slot in slots}

    def in_step_with(self, env: VecEnv) -> bool:
        """Nobody else has reset or stepped these envs since: they still run the jobs noted here."""
        if self._copied_in_step:
            self._copied_in_step = False
            self._take(env)
            for slot in np.flatnonzero(self._queued != NO_JOB).tolist():
                self._send(slot, int(self._queued[slot]))
            reset_is_over(env)
        hold = self._hold
        return hold is not None and hold.base is env.unwrapped and hold.holder is self and hold.has_its_envs

    def seeds_for_others(self) -> list[int]:
        """One seed per slot for whoever takes the envs next, another one every time."""
        self._times_lost += 1
        stream = mix(self.base_seed, self.next_job, 2)  # the 2 keeps it apart from groups and from noise
        return [mix(stream, self._times_lost, slot) >> 33 for slot in range(len(self.job))]

    def step_envs(self, env: VecEnv, actions: np.ndarray) -> tuple[Obs, np.ndarray, np.ndarray, list[Info]]:
        """``env.step(actions)``, made known as the trainer's own: its resets may consume the queued seeds.

        A wrapper may give rewards and ends as lists or tensors.
        """
        assert self._hold is not None
        self._hold.actor = self
        try:
            obs, rewards, dones, infos = env.step(actions)
        finally:
            self._hold.actor = None
        return obs, np.asarray(rewards), np.asarray(dones), infos

    def step(self, env: VecEnv, starts: dict[int, Start | None], lost: Collection[int] = ()) -> int:
        """Advance every slot by one step; slots that are done have already been reset by the VecEnv.

        :param starts: of :meth:`starts`, right after the step
        :param lost: slots whose episode has not ended, but was lost with its worker: their jobs are handed out once more
        :return: number of groups of which the last member ended in this step
        """
        self.t += 1
        completed = 0
        for slot, start in starts.items():
            if slot in lost:
                self._given_back = sorted([*self._given_back, int(self.job[slot])])
            else:
                completed += self._end(int(self.job[slot]))
            self._start(env, slot, start)
        return completed

    def give_up(self, again: bool) -> None:
        """Somebody else has taken the envs: no running job can go on, and no queued one has begun.

        :param again: hand out the running jobs once more, from their starts; otherwise they have ended here
        """
        if again:
            self._given_back += self.job.tolist()
        else:
            for job in self.job.tolist():
                self._end(job)
        self._given_back = sorted([*self._given_back, *self._queued[self._queued != NO_JOB].tolist()])

    def note_starts(self, rollout: Rollout) -> None:
        """Starts were compared when they were made; here for the same interface as tensor slots."""

    def _end(self, job: int) -> bool:
        """Count a member that has ended; True if it was the last of its group."""
        group = job // self.group_size
        ended = self._members_ended.pop(group, 0) + 1
        if ended < self.group_size:
            self._members_ended[group] = ended
            return False
        self._first_start.pop(group, None)
        if self.given is not None:
            self.given.forget(ranks.dealt(group))
        return True

    def _queue(self, slot: int) -> bool | int:
        if self._given_back:
            job = self._given_back.pop(0)
        else:
            job = self.next_job
            self.next_job = self.next_job + 1
        self._queued[slot] = job
        return self._send(slot, job)

    def _send(self, slot: int, job: int) -> bool | int:
        """Tell the env of a slot how a job starts. True where that has not been reset for the one before, else its steps."""
        assert self._hold is not None
        group, member = divmod(job, self.group_size)
        group = ranks.dealt(group)
        noise_seed = None if self.shared_noise else mix(self.base_seed, group * self.group_size + member, 1)
        return self._hold.queue(slot, *self._seed_and_options(group, member), noise_seed)

    def _seed_and_options(self, group: int, member: int) -> tuple[int, Kwargs | None]:
        """Reset seed and reset options of a member.

        :param group: number in the stream of all learners
        """
        seed = group_seed(self.base_seed, group)
        return (seed, None) if self.given is None else self.given.of_member(group, member, seed)

    def _start(self, env: VecEnv, slot: int, start: Start | None) -> None:
        job = int(self._queued[slot])
        self.job[slot] = job
        self.t[slot] = 0
        self._queued[slot] = NO_JOB
        if self.in_step_with(env):  # else somebody has taken the envs since they were reset
            steps = self._queue(slot)
            if steps is True:
                self.start_mismatches += 1
                self._warn("not reset", not_reset_message, env, slot)
            elif start is not None:
                self._check_start(env, job // self.group_size, left_behind(start, steps))

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
        group = ranks.dealt(group)
        message = hidden_message if seen else mismatch_message
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


class TensorSlots:
    """The :class:`GroupSlots` of a tensor env: jobs are handed to free slots by tensor arithmetic.

    ``sb_grpo.collect.simulators`` holds its kin for simulators whose resets cannot be seeded slot by slot.

    No job is queued ahead: a tensor env is reset after the step, when it is known which slots are free. Several slots that
    end in one step take the next jobs in the order of the slots.

    :param n_envs: number of slots
    :param group_size: members per group
    :param base_seed: seed of the stream of groups
    :param first_group: number of the first group to hand out
    :param device: torch device
    :param given: starts that the user gives; None: none
    """

    STATE: ClassVar[tuple[str, ...]] = ("group_size", "job", "_next_job", "t", "episode_return", "memory", "start_mismatches")

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
        # A tensor: as a number it would be part of every captured graph, and each seed would compile anew.
        self.seed_word = th.tensor(signed(base_seed % (1 << 64)), device=device)
        self.job = th.arange(n_envs, device=device) + first_group * group_size
        self._next_job = self.job[-1] + 1
        self.t = th.zeros(n_envs, dtype=th.int64, device=device)
        self.episode_return = th.zeros(n_envs, device=device)
        self.memory: th.Tensor | None = None  #: [n_envs, n] of a policy that has one, after the last step
        self.start_mismatches = 0
        self.starts_seen: dict[str, int] = {}
        self._left_at: tuple[TensorVecEnv, int] | None = None

    @property
    def next_group(self) -> int:
        """Number of the first group of which no job has been handed out. Waits for the device."""
        return -(-int(self._next_job) // self.group_size)

    def queue_all(self, env: VecEnv) -> None:
        """Nothing to queue; here for the same interface as host slots."""

    def started_all(self, env: VecEnv, raw_obs: Obs = None) -> None:
        """Start the first job in every slot.

        :param raw_obs: not needed; here for the same interface as host slots
        """
        assert isinstance(env, TensorVecEnv)
        self._begin(env, None)
        self._left_at = env, env.calls

    def state_dict(self) -> State:
        """The jobs that run, the one that comes next, and how far the episodes are."""
        return attributes(self, self.STATE)

    def load_state_dict(self, state: SavedState, env: VecEnv) -> None:
        """Go on with the jobs of other slots, in an env that is where theirs was."""
        assert isinstance(env, TensorVecEnv)
        put_attributes(self, self.STATE, state)
        self._left_at = env, env.calls

    def in_step_with(self, env: VecEnv) -> bool:
        """Nobody has reset or stepped this env through SB3's interface since the slots were started."""
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
        """Advance every slot by one step and start the next jobs where episodes ended.

        :param done: ``[n_envs]`` bool
        """
        self.job = self._next_jobs(done)
        self.t = th.where(done, 0, self.t + 1)
        self.episode_return = th.where(done, 0.0, self.episode_return)
        self._restart(env, done)

    def _next_jobs(self, done: th.Tensor) -> th.Tensor:
        """``[n_envs]`` jobs after a step: free slots take the next ones."""
        place = done.cumsum(0)
        job = th.where(done, self._next_job + place - 1, self.job)
        self._next_job = self._next_job + place[-1]
        return job

    def _restart(self, env: TensorVecEnv, done: th.Tensor) -> None:
        """Start the jobs of free slots."""
        self._begin(env, done)

    def _begin(self, env: TensorVecEnv, done: th.Tensor | None) -> None:
        """Reset slots to the starts of the groups that they work for.

        :param done: ``[n_envs]`` bool; None: all slots
        """
        seeds = self._seeds()
        states = None
        if self.given is not None:
            if self.given.waits and done is not None and not bool(done.any()):
                return
            groups = ranks.dealt(self.job // self.group_size)
            seeds, has_state, states = self.given.of_groups(groups, seeds)
        if done is None:
            env.reset_all(seeds)
        else:
            env.reset_slots(done, seeds)
        if states is not None:
            assert isinstance(env, FunctionalTensorEnv)
            env.set_states(has_state if done is None else done & has_state, states)

    def _seeds(self) -> th.Tensor:
        """``[n_envs]`` reset seed of the group that each slot works for."""
        return group_seeds(self.seed_word, ranks.dealt(self.job // self.group_size))
