"""Routing problems: TSP, the shortest round trip through cities in the unit square."""

from __future__ import annotations

from typing import Any

import torch as th

from sb_grpo.envs.instance_env import InstanceEnv
from sb_grpo.envs.random import uniform


class TSP(InstanceEnv[th.Tensor]):
    """Travelling salesman: visit every city once and return; the return of an episode is minus the length of the tour.

    The instance is ``[b, n, 2]`` cities, uniform in the unit square (Kool et al., 2019, arXiv 1803.08475, section 5). An
    episode begins in city 0 and takes n - 1 steps; an action is the next city. State: first city, current city, and which
    were visited.

    :param num_envs: number of envs
    :param n: number of cities, at least 3
    :param multi_start: member k of a group begins in city k modulo n (POMO, Kwon et al., 2020, arXiv 2010.16011)
    :param cities: ``[m, n, 2]`` instances to choose from by the seed; None: uniform ones
    :param device: torch device
    :raises ValueError: for fewer than 3 cities, or cities of another shape
    """

    #: Rules of :meth:`priority`.
    rules = ("NEAREST",)
    pointers = 2
    per_item = 1

    def __init__(
        self,
        num_envs: int,
        n: int = 20,
        multi_start: bool = False,
        cities: th.Tensor | None = None,
        device: th.device | str = "cpu",
        **kwargs: Any,
    ) -> None:
        if cities is not None:
            if cities.dim() != 3 or cities.shape[2] != 2:
                raise ValueError(f"cities has the shape {tuple(cities.shape)} and must be [instances, cities, 2].")
            n = cities.shape[1]
        if n < 3:
            raise ValueError(f"n={n} cities are too few for a tour: use at least 3.")
        self.n = n
        self.cities = None if cities is None else cities.to(device, th.float32)
        self.unequal_starts = multi_start
        self._seen_dtype = th.uint8 if n <= 255 else th.int16
        super().__init__(num_envs, n - 1, device, **kwargs)

    def instance(self, seeds: th.Tensor) -> th.Tensor:
        if self.cities is not None:
            return self.cities[seeds % len(self.cities)]
        return uniform(seeds, 2 * self.n, self.dtype).view(-1, self.n, 2)

    def initial_state(self, instance: th.Tensor, member: th.Tensor) -> th.Tensor:  # type: ignore[override]
        city = member % self.n if self.unequal_starts else th.zeros_like(member)
        visited = city.unsqueeze(1) == th.arange(self.n, device=city.device)
        state = th.cat([city.unsqueeze(1), city.unsqueeze(1), visited], dim=1)
        return state.expand(len(instance), -1, -1)

    def transition(  # type: ignore[override]
        self, instance: th.Tensor, state: th.Tensor, actions: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        action = actions.unsqueeze(2)
        first = state[..., :1]
        visited = state[..., 2:].scatter(2, action, 1)
        here, there, home = (instance.gather(1, i.expand(-1, -1, 2)) for i in (state[..., 1:2], action, first))
        terminated = visited.all(dim=2)
        length = (there - here).norm(dim=2) + terminated * (home - there).norm(dim=2)
        return th.cat([first, action, visited], dim=2), -length, terminated

    def valid(self, instance: th.Tensor, state: th.Tensor) -> th.Tensor:
        return state[..., 2:] == 0

    def priority(self, rule: str, instance: th.Tensor, state: th.Tensor) -> th.Tensor:
        """Priorities of the nearest neighbour: the nearest city first, ``[b, g, n]``."""
        return -th.cdist(instance.gather(1, state[..., 1:2].long().expand(-1, -1, 2)), instance)

    def observe(self, instance: th.Tensor, state: th.Tensor) -> th.Tensor:  # type: ignore[override]
        return state.to(self._seen_dtype)


def nearest_neighbour(cities: th.Tensor) -> th.Tensor:
    """Length of the tours that always go to the nearest city that is left, from city 0.

    :param cities: ``[b, n, 2]``
    :return: ``[b]``
    """
    distances = th.cdist(cities, cities)
    b, n, _ = cities.shape
    rows = th.arange(b, device=cities.device)
    here = th.zeros(b, dtype=th.int64, device=cities.device)
    left = th.ones(b, n, dtype=th.bool, device=cities.device)
    left[:, 0] = False
    length = cities.new_zeros(b)
    for _ in range(n - 1):
        there = distances[rows, here].masked_fill(~left, th.inf).argmin(dim=1)
        length = length + distances[rows, here, there]
        left[rows, there] = False
        here = there
    return length + distances[rows, here, 0]
