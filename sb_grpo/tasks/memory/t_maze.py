"""The T-maze (Bakker, "Reinforcement Learning with Long Short-Term Memory", NIPS 2001): the goal is shown only at the start.

The first observation shows the arm with the prize. A uniform corridor follows; at its end the agent turns into one of the
arms. A policy without memory is right half of the time.
"""

from __future__ import annotations

from typing import ClassVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.random import uniform
from sb_grpo.types import Info, Kwargs

#: Cue (1 or -1 at the start, later 0), in the corridor, at the junction.
OBSERVED = spaces.Box(-1.0, 1.0, (3,), np.float32)
#: Forward, into the arm of cue 1, into that of cue -1.
ACTED = spaces.Discrete(3)
#: Reward of a move against a wall.
WASTE = -0.02


class TensorTMaze(FunctionalTensorEnv):
    """State: steps down the corridor, cue.

    :param num_envs: number of envs
    :param device: torch device
    :param dtype: of the state
    :param masks: provide masks of the possible moves (docs/masks.md)
    """

    length: ClassVar[int]

    def __init__(
        self, num_envs: int = 1, device: th.device | str = "cpu", dtype: th.dtype = th.float32, masks: bool = False
    ) -> None:
        self.masks = masks
        super().__init__(num_envs, OBSERVED, ACTED, 4 * self.length, device, dtype)

    def initial_state(self, seeds: th.Tensor) -> th.Tensor:
        cue = th.where(uniform(seeds, 1, self.dtype) < 0.5, -1.0, 1.0)
        return th.cat([th.zeros_like(cue), cue], dim=1)

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        place, cue = state.unbind(1)
        at_end = place >= self.length
        forward = actions == 0
        turned = at_end & (actions > 0)
        right = turned & ((actions == 1) == (cue > 0))
        wasted = ~turned & (at_end | ~forward)
        place = place + (forward & ~at_end)
        return th.stack([place, cue], dim=1), right.to(state.dtype) + WASTE * wasted, turned

    def observe(self, state: th.Tensor) -> th.Tensor:
        place, cue = state.unbind(1)
        at_end = (place >= self.length).float()
        return th.stack([cue * (place == 0), 1.0 - at_end, at_end], dim=1).float()

    @property
    def action_masks(self) -> th.Tensor | None:
        if not self.masks:
            return None
        at_end = self.state[:, 0] >= self.length
        return th.stack([~at_end, at_end, at_end], dim=1)


class TensorTMaze10(TensorTMaze):
    """T-maze with a corridor of 10 steps."""

    env_id = "TMaze10-v0"
    length = 10


class TensorTMaze50(TensorTMaze):
    """T-maze with a corridor of 50 steps."""

    env_id = "TMaze50-v0"
    length = 50


class TMaze(gym.Env[np.ndarray, np.int64]):
    """Host version. ``info["is_success"]`` is True if the turn was right.

    :param length: steps of the corridor, at least 1
    :param masks: provide masks of the possible moves (docs/masks.md)
    :raises ValueError: for a shorter corridor
    """

    observation_space = OBSERVED
    action_space = ACTED

    def __init__(self, length: int = 10, masks: bool = False) -> None:
        if length < 1:
            raise ValueError(f"length={length} is too short: the corridor has at least 1 step.")
        self.length = length
        if masks:
            self.action_masks = self._masks

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        self.place = 0
        self.cue = 1 if self.np_random.random() < 0.5 else -1
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        at_end = self.place == self.length
        choice = int(action)
        if at_end and choice > 0:
            right = (choice == 1) == (self.cue == 1)
            return self._look(), float(right), True, False, {"is_success": right}
        wasted = at_end or choice > 0
        self.place += not wasted
        return self._look(), WASTE * wasted, False, False, {}

    def _look(self) -> np.ndarray:
        at_end = self.place == self.length
        return np.array([self.cue if self.place == 0 else 0, not at_end, at_end], dtype=np.float32)

    def _masks(self) -> np.ndarray:
        at_end = self.place == self.length
        return np.array([not at_end, at_end, at_end])
