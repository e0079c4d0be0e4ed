"""Base of the input-driven tasks: episodes of fixed length with noise in every step."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.core import ActType

from sb_grpo.envs.noise import EpisodeNoise, NoisyTensorEnv
from sb_grpo.types import Info, Kwargs


class InputDrivenEnv(gym.Env[np.ndarray, ActType]):
    """Host version in NumPy and Python numbers, with the noise of the tensor version.

    The registration has the time limit; an unwrapped env never ends.
    """

    tensor_version: ClassVar[type[TensorInputDrivenEnv]]

    def __init__(self) -> None:
        version = self.tensor_version
        self.observation_space = version.observed
        self.action_space = version.acted
        self.t = 0
        self._noise = EpisodeNoise(self, version.k, version.noise)

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        self.t = 0
        self.start(self._noise.begin(seed, self.tensor_version.n_start))
        return self.observation(), {}

    def step(self, action: ActType) -> tuple[np.ndarray, float, bool, bool, Info]:
        reward, info = self.advance(action, self._noise.at(self.t))
        self.t += 1
        return self.observation(), reward, False, False, info

    @abstractmethod
    def start(self, u: np.ndarray) -> None:
        """Set the initial state from ``[n_start]`` uniform numbers."""

    @abstractmethod
    def advance(self, action: ActType, noise: list[float]) -> tuple[float, Info]:
        """Advance by one step; return reward and info."""

    @abstractmethod
    def observation(self) -> np.ndarray:
        """Current observation, float32."""


class TensorInputDrivenEnv(NoisyTensorEnv):
    """Tensor version for any number of envs.

    :param num_envs: number of envs
    :param device: torch device
    :param dtype: of state and physics
    """

    observed: ClassVar[gym.spaces.Box]
    acted: ClassVar[gym.spaces.Space]

    def __init__(self, num_envs: int = 1, device: th.device | str = "cpu", dtype: th.dtype = th.float32) -> None:
        limit = gym.spec(self.env_id).max_episode_steps
        assert limit is not None
        super().__init__(num_envs, self.observed, self.acted, limit, device, dtype)
