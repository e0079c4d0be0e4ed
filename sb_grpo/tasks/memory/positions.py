"""Classic control with positions and without velocities, which the policy must infer from its memory."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.envs.native import CartPole, Pendulum
from sb_grpo.types import Action


class Positions(gym.ObservationWrapper[np.ndarray, Action, np.ndarray]):
    """Keep some components of the observation.

    :param env: with a flat Box
    :param kept: their indices
    """

    def __init__(self, env: gym.Env[np.ndarray, Action], kept: tuple[int, ...]) -> None:
        super().__init__(env)
        self.kept = list(kept)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.observation_space = spaces.Box(space.low[self.kept], space.high[self.kept], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[self.kept]


def cart_pole(**kwargs: Any) -> gym.Env[np.ndarray, Action]:
    """CartPole with the position of the cart and the angle of the pole."""
    return Positions(gym.make("CartPole-v1", **kwargs), (0, 2))


def pendulum(**kwargs: Any) -> gym.Env[np.ndarray, Action]:
    """Pendulum with cosine and sine of the angle."""
    return Positions(gym.make("Pendulum-v1", **kwargs), (0, 1))


class TensorCartPolePositions(CartPole):
    """Tensor version of :func:`cart_pole`."""

    env_id = "CartPolePositions-v0"

    def observe(self, state: th.Tensor) -> th.Tensor:
        return state[:, ::2].float()


class TensorPendulumPositions(Pendulum):
    """Tensor version of :func:`pendulum`."""

    env_id = "PendulumPositions-v0"

    def observe(self, state: th.Tensor) -> th.Tensor:
        return super().observe(state)[:, :2]
