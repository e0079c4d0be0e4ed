"""LoadBalancing-v0: give every arriving job to one of ten servers of different speed.

After the load balancing task of Mao et al., "Variance Reduction for Reinforcement Learning in Input-Driven Environments" (ICLR
2019, arXiv 1807.02264), and of the Park project. Noise: sizes of jobs (Pareto) and times between them (exponential).
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, log1p

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.envs.noise import exponential, pareto
from sb_grpo.tasks.input_driven.base import InputDrivenEnv, TensorInputDrivenEnv
from sb_grpo.types import Info

N_SERVERS = 10
RATES = np.linspace(0.15, 1.05, N_SERVERS).tolist()  #: work done per unit of time
#: Pareto sizes of jobs, mean 300 units of work.
SMALLEST = 100.0
SHAPE = 1.5
BETWEEN = 55.0  #: mean units of time between jobs
SCALE = 1000.0  #: the reward is minus the completion time divided by this


class TensorLoadBalancing(TensorInputDrivenEnv):
    """Tensor version. Body: work left at each server, size of the waiting job."""

    env_id = "LoadBalancing-v0"
    observed = spaces.Box(-10.0, 20.0, (2 * N_SERVERS + 1,), np.float32)
    acted = spaces.Discrete(N_SERVERS)
    n_start = 1
    k = 2

    def constants(self, tensor: Callable[[object], th.Tensor]) -> None:
        self.rates = tensor(RATES)
        self.servers = tensor(range(N_SERVERS))

    def body_start(self, u: th.Tensor) -> th.Tensor:
        return th.cat([u.new_zeros(len(u), N_SERVERS), pareto(u, SHAPE, SMALLEST)], 1)

    @staticmethod
    def noise(u: th.Tensor, t: th.Tensor) -> th.Tensor:
        """Time until the next job, and its size."""
        return th.stack([exponential(u[:, 0], BETWEEN), pareto(u[:, 1], SHAPE, SMALLEST)], 1)

    def advance(self, body: th.Tensor, actions: th.Tensor, noise: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        chosen = (actions.unsqueeze(1) == self.servers).to(body.dtype)
        work = body[:, :-1] + chosen * body[:, -1:]
        completion = (chosen * work / self.rates).sum(1)
        work = (work - self.rates * noise[:, :1]).clamp(min=0.0)
        return th.cat([work, noise[:, 1:]], 1), -completion / SCALE

    def look(self, body: th.Tensor, t: th.Tensor) -> th.Tensor:
        work = body[:, :-1]
        size = body[:, -1:]
        return th.cat([th.log1p(work / 100.0), th.log1p((work + size) / self.rates / 100.0) - 2.0, th.log(size / 100.0)], 1)


class LoadBalancing(InputDrivenEnv[int]):
    """Host version. Observed: log work per server, log completion time of the job there, log size. Reward: minus completion
    time / 1000.

    ``info["completion_time"]`` is that of the job just placed; the mean over an episode is -5 times its return.
    """

    tensor_version = TensorLoadBalancing

    def start(self, u: np.ndarray) -> None:
        self.work = [0.0] * N_SERVERS
        self.size = float(pareto(u, SHAPE, SMALLEST)[0])

    def advance(self, action: int, noise: list[float]) -> tuple[float, Info]:
        self.work[action] += self.size
        completion = self.work[action] / RATES[action]
        wait, self.size = noise
        self.work = [max(work - rate * wait, 0.0) for work, rate in zip(self.work, RATES, strict=True)]
        return -completion / SCALE, {"completion_time": completion}

    def observation(self) -> np.ndarray:
        waiting = [work / 100.0 for work in self.work]
        size = self.size / 100.0
        completion = [log1p((work + size) / rate) - 2.0 for work, rate in zip(waiting, RATES, strict=True)]
        return np.array([*map(log1p, waiting), *completion, log(size)], dtype=np.float32)
