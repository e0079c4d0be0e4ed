"""BatteryArbitrage-v0: buy power when it is cheap, store it with losses, sell it when it is dear.

A week in hours with a battery of four hours, as in the storage problems of Powell and Meisel, "Tutorial on Stochastic
Optimization in Energy" (IEEE Transactions on Power Systems 31, 2016). Noise: the price, a
daily shape + an AR(1) process + spikes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.envs.noise import exponential, normal
from sb_grpo.tasks.input_driven.base import InputDrivenEnv, TensorInputDrivenEnv
from sb_grpo.types import Info

RATE = 0.25  #: share of the capacity per hour
EFFICIENCY = 0.92  #: of charging, and of discharging
LEVEL = 50.0  #: mean price
_ANGLE = 2.0 * np.pi / 24.0 * np.arange(24)
#: Mean price by hour: cheap at night, dear at 8, dearest at 20.
SHAPE = LEVEL + 12.0 * np.cos(_ANGLE - _ANGLE[17]) + 9.0 * np.cos(2.0 * (_ANGLE - _ANGLE[8]))
PERSISTENCE = 0.95  #: of the AR(1) process, per hour
INNOVATION = 5.0  #: its standard deviation per hour; 16 in the long run
SPIKES = 0.04  #: probability per hour
SPIKE = 80.0  #: mean height (exponential)
SCALE = 10.0  #: the reward is the money divided by this, for a battery of one unit


class TensorBatteryArbitrage(TensorInputDrivenEnv):
    """Tensor version. Body: charge in [0, 1], hour, AR(1) process, price, recent mean price."""

    env_id = "BatteryArbitrage-v0"
    observed = spaces.Box(-20.0, 200.0, (5,), np.float32)
    acted = spaces.Box(-1.0, 1.0, (1,), np.float32)
    n_start = 3
    k = 3

    def constants(self, tensor: Callable[[object], th.Tensor]) -> None:
        self.shape = tensor(SHAPE)
        self.clock_face = tensor(np.stack([np.sin(_ANGLE), np.cos(_ANGLE)], 1))

    def body_start(self, u: th.Tensor) -> th.Tensor:
        charge, hour, wander = _start(u).unbind(1)
        price = self.shape[hour.long()] + wander
        return th.stack([charge, hour, wander, price, LEVEL + wander], 1)

    @staticmethod
    def noise(u: th.Tensor, t: th.Tensor) -> th.Tensor:
        """Innovation of the AR(1) process, and the spike on the next price."""
        spike = (u[:, 1] < SPIKES) * exponential(u[:, 2], SPIKE)
        return th.stack([normal(u[:, 0], INNOVATION), spike], 1)

    def advance(self, body: th.Tensor, actions: th.Tensor, noise: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        charge, hour, wander, price, recent = body.unbind(1)
        rate = RATE * actions[:, 0].to(body.dtype).clamp(-1.0, 1.0)
        stored = th.minimum(th.maximum(rate, -charge), 1.0 - charge)
        traded = th.where(stored > 0, stored / EFFICIENCY, stored * EFFICIENCY)
        reward = (LEVEL * stored - price * traded) / SCALE
        hour = (hour + 1.0) % 24.0
        wander = PERSISTENCE * wander + noise[:, 0]
        price = self.shape[hour.long()] + wander + noise[:, 1]
        return th.stack([charge + stored, hour, wander, price, recent + (price - recent) / 24.0], 1), reward

    def look(self, body: th.Tensor, t: th.Tensor) -> th.Tensor:
        charge, hour, _, price, recent = body.unbind(1)
        seen = th.stack([2.0 * charge - 1.0, (price - LEVEL) / 25.0, (recent - LEVEL) / 25.0], 1)
        return th.cat([seen, self.clock_face[hour.long()]], 1)


def _start(u: th.Tensor) -> th.Tensor:
    """Initial charge, hour and AR(1) process (from its stationary distribution), given ``[n, 3]``."""
    spread = INNOVATION / (1.0 - PERSISTENCE**2) ** 0.5
    return th.stack([u[:, 0], th.floor(24.0 * u[:, 1]), normal(u[:, 2], spread)], 1)


class BatteryArbitrage(InputDrivenEnv[np.ndarray]):
    """Host version. Action: -1 sells, 1 buys a quarter of the capacity. Observed: charge, price, mean price of the last day,
    hour.

    Reward: money from the trade plus stored energy at the mean price, / 10, so that a full battery at the end keeps its value.
    Info: ``price`` of the trade, and ``stored``, the change of the charge.
    """

    tensor_version = TensorBatteryArbitrage

    def start(self, u: np.ndarray) -> None:
        self.charge, hour, self.wander = _start(th.from_numpy(u).unsqueeze(0))[0].tolist()
        self.hour = int(hour)
        self.price = float(SHAPE[self.hour]) + self.wander
        self.recent = LEVEL + self.wander

    def advance(self, action: np.ndarray, noise: list[float]) -> tuple[float, Info]:
        rate = RATE * min(max(float(action[0]), -1.0), 1.0)
        price = self.price
        stored = min(max(rate, -self.charge), 1.0 - self.charge)
        traded = stored / EFFICIENCY if stored > 0 else stored * EFFICIENCY
        self.charge += stored
        self.hour = (self.hour + 1) % 24
        self.wander = PERSISTENCE * self.wander + noise[0]
        self.price = float(SHAPE[self.hour]) + self.wander + noise[1]
        self.recent += (self.price - self.recent) / 24.0
        return (LEVEL * stored - price * traded) / SCALE, {"price": price, "stored": stored}

    def observation(self) -> np.ndarray:
        prices = (self.price - LEVEL) / 25.0, (self.recent - LEVEL) / 25.0
        angle = _ANGLE[self.hour]
        return np.array([2.0 * self.charge - 1.0, *prices, np.sin(angle), np.cos(angle)], dtype=np.float32)
