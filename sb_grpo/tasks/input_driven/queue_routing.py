"""QueueRouting-v0: route every arriving batch of jobs to one of four lines of a two-stage queueing network.

Lines 0 and 1 feed station 0, lines 2 and 3 station 1. Batches have three classes: one needs equal work everywhere, the others
twice the work on the lines before one of the stations. Servers with random service and routing on arrival are textbook models
(Kleinrock, "Queueing Systems", 1975). Noise: sizes and classes of batches, and the work that each server does in a step.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log1p

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.envs.noise import exponential, pareto
from sb_grpo.tasks.input_driven.base import InputDrivenEnv, TensorInputDrivenEnv
from sb_grpo.types import Info

LINES = (6.0, 3.0, 4.0, 2.0)  #: mean work of a line per step; exponential
STATIONS = (9.0, 6.0)  #: the same for the stations behind lines 0 and 1, 2 and 3
WORK = ((1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 2.0, 2.0), (2.0, 2.0, 1.0, 1.0))  #: work of a job by class and line
#: Pareto sizes of batches, mean 8.1 jobs.
SMALLEST = 4.5
SHAPE = 2.25
SCALE = 50.0  #: the reward is minus the work in the system divided by this


class TensorQueueRouting(TensorInputDrivenEnv):
    """Tensor version. Body: work waiting at the four lines and the two stations, size and class of the waiting batch."""

    env_id = "QueueRouting-v0"
    observed = spaces.Box(-5.0, 20.0, (14,), np.float32)
    acted = spaces.Discrete(4)
    n_start = 2
    k = 8

    def constants(self, tensor: Callable[[object], th.Tensor]) -> None:
        self.numbers = tensor(range(4))
        self.work = tensor(WORK)
        self.lines = tensor(LINES)
        self.stations = tensor(STATIONS)

    def body_start(self, u: th.Tensor) -> th.Tensor:
        return th.cat([u.new_zeros(len(u), 6), _batch(u)], 1)

    @staticmethod
    def noise(u: th.Tensor, t: th.Tensor) -> th.Tensor:
        """Work that the six servers can do in this step, relative to their mean, and the next batch."""
        return th.cat([exponential(u[:, :6]), _batch(u[:, 6:])], 1)

    def advance(self, body: th.Tensor, actions: th.Tensor, noise: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        line = body[:, :4]
        station = body[:, 4:6]
        size = body[:, 6:7]
        kind = body[:, 7].long()
        line = line + (actions.unsqueeze(1) == self.numbers) * size * self.work[kind]
        served = th.minimum(line, self.lines * noise[:, :4])
        line = line - served
        station = station + served.view(-1, 2, 2).sum(2)
        station = (station - self.stations * noise[:, 4:6]).clamp(min=0.0)
        return th.cat([line, station, noise[:, 6:]], 1), -(line.sum(1) + station.sum(1)) / SCALE

    def look(self, body: th.Tensor, t: th.Tensor) -> th.Tensor:
        waiting = body[:, :6]
        size = body[:, 6:7]
        kind = body[:, 7].long()
        work = size * self.work[kind]
        behind = (body[:, 4:6] / self.stations).repeat_interleave(2, 1)
        delay = (body[:, :4] + work) / self.lines + behind
        kinds = (body[:, 7:] == self.numbers[:3]).to(body.dtype)
        return th.cat([th.log1p(waiting / 10.0), th.log1p(delay) - 1.0, th.log1p(size / 10.0), kinds], 1)


def _batch(u: th.Tensor) -> th.Tensor:
    """Size and class from ``[n, 2]``."""
    return th.stack([pareto(u[:, 0], SHAPE, SMALLEST), th.floor(3.0 * u[:, 1])], 1)


class QueueRouting(InputDrivenEnv[int]):
    """Host version. Observed: log work at the six servers, log expected delay of each line, log size of the batch, its class.

    Reward: minus the work in the system / 50, which is ``info["in_system"]``.
    """

    tensor_version = TensorQueueRouting

    def start(self, u: np.ndarray) -> None:
        self.line = [0.0] * 4
        self.station = [0.0] * 2
        size, kind = _batch(th.from_numpy(u).unsqueeze(0))[0].tolist()
        self.size = size
        self.kind = int(kind)

    def advance(self, action: int, noise: list[float]) -> tuple[float, Info]:
        line = self.line
        station = self.station
        line[action] += self.size * WORK[self.kind][action]
        for i, mean in enumerate(LINES):
            served = min(line[i], mean * noise[i])
            line[i] -= served
            station[i // 2] += served
        for j, mean in enumerate(STATIONS):
            station[j] = max(station[j] - mean * noise[4 + j], 0.0)
        self.size = noise[6]
        self.kind = int(noise[7])
        in_system = sum(line) + sum(station)
        return -in_system / SCALE, {"in_system": in_system}

    def observation(self) -> np.ndarray:
        line = self.line
        station = self.station
        work = WORK[self.kind]
        delay = [
            log1p((line[i] + self.size * work[i]) / LINES[i] + station[i // 2] / STATIONS[i // 2]) - 1.0 for i in range(4)
        ]
        kinds = [float(self.kind == c) for c in range(3)]
        waiting = [log1p(x / 10.0) for x in line + station]
        return np.array([*waiting, *delay, log1p(self.size / 10.0), *kinds], dtype=np.float32)
