"""The schema of the fields that a rollout may have beside observations, actions and rewards.

A field is one entry here: its name, the form of a value, whether steps or episodes have it, and where it comes from, on the
host and on the device. Buffers, packing, rollouts and minibatches carry whatever the schema lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.collect.plan import LARGEST_REWARD
from sb_grpo.config import Multitask, Rewards
from sb_grpo.envs.instance_env import InstanceEnv
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.types import TURN, Breakdown, Info, Obs

#: Key of an info that holds the rewards by objective.
REWARDS_KEY = "rewards"


class HostStep(NamedTuple):
    """One step of every host env, as a field sees it."""

    raw_obs: Obs  #: [n_envs, ...] that the step was taken from, before any normalisation
    infos: list[Info]
    raw_rewards: np.ndarray  #: [n_envs]
    t: np.ndarray  #: [n_envs] number of the step in its episode


class FieldSettings(NamedTuple):
    """Settings that decide which fields there are."""

    multitask: Multitask
    rewards: Rewards
    observation_space: spaces.Space
    n_envs: int
    turns: bool  #: ratios are those of turns
    seeds: bool  #: instances are found again by their seeds


class FieldSpec(NamedTuple):
    """One entry of the schema."""

    name: str
    shape: tuple[int, ...]  #: of one value
    dtype: th.dtype
    of_episodes: bool  #: one value per episode, that of its last step; False: one per step
    #: From one step of every env to ``[n_envs, *shape]``.
    host: Callable[[HostStep], np.ndarray]
    #: From a tensor env after a step, and the returns of the envs' episodes so far ``[n_envs]``, to ``[n_envs, *shape]``;
    #: None where the env does not say.
    tensor: Callable[[TensorVecEnv, th.Tensor], th.Tensor | None]


def task_field(settings: FieldSettings) -> FieldSpec | None:
    """The task that each episode belongs to."""
    if settings.multitask.tasks is None:
        return None
    read = TaskReader(settings.multitask, settings.observation_space)
    return FieldSpec("task", (), th.int64, True, read, lambda env, returns: env.tasks)


def objectives_field(settings: FieldSettings) -> FieldSpec | None:
    """The reward of each step by objective."""
    objectives = settings.rewards.objectives
    if objectives is None:
        return None
    shape = (len(objectives),)
    read = ObjectiveReader(objectives, LARGEST_REWARD if settings.rewards.scaling == "none" else math.inf)
    return FieldSpec("objectives", shape, th.float32, False, read, lambda env, returns: env.objectives)


def return_field(settings: FieldSettings) -> FieldSpec | None:
    """The return of each episode so far, of the env's own reward."""
    if settings.multitask.tasks is None and settings.multitask.weights is None:
        return None
    return FieldSpec("episode_return", (), th.float32, True, ReturnsSoFar(settings.n_envs), lambda env, returns: returns)


def turn_field(settings: FieldSettings) -> FieldSpec | None:
    """The turn of its episode that each step belongs to."""
    return FieldSpec(TURN, (), th.int64, False, read_turns, lambda env, returns: None) if settings.turns else None


def seed_field(settings: FieldSettings) -> FieldSpec | None:
    """The seed of each episode's problem instance, which a rollout has in the place of its row until it is packed."""
    if not settings.seeds:
        return None
    return FieldSpec("instance", (), th.int64, True, of_no_host_env, seed_of_instance)


def of_no_host_env(step: HostStep) -> np.ndarray:
    raise NotImplementedError("An InstanceEnv is a tensor env.")


def seed_of_instance(env: TensorVecEnv, returns: th.Tensor) -> th.Tensor:
    assert isinstance(env, InstanceEnv)
    return env.seeds


#: Makers of the fields, in this order; each returns None where nothing asks for it.
SCHEMA: list[Callable[[FieldSettings], FieldSpec | None]] = [
    task_field, objectives_field, return_field, turn_field, seed_field,
]  # fmt: skip


def make_extra_fields(settings: FieldSettings) -> tuple[FieldSpec, ...]:
    """The fields that a model's arguments ask for; none with the default ones."""
    return tuple(field for make in SCHEMA if (field := make(settings)) is not None)


def read_host(fields: Sequence[FieldSpec], step: HostStep) -> Mapping[str, np.ndarray]:
    """The values of one step of every env, by name.

    :raises ValueError: for a task or an objective that is missing, unknown or not finite
    """
    return {field.name: field.host(step) for field in fields}


class ReturnsSoFar:
    """Adds up the rewards of each env's episode.

    :param n_envs: number of envs
    """

    def __init__(self, n_envs: int) -> None:
        self.returns = np.zeros(n_envs, dtype=np.float32)

    def __call__(self, step: HostStep) -> np.ndarray:
        self.returns = np.where(step.t == 0, 0.0, self.returns) + step.raw_rewards
        return self.returns


def read_turns(step: HostStep) -> np.ndarray:
    """Read the turn of every env's step from ``info["turn"]``.

    :return: ``[n_envs]`` int64
    :raises ValueError: where that is missing, or no integer
    """
    for env_index, info in enumerate(step.infos):
        turn = info.get(TURN)
        if not isinstance(turn, int | np.integer):
            raise ValueError(
                f"loss_kwargs: importance_level='turn' needs the turn of every step, but info[{TURN!r}] of env {env_index} is "
                f"{turn!r}. Report it as an integer that counts up within an episode, or use 'step' or 'episode'."
            )
    return np.array([info[TURN] for info in step.infos], dtype=np.int64)


class TaskReader:
    """Reads the task from the observation where that is a Dict with the key ``task_key``, otherwise from ``info[task_key]``.

    :param multitask: names and key
    :param space: of observations
    """

    def __init__(self, multitask: Multitask, space: spaces.Space) -> None:
        self.key = multitask.task_key
        self.names = multitask.names
        self.ids: dict[object, int] = {
            **{i: i for i in range(len(self.names))},
            **{name: i for i, name in enumerate(self.names)},
        }
        self.in_observation = isinstance(space, spaces.Dict) and self.key in space.spaces

    def __call__(self, step: HostStep) -> np.ndarray:
        if self.in_observation:
            return self._from_observation(np.asarray(step.raw_obs[self.key]))
        return self._ids([self._of_info(env_index, info) for env_index, info in enumerate(step.infos)])

    def _of_info(self, env_index: int, info: Info) -> object:
        if self.key not in info:
            raise ValueError(
                f"tasks={list(self.names)} are declared, but the info of env {env_index} has no {self.key!r} (it has "
                f"{sorted(map(str, info))}). Report the task in the info of every step, or name the key with task_key=, of "
                "the info or of a Dict observation."
            )
        return info[self.key]

    def _ids(self, tasks: Sequence[object]) -> np.ndarray:
        try:
            return np.array([self.ids[task] for task in tasks])
        except (KeyError, TypeError):  # TypeError: not hashable, so surely no id
            known = {name for name in self.ids if isinstance(name, str)}
            env_index = next(i for i, t in enumerate(tasks) if not isinstance(t, str | int | np.integer) or t not in self.ids)
            raise ValueError(
                f"Task {tasks[env_index]!r} of env {env_index} is not declared: there are {len(known)}, {sorted(known)} (ids "
                f"0 to {len(known) - 1}). Declare all of them with tasks=, as a number or a list of names."
            ) from None

    def _from_observation(self, tasks: np.ndarray) -> np.ndarray:
        """``[n_envs]`` ids from integers or one-hot vectors."""
        n = len(self.names)
        values = tasks.reshape(len(tasks), -1)
        if values.shape[1] == n and n > 1:
            one_hot = ((values == 0) | (values == 1)).all(1) & (values.sum(1) == 1)
            ids: np.ndarray = values.argmax(1)
            fine = one_hot
        else:
            ids = values[:, 0].astype(np.int64)
            fine = (values[:, 0] == ids) & (ids >= 0) & (ids < n) & (values.shape[1] == 1)
        if not fine.all():
            env_index = int(np.flatnonzero(~fine)[0])
            raise ValueError(
                f"Task {values[env_index].tolist()} in observation[{self.key!r}] of env {env_index} is not declared: there "
                f"are {n} tasks, given as an integer from 0 to {n - 1} or as a one-hot vector. Declare all of them with "
                "tasks=."
            )
        return ids


class ObjectiveReader:
    """Reads the rewards by objective from ``info["rewards"]``: a dict by name, or a vector in the order of ``objectives``.

    :param objectives: weights by name
    :param largest: reward that is taken
    """

    def __init__(self, objectives: Mapping[str, float], largest: float = math.inf) -> None:
        self.objectives = list(objectives)
        self.largest = largest

    def __call__(self, step: HostStep) -> np.ndarray:
        values = np.array([self._rewards(env_index, info) for env_index, info in enumerate(step.infos)], dtype=np.float32)
        self._check_finite(values)
        return values

    def _rewards(self, env_index: int, info: Info) -> object:
        if REWARDS_KEY not in info:
            raise ValueError(
                f"objectives={self.objectives} are declared, but the info of env {env_index} has no {REWARDS_KEY!r}. Report "
                f"the reward of every step by objective: info[{REWARDS_KEY!r}] = {{name: value}}, or a vector."
            )
        rewards = info[REWARDS_KEY]
        if isinstance(rewards, dict):
            unknown = [name for name in self.objectives if name not in rewards]
            if unknown:
                raise ValueError(
                    f"objectives has weights for {unknown}, but info[{REWARDS_KEY!r}] of env {env_index} holds "
                    f"{sorted(rewards)}. Use its names."
                )
            return [rewards[name] for name in self.objectives]
        if np.shape(rewards) != (len(self.objectives),):
            raise ValueError(
                f"info[{REWARDS_KEY!r}] of env {env_index} has shape {np.shape(rewards)}, but objectives has "
                f"{len(self.objectives)} weights: {self.objectives}. Give one weight for each entry, in its order."
            )
        return rewards

    def _check_finite(self, values: np.ndarray) -> None:
        bad = ~(np.isfinite(values) & (np.abs(values) <= self.largest))
        if bad.any():
            env_index, k = np.argwhere(bad)[0].tolist()
            raise Breakdown(
                f"The reward of env {env_index} for the objective {self.objectives[k]!r} is {values[env_index, k]}. The "
                "policy has not been updated with it; fix the env, or bound this reward with a wrapper."
            )


def check_one_task(row_task: th.Tensor, episode_task: th.Tensor, episode: th.Tensor) -> None:
    """Check that every episode has kept its task.

    :param row_task: ``[M]``
    :param episode_task: ``[E]``
    :param episode: ``[M]``
    :raises ValueError: naming both tasks of one that has not
    """
    differs = row_task != episode_task[episode]
    if bool(differs.any()):
        row = int(differs.nonzero()[0])
        raise ValueError(
            f"An episode changed its task from {int(row_task[row])} to {int(episode_task[episode[row]])} on the way. An "
            "episode belongs to one task: choose the task in reset()."
        )
