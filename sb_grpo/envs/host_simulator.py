"""Base of adapters to NumPy simulators: converts spaces, observations and actions to and from tensors."""

from __future__ import annotations

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first

from sb_grpo.envs.tensor_env import TensorStep, TensorVecEnv


def tensor_space(space: spaces.Space) -> spaces.Space:
    """Observation space of the tensors: no float64, and images with the channel first, as in SB3."""
    if not isinstance(space, spaces.Box):
        return space
    low = space.low
    high = space.high
    if _channels_last(space):
        low = np.moveaxis(low, -1, 0)
        high = np.moveaxis(high, -1, 0)
    if space.dtype == np.float64:
        low = low.astype(np.float32)
        high = high.astype(np.float32)
    return spaces.Box(low, high, dtype=low.dtype.type)


def _channels_last(space: spaces.Space) -> bool:
    return is_image_space(space) and not is_image_space_channels_first(space)  # type: ignore[arg-type]


class HostSimulatorEnv(TensorVecEnv):
    """Batch of envs with NumPy arrays on the host; every step and reset waits for it.

    :param num_envs: number of envs
    :param observation_space: of one env, in the simulator's form
    :param action_space: of one env
    :param max_episode_steps: time limit of the simulator; None: unknown
    :param device: torch device of the tensors
    :raises ValueError: for an observation space that tensors cannot hold, no envs, or an unavailable device
    """

    def __init__(
        self,
        num_envs: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        max_episode_steps: int | None,
        device: th.device | str,
    ) -> None:
        self._transpose = _channels_last(observation_space)
        super().__init__(num_envs, tensor_space(observation_space), action_space, max_episode_steps, device)
        self._obs = self.to_tensor(np.zeros((num_envs, *(observation_space.shape or ())), dtype=observation_space.dtype))

    @property
    def observations(self) -> th.Tensor:
        return self._obs

    def to_tensor(self, obs: np.ndarray) -> th.Tensor:
        """Copy observations to the env's device, because simulators reuse their arrays.

        :param obs: ``[n, ...]``
        """
        obs = np.array(obs, dtype=self.observation_space.dtype)
        return th.from_numpy(np.moveaxis(obs, -1, 1) if self._transpose else obs).contiguous().to(self.device)

    def to_numpy(self, actions: th.Tensor) -> np.ndarray:
        """Actions in the form of the simulator's space, ``[N, ...]``."""
        space = self.action_space
        return actions.cpu().numpy().reshape(self.num_envs, *(space.shape or ())).astype(space.dtype)

    def note_step(self, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> TensorStep:
        """Convert a step to tensors, with the current observations (the last ones of ended episodes)."""
        rewards = np.asarray(rewards, dtype=np.float32)
        terminated = np.array(terminated, dtype=bool)
        truncated = np.array(truncated, dtype=bool) & ~terminated
        return TensorStep(self._obs, *(th.tensor(column, device=self.device) for column in (rewards, terminated, truncated)))
