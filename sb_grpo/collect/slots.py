"""Groups: which (group, member) job each env slot runs, with which reset seed, and whether the starts really are equal.

A group is the set of episodes that share a reset seed. It is a property of episodes, not of env slots: any number of
slots works through one stream of jobs, and a slot whose episode ended takes the next job at once.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.envs.random import group_seed, group_seeds, mix, signed
from sb_grpo.envs.seeded_reset import RESET_NUMBER, START_DIGEST
from sb_grpo.envs.tensor_env import TensorVecEnv


class GroupSlots:
    """Hands out jobs to the slots of a VecEnv of host envs and keeps each slot's place in its episode.

    Jobs are numbered through: job ``j`` is member ``j % group_size`` of group ``j // group_size``. Every slot always
    has one job running and one queued, because SB3 resets inside ``step``, before anybody could choose.

    :param n_envs: number of slots
    :param group_size: members per group
    :param base_seed: seed of the stream of groups
    :param first_group: number of the first group to hand out
    :param shared_noise: False: the env's own noise differs between members (the start state stays equal)
    """

    def __init__(self, n_envs: int, group_size: int, base_seed: int, first_group: int = 0, shared_noise: bool = True) -> None:
        self.group_size, self.base_seed, self.shared_noise = group_size, base_seed, shared_noise
        self.next_job = first_group * group_size
        self.job = np.zeros(n_envs, dtype=np.int64)
        self.t = np.zeros(n_envs, dtype=np.int64)
        self.start_mismatches = 0
        self._queued = np.zeros(n_envs, dtype=np.int64)
        self._first_digest: dict[int, bytes] = {}
        self._members_ended: dict[int, int] = {}
        self._base_env: VecEnv | None = None
        self._reset_number = np.zeros(n_envs, dtype=np.int64)

    @property
    def next_group(self) -> int:
        """Number of the first group of which no job has been handed out."""
        return -(-self.next_job // self.group_size)

    def queue_all(self, env: VecEnv) -> None:
        """Queue a job in every slot, for the explicit ``env.reset()`` that must follow."""
        for slot in range(len(self.job)):
            self._queue(env, slot)

    def started_all(self, env: VecEnv) -> None:
        """Take note that ``env.reset()`` started every queued job, and queue the jobs after those."""
        self._base_env = env.unwrapped
        for slot in range(len(self.job)):
            self._start(env, slot)

    def in_step_with(self, env: VecEnv) -> bool:
        """Nobody else has reset these envs since: they still run the jobs noted here."""
        numbers = [info.get(RESET_NUMBER) for info in env.unwrapped.reset_infos]
        return env.unwrapped is self._base_env and numbers == self._reset_number.tolist()

    def step(self, env: VecEnv, dones: np.ndarray) -> int:
        """Advance every slot by one step; slots that are done have already been reset by the VecEnv.

        :param dones: ``[n_envs]`` bool
        :return: number of groups of which the last member ended in this step
        """
        self.t += 1
        if not dones.any():
            return 0
        completed = 0
        for slot in np.flatnonzero(dones).tolist():
            group = int(self.job[slot]) // self.group_size
            ended = self._members_ended.pop(group, 0) + 1
            if ended == self.group_size:
                completed += 1
                self._first_digest.pop(group, None)
            else:
                self._members_ended[group] = ended
            self._start(env, slot)
        return completed

    def _queue(self, env: VecEnv, slot: int) -> None:
        job, self.next_job = self.next_job, self.next_job + 1
        self._queued[slot] = job
        noise_seed = None if self.shared_noise else mix(self.base_seed, job, 1)
        env.env_method("set_next_seed", group_seed(self.base_seed, job // self.group_size), noise_seed, indices=[slot])

    def _start(self, env: VecEnv, slot: int) -> None:
        job = int(self._queued[slot])
        self.job[slot], self.t[slot] = job, 0
        info = env.unwrapped.reset_infos[slot]
        self._reset_number[slot] = info[RESET_NUMBER]
        self._check_start(env, job // self.group_size, info[START_DIGEST])
        self._queue(env, slot)

    def _check_start(self, env: VecEnv, group: int, digest: bytes) -> None:
        if self._first_digest.setdefault(group, digest) == digest:
            return
        self.start_mismatches += 1
        if self.start_mismatches == 1:
            env_id, _ = env.env_method("describe", indices=[0])[0]
            warnings.warn(
                f"Two members of a group started from different observations in {env_id or 'this env'} "
                f"(group {group}, seed {group_seed(self.base_seed, group)}): reset(seed=...) does not fix its start state. "
                "Groups still average over episodes, but not over equal starts. Counted as group/start_mismatch.",
                UserWarning,
                stacklevel=2,
            )


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
    """

    def __init__(self, n_envs: int, group_size: int, base_seed: int, first_group: int, device: th.device) -> None:
        self.group_size, self.device = group_size, device
        # A tensor: as a number it would be part of every captured graph, and each seed would compile anew.
        self.seed_word = th.tensor(signed(base_seed % (1 << 64)), device=device)
        self.job = th.arange(n_envs, device=device) + first_group * group_size
        self._next_job = self.job[-1] + 1
        self.t = th.zeros(n_envs, dtype=th.int64, device=device)
        self.episode_return = th.zeros(n_envs, device=device)
        self.start_mismatches = 0
        self._env_resets: tuple[TensorVecEnv, int] | None = None

    @property
    def next_group(self) -> int:
        """Number of the first group of which no job has been handed out. Waits for the device."""
        return -(-int(self._next_job) // self.group_size)

    def queue_all(self, env: VecEnv) -> None:
        """Nothing to queue; here for the same interface as host slots."""

    def started_all(self, env: VecEnv) -> None:
        """Start the first job in every slot."""
        assert isinstance(env, TensorVecEnv)
        env.reset_all(self._seeds())
        self._env_resets = env, env.resets

    def in_step_with(self, env: VecEnv) -> bool:
        """Nobody else has reset this env since the slots were started."""
        return isinstance(env, TensorVecEnv) and self._env_resets == (env, env.resets)

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
        env.reset_slots(done, self._seeds())

    def _seeds(self) -> th.Tensor:
        """``[n_envs]`` reset seed of the group that each slot works for."""
        return group_seeds(self.seed_word, self.job // self.group_size)
