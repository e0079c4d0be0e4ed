"""A VecEnv whose envs are in workers that may die: who died is named, or replaced, and its episodes dropped and counted."""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb_grpo.config import check_values, number
from sb_grpo.envs.env_batch import EPISODE_LOST
from sb_grpo.types import Kwargs, Obs, map_obs

#: Seconds that workers may take to start: they import torch, and make their envs, before they answer for the first time.
START_S = 120.0
#: Seconds that a call may take.
TIMEOUT = number(0, 1e6, "a few times what the slowest reset takes is usual, None waits without end", above=True, none=True)
#: Calls that decide on the seed of an env's next reset; a worker that takes over must know the last one.
SEEDING = ("set_next_seed", "withdraw_seed")


#: Number of the worker, method, and its arguments.
Call: TypeAlias = tuple[Any, ...]


class Ticket(NamedTuple):
    """A call whose answer is awaited."""

    worker: int
    method: str
    deadline: float | None  #: by :func:`time.monotonic`; None: none
    answer: object = None  #: to come, where the call itself returned something


class WorkerDied(Exception):
    """A worker will not answer; the message tells of its end."""


class WorkerVecEnv(VecEnv):
    """Envs in workers, several to each, one call per worker and step. Subclasses define the worker.

    When a worker dies and may be replaced, another one makes its envs anew, with the attributes that were set through the
    VecEnv. In the step after, each of its envs reports the end of an episode (``done``, truncated, reward 0, the last
    observation as ``terminal_observation``, and a mark in the info) and begins the next one, from the seed that was queued.
    GRPO drops the steps of such an episode, counts them in ``rollout/useful_fraction``, and runs its episode once more.

    :param env_fns: make the envs
    :param n_workers: workers; envs are dealt out in order, as evenly as they go
    :param restart_workers: replace a worker that died; False: raise, naming it
    :param max_restarts: replacements in all; if more of them die, the env itself is the cause
    :param timeout: seconds after which a worker that does not answer a call is killed, and so has died; the first call may
        take :data:`START_S` longer, as the envs are made in it. None: it is waited for without end
    :raises ValueError: for no envs, workers that no env is left for, or a timeout that is no positive number
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env]],
        n_workers: int,
        restart_workers: bool,
        max_restarts: int,
        timeout: float | None,
    ) -> None:
        check_values("", {"timeout": timeout}, {"timeout": TIMEOUT})
        if not 1 <= n_workers <= len(env_fns):
            raise ValueError(f"{n_workers} workers for {len(env_fns)} envs: choose a number from 1 to that of the envs.")
        self.restart_workers = restart_workers
        self.max_restarts = max_restarts
        self.timeout = timeout
        self.n_restarts = 0  #: workers that have been replaced
        self.n_lost = 0  #: episodes that ended with their worker
        self._fns = list(env_fns)
        parts = np.array_split(np.arange(len(env_fns)), n_workers)
        self._env_indices = [part.tolist() for part in parts]  #: by worker
        self._place = {
            env_index: (worker, i)
            for worker, env_indices in enumerate(self._env_indices)
            for i, env_index in enumerate(env_indices)
        }
        self._given: list[Kwargs] = [{} for _ in env_fns]
        self._queued: list[tuple[str, tuple[object, ...]] | None] = [None] * len(env_fns)
        self._last_obs: VecEnvObs | None = None
        self._pending: list[tuple[Call, Ticket]] | None = None
        self._closed = False
        self._everywhere = range(n_workers)
        self._starting = set(self._everywhere)  #: workers that have not been called yet
        for worker in self._everywhere:
            self._start(worker, [self._fns[env_index] for env_index in self._env_indices[worker]])
        self._await_start()
        observation_space, action_space = self._gather([(worker, "spaces") for worker in self._everywhere])[0]
        super().__init__(len(env_fns), observation_space, action_space)

    # ------------------------------------------------------------ what a worker is

    @abstractmethod
    def _start(self, worker: int, env_fns: list[Callable[[], gym.Env]]) -> None:
        """Begin a worker with an :class:`~sb_grpo.envs.env_batch.EnvBatch`, in place of the one that had its number."""

    def _await_start(self) -> None:
        """All workers have been begun; where some cannot start, this is the place to say so."""

    @abstractmethod
    def _ask(self, worker: int, method: str, *args: object) -> Ticket:
        """Send a call; whether the worker lives shows in its answer.

        :return: the argument of :meth:`_answer`
        """

    @abstractmethod
    def _answer(self, ticket: Ticket) -> Any:
        """Wait for an answer.

        :raises WorkerDied: if there will be none
        """

    @abstractmethod
    def _stop(self, worker: int) -> None:
        """End a worker, alive or dead."""

    @abstractmethod
    def _name(self, worker: int) -> str:
        """Name of a worker in messages."""

    def _deadline(self, worker: int) -> float | None:
        """Time by :func:`time.monotonic` at which the answer to a call that is made now is overdue; None: never."""
        extra = START_S if worker in self._starting else 0.0
        self._starting.discard(worker)
        return None if self.timeout is None else time.monotonic() + self.timeout + extra

    def _overdue(self, method: str) -> WorkerDied:
        """The end of a worker that was killed because it did not answer."""
        return WorkerDied(f"{method}() had not returned after timeout={self.timeout:g} s, so it was killed")

    # ------------------------------------------------------------ calls, and what follows when nobody answers

    def _gather(self, calls: Sequence[Call]) -> list[Any]:
        """Answers to calls, at most one per worker: ``(worker, method, *args)`` each."""
        return self._collect([(call, self._ask(*call)) for call in calls])

    def _collect(self, requested: Sequence[tuple[Call, Ticket]]) -> list[Any]:
        answers = []
        errors = []
        for call, ticket in requested:
            try:
                answers.append(self._answer_or_replace(call, ticket))
            except Exception as error:  # of an env; the other workers answer all the same, and must be heard
                errors.append(error)
        if errors:
            raise errors[0]
        return answers

    def _answer_or_replace(self, call: Call, ticket: Ticket) -> Any:
        try:
            return self._answer(ticket)
        except WorkerDied as death:
            self._replace(call[0], death)
        try:
            return self._answer(self._ask(*call))
        except WorkerDied as death:
            raise RuntimeError(f"{self._who(call[0])} died again at once, in {call[1]}(): {death}.") from death

    def _who(self, worker: int) -> str:
        env_indices = self._env_indices[worker]
        return f"{self._name(worker)} with envs {env_indices[0]} to {env_indices[-1]} (of {len(self._fns)})"

    def _replace(self, worker: int, death: WorkerDied) -> None:
        if not self.restart_workers:
            remedy = "restart_workers=True replaces such a worker, and its episodes are dropped"
            raise RuntimeError(f"{self._who(worker)} died: {death}. {remedy}.") from death
        if self.n_restarts == self.max_restarts:
            remedy = "find out what kills them, or raise max_restarts"
            raise RuntimeError(f"{self._who(worker)} died, after {self.n_restarts} others: {death}. {remedy}.") from death
        self.n_restarts += 1
        warnings.warn(
            f"{self._who(worker)} died: {death}. Another takes its place; the episodes that it was running are dropped.",
            UserWarning,
            stacklevel=2,
        )
        env_indices = self._env_indices[worker]
        self._stop(worker)
        self._starting.add(worker)
        self._start(worker, [self._fns[env_index] for env_index in env_indices])
        renew = [self._given[env_index] for env_index in env_indices], [self._queued[env_index] for env_index in env_indices]
        try:
            self._answer(self._ask(worker, "renew", *renew))
        except WorkerDied as again:
            raise RuntimeError(f"{self._who(worker)} died, and so did the one that took its place: {again}.") from again

    # ------------------------------------------------------------ SB3's interface

    def step_async(self, actions: np.ndarray) -> None:
        calls = [(worker, "step", actions[self._env_indices[worker]]) for worker in self._everywhere]
        self._pending = [(call, self._ask(*call)) for call in calls]

    def step_wait(self) -> VecEnvStepReturn:
        assert self._pending is not None, "step_wait() follows step_async()"
        pending = self._pending
        self._pending = None
        rows = [row for answer in self._collect(pending) for row in answer]
        obs, rewards, dones, infos, reset_infos = zip(*rows, strict=True)
        for env_index in np.flatnonzero(dones).tolist():
            self._queued[env_index] = None
            self.reset_infos[env_index] = reset_infos[env_index]
            if EPISODE_LOST in infos[env_index]:
                self.n_lost += 1
                infos[env_index]["terminal_observation"] = map_obs(lambda o: o[env_index], self._last_obs)  # noqa: B023
        self._last_obs = stacked(obs, self.observation_space)
        return map_obs(np.copy, self._last_obs), np.array(rewards, dtype=np.float32), np.array(dones), list(infos)

    def reset(self) -> Obs:
        calls = []
        for worker, env_indices in enumerate(self._env_indices):
            calls.append((worker, "reset", [self._seeds[s] for s in env_indices], [self._options[s] for s in env_indices]))
        rows = [row for answer in self._gather(calls) for row in answer]
        self._queued = [None] * self.num_envs
        self.reset_infos = [info for _, info in rows]
        self._reset_seeds()
        self._reset_options()
        self._last_obs = stacked([obs for obs, _ in rows], self.observation_space)
        return map_obs(np.copy, self._last_obs)

    def _among(self, indices: VecEnvIndices, method: str, *args: object) -> list[Any]:
        """Answers of some envs, in the order asked for; one call per worker that has any of them."""
        requested = [int(i) % self.num_envs for i in self._get_indices(indices)]
        by_worker: dict[int, list[int]] = {}
        for env_index in requested:
            by_worker.setdefault(self._place[env_index][0], []).append(env_index)
        calls = [(w, method, [self._place[s][1] for s in env_indices], *args) for w, env_indices in by_worker.items()]
        answers = self._gather(calls)
        env_indices = [env_index for part in by_worker.values() for env_index in part]
        of_env = dict(zip(env_indices, [value for answer in answers for value in answer], strict=True))
        return [of_env[env_index] for env_index in requested]

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[Any]:
        answers = self._among(indices, "call", method_name, method_args, method_kwargs)
        if method_name in SEEDING:
            for env_index in self._get_indices(indices):
                self._queued[env_index] = (method_name, method_args)
        return answers

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return self._among(indices, "get", attr_name)

    def has_attr(self, attr_name: str) -> bool:
        return all(self._gather([(worker, "has", attr_name) for worker in self._everywhere]))

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        env_indices = list(self._get_indices(indices))
        self._among(env_indices, "set", attr_name, value)
        for env_index in env_indices:
            self._given[env_index][attr_name] = value

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        return self._among(indices, "wrapped", wrapper_class)

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self.env_method("render")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for _, ticket in self._pending or []:
            self._quietly(ticket)
        for ticket in [self._ask(worker, "close") for worker in self._everywhere]:
            self._quietly(ticket)
        for worker in self._everywhere:
            self._stop(worker)

    def _quietly(self, ticket: Ticket) -> None:
        """Wait for an answer that does not matter, of a worker that may be dead."""
        try:
            self._answer(ticket)
        except WorkerDied:
            return


def stacked(obs: Sequence[Obs], space: spaces.Space) -> VecEnvObs:
    """One observation of every env as ``[n_envs, ...]`` arrays."""
    if isinstance(space, spaces.Dict):
        return {key: np.stack([o[key] for o in obs]) for key in space.spaces}
    return np.stack(obs)
