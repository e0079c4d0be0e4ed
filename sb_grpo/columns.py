"""Columns beside the reward: the task that each step belongs to, its reward by objective, and the return so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.types import NOTHING

if TYPE_CHECKING:
    from sb_grpo.grpo import GRPO

#: Key of an info that holds the rewards by objective.
REWARDS_KEY = "rewards"


def task_names(tasks: int | Sequence[str] | None) -> tuple[str, ...]:
    """Names of the declared tasks; their places are the task ids.

    :param tasks: how many, or their names; None: no tasks
    """
    if tasks is None:
        return ()
    return tuple(f"task_{i}" for i in range(tasks)) if isinstance(tasks, int | np.integer) else tuple(tasks)


def column_shapes(model: GRPO) -> dict[str, tuple[tuple[int, ...], th.dtype]]:
    """The columns that a model's options ask for; none with the default ones."""
    columns: dict[str, tuple[tuple[int, ...], th.dtype]] = {}
    if model.tasks is not None:
        columns["task"] = ((), th.int64)
    if model.objectives is not None:
        columns["objectives"] = ((len(model.objectives),), th.float32)
    if model.tasks is not None or model.group_weights is not None:
        columns["episode_return"] = ((), th.float32)
    return columns


class HostColumns:
    """Reads the columns from what an SB3 VecEnv reports.

    A task comes from the observation where that is a Dict with the key ``task_key``, otherwise from ``info[task_key]``;
    rewards by objective come from ``info["rewards"]``, a dict by name or a vector in the order of ``objectives``. The
    return so far is of the env's own reward.

    :param model: with its env
    """

    def __init__(self, model: GRPO) -> None:
        self.columns = column_shapes(model)
        self.key, self.names = model.task_key, task_names(model.tasks)
        self.ids: dict[Any, int] = {**{i: i for i in range(len(self.names))}, **{name: i for i, name in enumerate(self.names)}}
        space = model.observation_space
        self.in_observation = isinstance(space, spaces.Dict) and self.key in space.spaces
        self.objectives = list(model.objectives or {})
        self.returns = np.zeros(model.n_envs, dtype=np.float32)

    def read(
        self, raw_obs: Any, infos: list[dict[str, Any]], raw_rewards: np.ndarray, t: np.ndarray
    ) -> Mapping[str, np.ndarray]:
        """The columns of one step of every slot.

        :param raw_obs: ``[n_envs, ...]`` that the step was taken from, before any normalisation
        :param infos: of the step
        :param raw_rewards: ``[n_envs]``
        :param t: ``[n_envs]`` number of the step in its episode
        :return: ``[n_envs, ...]`` by name; empty where no option asks for any
        :raises ValueError: for a task or an objective that is missing, unknown or not finite
        """
        if not self.columns:
            return NOTHING
        extra: dict[str, np.ndarray] = {}
        if "task" in self.columns:
            extra["task"] = (
                self._from_observation(np.asarray(raw_obs[self.key]))
                if self.in_observation
                else self._ids([self._of_info(slot, info) for slot, info in enumerate(infos)])
            )
        if "objectives" in self.columns:
            extra["objectives"] = np.array([self._rewards(slot, info) for slot, info in enumerate(infos)], dtype=np.float32)
            self._check_finite(extra["objectives"])
        if "episode_return" in self.columns:
            self.returns = np.where(t == 0, 0.0, self.returns) + raw_rewards
            extra["episode_return"] = self.returns
        return extra

    def _of_info(self, slot: int, info: dict[str, Any]) -> Any:
        if self.key not in info:
            raise ValueError(
                f"tasks={list(self.names)} are declared, but the info of env {slot} has no {self.key!r} (it has "
                f"{sorted(map(str, info))}). Report the task in the info of every step, or name the key with task_key=, of "
                "the info or of a Dict observation."
            )
        return info[self.key]

    def _ids(self, tasks: Sequence[Any]) -> np.ndarray:
        try:
            return np.array([self.ids[task] for task in tasks])
        except (KeyError, TypeError):  # TypeError: not hashable, so surely no id
            known = {name for name in self.ids if isinstance(name, str)}
            slot = next(i for i, t in enumerate(tasks) if not isinstance(t, str | int | np.integer) or t not in self.ids)
            raise ValueError(
                f"Task {tasks[slot]!r} of env {slot} is not declared: there are {len(known)}, {sorted(known)} (ids 0 to "
                f"{len(known) - 1}). Declare all of them with tasks=, as a number or a list of names."
            ) from None

    def _from_observation(self, tasks: np.ndarray) -> np.ndarray:
        """``[n_envs]`` ids from integers or one-hot vectors."""
        n, values = len(self.names), tasks.reshape(len(tasks), -1)
        if values.shape[1] == n and n > 1:
            one_hot = ((values == 0) | (values == 1)).all(1) & (values.sum(1) == 1)
            ids: np.ndarray = values.argmax(1)
            fine = one_hot
        else:
            ids = values[:, 0].astype(np.int64)
            fine = (values[:, 0] == ids) & (ids >= 0) & (ids < n) & (values.shape[1] == 1)
        if not fine.all():
            slot = int(np.flatnonzero(~fine)[0])
            raise ValueError(
                f"Task {values[slot].tolist()} in observation[{self.key!r}] of env {slot} is not declared: there are {n} "
                f"tasks, given as an integer from 0 to {n - 1} or as a one-hot vector. Declare all of them with tasks=."
            )
        return ids

    def _rewards(self, slot: int, info: dict[str, Any]) -> Any:
        if REWARDS_KEY not in info:
            raise ValueError(
                f"objectives={self.objectives} are declared, but the info of env {slot} has no {REWARDS_KEY!r}. Report the "
                f"reward of every step by objective: info[{REWARDS_KEY!r}] = {{name: value}}, or a vector."
            )
        rewards = info[REWARDS_KEY]
        if isinstance(rewards, dict):
            unknown = [name for name in self.objectives if name not in rewards]
            if unknown:
                raise ValueError(
                    f"objectives has weights for {unknown}, but info[{REWARDS_KEY!r}] of env {slot} holds {sorted(rewards)}. "
                    "Use its names."
                )
            return [rewards[name] for name in self.objectives]
        if np.shape(rewards) != (len(self.objectives),):
            raise ValueError(
                f"info[{REWARDS_KEY!r}] of env {slot} has shape {np.shape(rewards)}, but objectives has "
                f"{len(self.objectives)} weights: {self.objectives}. Give one weight for each entry, in its order."
            )
        return rewards

    def _check_finite(self, values: np.ndarray) -> None:
        bad = ~np.isfinite(values)
        if bad.any():
            slot, k = np.argwhere(bad)[0].tolist()
            raise ValueError(
                f"The reward of env {slot} for the objective {self.objectives[k]!r} is {values[slot, k]}. The policy has not "
                "been updated with it; fix the env, or bound this reward with a wrapper."
            )
