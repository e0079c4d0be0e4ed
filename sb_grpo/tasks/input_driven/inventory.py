"""Inventory-v0: order one good every day, against a demand that cannot wait, with three days until an order arrives.

The lost-sales system with lead time (Zipkin, "Old and new methods for lost-sales inventory systems", Operations Research 56,
2008), for which no simple rule is optimal. Noise: the demand, negative binomial around a season of 20 days.
"""

from __future__ import annotations

from math import cos, pi, sin

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.envs.noise import Numbers, geometric
from sb_grpo.tasks.input_driven.base import InputDrivenEnv, TensorInputDrivenEnv
from sb_grpo.types import Info

LEAD_TIME = 3  #: days
SEASON = 20  #: days
MEAN = 10.0  #: demand per day
SWING = 0.5  #: its relative amplitude over the season
PARTS = 2  #: number of geometric numbers in the demand's sum: variance m + m^2 / PARTS
LARGEST = 24.0  #: order
HOLDING = 1.0  #: cost per unit and day
LOST = 9.0  #: cost per unit of lost demand
PURCHASE = 1.0  #: cost per unit ordered
SCALE = 100.0  #: the reward is minus the cost of the day divided by this


class TensorInventory(TensorInputDrivenEnv):
    """Tensor version. Body: units on hand, outstanding orders (oldest first), yesterday's demand, the day's angle in the
    season."""

    env_id = "Inventory-v0"
    observed = spaces.Box(-1.0, 100.0, (LEAD_TIME + 4,), np.float32)
    acted = spaces.Box(-1.0, 1.0, (1,), np.float32)
    n_start = 1
    k = PARTS

    def body_start(self, u: th.Tensor) -> th.Tensor:
        return th.cat([_stock(u), th.full_like(u, MEAN).expand(-1, LEAD_TIME + 1)], 1)

    @staticmethod
    def noise(u: th.Tensor, t: th.Tensor) -> th.Tensor:
        """Demand of the day."""
        mean = MEAN * (1.0 + SWING * th.sin(2.0 * pi / SEASON * t)) / PARTS
        return geometric(u, mean.unsqueeze(1)).sum(1, keepdim=True)

    def advance(self, body: th.Tensor, actions: th.Tensor, noise: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        order = (actions.to(body.dtype).clamp(-1.0, 1.0) + 1.0) * (LARGEST / 2.0)
        left = body[:, :1] + body[:, 1:2] - noise
        cost = HOLDING * left.clamp(min=0.0) + LOST * (-left).clamp(min=0.0) + PURCHASE * order
        return th.cat([left.clamp(min=0.0), body[:, 2:-1], order, noise], 1), -cost[:, 0] / SCALE

    def look(self, body: th.Tensor, t: th.Tensor) -> th.Tensor:
        angle = (2.0 * pi / SEASON * t).unsqueeze(1)
        return th.cat([body / 20.0, angle.sin(), angle.cos()], 1)


def _stock(u: Numbers) -> Numbers:
    """Initial units on hand: 0 to 24."""
    return LARGEST * u


class Inventory(InputDrivenEnv[np.ndarray]):
    """Host version. Action: the order, -1 for 0 to 1 for 24 units. Observed / 20: units on hand, ordered, demanded; season.

    Reward: minus (holding + 9 per lost sale + 1 per unit ordered) / 100. Info: ``demand``, ``lost`` and ``order`` of the day.
    """

    tensor_version = TensorInventory

    def start(self, u: np.ndarray) -> None:
        self.on_hand = float(_stock(u[0]))
        self.under_way = [MEAN] * LEAD_TIME
        self.demand = MEAN

    def advance(self, action: np.ndarray, noise: list[float]) -> tuple[float, Info]:
        order = (min(max(float(action[0]), -1.0), 1.0) + 1.0) * (LARGEST / 2.0)
        self.demand = noise[0]
        left = self.on_hand + self.under_way.pop(0) - self.demand
        self.on_hand = max(left, 0.0)
        lost = max(-left, 0.0)
        self.under_way.append(order)
        cost = HOLDING * self.on_hand + LOST * lost + PURCHASE * order
        return -cost / SCALE, {"demand": self.demand, "lost": lost, "order": order}

    def observation(self) -> np.ndarray:
        angle = 2.0 * pi / SEASON * self.t
        units = [x / 20.0 for x in (self.on_hand, *self.under_way, self.demand)]
        return np.array([*units, sin(angle), cos(angle)], dtype=np.float32)
