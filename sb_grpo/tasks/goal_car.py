"""MountainCarGoal-v0: MountainCar-v0 with a movable flag, for curricula. Host and tensor version."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv

from sb_grpo.envs.native import MountainCar
from sb_grpo.types import Info, Kwargs

#: Position of the flag at difficulty 0 (random actions reach it in half of the episodes) and 1 (MountainCar-v0's hill top).
EASIEST = -0.4
HARDEST = 0.5


def goal_position(difficulty: float) -> float:
    """Position of the flag.

    :param difficulty: in [0, 1]
    :raises ValueError: for other values
    """
    if not 0.0 <= difficulty <= 1.0:
        raise ValueError(f"difficulty={difficulty} must lie in [0, 1]: 1 is MountainCar-v0.")
    return EASIEST + difficulty * (HARDEST - EASIEST)


class GoalCar(MountainCarEnv):
    """MountainCar-v0 with a movable flag, which the observation does not show. Begins at difficulty 1.

    ``info["is_success"]`` says whether the flag was reached.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._next_goal = HARDEST

    def set_difficulty(self, difficulty: float) -> None:
        """Move the flag, from the next reset on.

        :param difficulty: in [0, 1]
        """
        self._next_goal = goal_position(difficulty)

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[np.ndarray, Info]:
        self.goal_position = self._next_goal
        obs, info = super().reset(seed=seed, options=options)
        return obs, info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "is_success": terminated}


class TensorGoalCar(MountainCar):
    """Tensor version, for any number of envs; all share one flag, which moves at once."""

    env_id = "MountainCarGoal-v0"

    def __init__(self, num_envs: int = 1, device: th.device | str = "cpu", dtype: th.dtype = th.float32) -> None:
        super().__init__(num_envs, device, dtype)
        self.goal = th.tensor(HARDEST, dtype=dtype, device=self.device)

    def set_difficulty(self, difficulty: float) -> None:
        """Move the flag.

        :param difficulty: in [0, 1]
        """
        self.goal.fill_(goal_position(difficulty))  # in place: a compiled graph may hold it

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        after, reward, _ = super().transition(state, actions)
        return after, reward, (after[:, 0] >= self.goal) & (after[:, 1] >= 0.0)
