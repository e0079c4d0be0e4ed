"""DisturbedPendulum-v0: Pendulum-v1 with a disturbing torque that is not observed.

Noise: the torque, an AR(1) process. It changes the speed before the step of Pendulum-v1.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from sb_grpo.envs.native import seen_of_pole, swing
from sb_grpo.envs.noise import EpisodeNoise, normal
from sb_grpo.tasks.input_driven.base import TensorInputDrivenEnv
from sb_grpo.types import Info, Kwargs

PERSISTENCE = 0.9  #: of the torque, per step
INNOVATION = 0.3  #: its standard deviation per step; 0.69 in the long run, and the motor has 2
KICK = 3.0 * 0.05  #: speed that a torque of 1 adds in a step


class TensorDisturbedPendulum(TensorInputDrivenEnv):
    """Tensor version. Body: angle, speed, disturbing torque."""

    env_id = "DisturbedPendulum-v0"
    observed = spaces.Box(np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32))
    acted = spaces.Box(-2.0, 2.0, (1,), np.float32)
    n_start = 3
    k = 1

    def body_start(self, u: th.Tensor) -> th.Tensor:
        return _start(u)

    @staticmethod
    def noise(u: th.Tensor, t: th.Tensor) -> th.Tensor:
        """Innovation of the torque."""
        return normal(u, INNOVATION)

    def advance(self, body: th.Tensor, actions: th.Tensor, noise: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        theta, speed, torque = body.unbind(1)
        after, reward = swing(th.stack([theta, speed + KICK * torque], 1), actions)
        return th.cat([after, PERSISTENCE * body[:, 2:] + noise], 1), reward

    def look(self, body: th.Tensor, t: th.Tensor) -> th.Tensor:
        return seen_of_pole(body[:, :2])


def _start(u: th.Tensor) -> th.Tensor:
    """Initial angle and speed of Pendulum-v1, and torque from its stationary distribution, given ``[n, 3]``."""
    spread = INNOVATION / (1.0 - PERSISTENCE**2) ** 0.5
    return th.stack([math.pi * (2.0 * u[:, 0] - 1.0), 2.0 * u[:, 1] - 1.0, normal(u[:, 2], spread)], 1)


class DisturbedPendulum(PendulumEnv):
    """Host version. Spaces and reward are Pendulum-v1's. ``info["torque"]`` is the disturbance of the step."""

    tensor_version: ClassVar[type[TensorInputDrivenEnv]] = TensorDisturbedPendulum

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.t = 0
        self.torque = 0.0
        self._noise = EpisodeNoise(self, 1, TensorDisturbedPendulum.noise)

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        *state, self.torque = _start(th.from_numpy(self._noise.begin(seed, 3)).unsqueeze(0))[0].tolist()
        self.state = np.array(state)
        self.t = 0
        return self._get_obs(), {}  # type: ignore[no-untyped-call]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        torque = self.torque
        innovation = self._noise.at(self.t)[0]
        self.state = np.array([self.state[0], self.state[1] + KICK * torque])
        obs, reward, _, _, _ = super().step(action)  # type: ignore[no-untyped-call]
        self.torque = PERSISTENCE * torque + innovation
        self.t += 1
        return obs, float(reward), False, False, {"torque": torque}
