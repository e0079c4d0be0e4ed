"""CVRP and knapsack with noise: demands show on arrival, sizes on packing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch as th

from sb_grpo.envs.instance_env import InstanceEnv
from sb_grpo.envs.random import mix_tensor, uniform
from sb_grpo.tasks.instances import Cities, Items
from sb_grpo.tasks.scheduling import lognormal

#: Loads and sizes below this are rounding errors.
TINY = 1e-5


class CVRP(InstanceEnv[dict[str, th.Tensor]]):
    """Capacitated vehicle routing with demands that show on arrival; the return is minus the distance.

    One vehicle serves its customers from a depot, action 0. A customer demands an unknown amount around the expected one; if
    the load is smaller, the vehicle gives all of it, and somebody has to come again (the stochastic VRP with detours to the
    depot, Bertsimas, 1992). ``spread=0``: known demands, and a customer is valid only where the load suffices. Generated
    instances: customers uniform in the unit square, demands 1 to 9, capacity 30 (Kool et al., 2019, section 5).

    :param num_envs: number of envs
    :param n: number of customers
    :param spread: demands are uniform within expected x (1 - spread, 1 + spread)
    :param instances: :class:`~sb_grpo.tasks.instances.Cities` with demands to choose from by the seed; None: generated ones
    :param device: torch device
    :param kwargs: of :class:`~sb_grpo.envs.instance_env.InstanceEnv`
    :raises ValueError: for numbers out of range, instances of different sizes or without demands
    """

    per_item = 10
    hidden = ("demand",)
    rules: ClassVar[tuple[str, ...]] = ("NEAREST",)

    def __init__(
        self,
        num_envs: int = 1,
        n: int = 20,
        spread: float = 0.5,
        instances: Sequence[Cities] | None = None,
        device: th.device | str = "cpu",
        **kwargs: Any,
    ) -> None:
        if not 0 <= spread <= 1 or n < 1:
            raise ValueError(f"spread={spread} must be from 0 to 1, and n={n} at least 1.")
        self.given = None
        self.unit = 1.0
        if instances is not None:
            n = len(instances[0].xy) - 1
            for cities in instances:
                if len(cities.xy) != n + 1 or cities.demand is None or cities.capacity is None:
                    raise ValueError(
                        f"Instance {cities.name!r} has {len(cities.xy)} places and demand={cities.demand}: all need the same "
                        f"number of places ({n + 1} here), demands and a capacity."
                    )
            places = np.stack([cities.xy for cities in instances])
            self.unit = float((places.max(axis=1) - places.min(axis=1)).max()) or 1.0
            demand = np.stack([np.asarray(cities.demand) / cities.capacity for cities in instances])
            self.given = (
                th.as_tensor(places, dtype=th.float32, device=device),
                th.as_tensor(demand, dtype=th.float32, device=device),
            )
        self.n = n
        self.spread = float(spread)
        super().__init__(num_envs, 6 * n, device, **kwargs)

    @property
    def n_given(self) -> int:
        """Number of given instances."""
        return 0 if self.given is None else len(self.given[0])

    @property
    def uncertain(self) -> bool:
        """Whether demands show on arrival."""
        return self.spread > 0

    def instance(self, seeds: th.Tensor) -> dict[str, th.Tensor]:
        if self.given is not None:
            places, expected = (rows[seeds % self.n_given] for rows in self.given)
        else:
            u = uniform(seeds, 3 * (self.n + 1), self.dtype).view(-1, self.n + 1, 3)
            places = u[..., :2]
            customer = th.arange(self.n + 1, device=seeds.device) > 0
            expected = (1.0 + (9.0 * u[..., 2]).floor()) / 30.0 * customer
        return self.with_noise({"places": places, "expected": expected}, seeds)

    def with_noise(self, instance: dict[str, th.Tensor], seeds: th.Tensor) -> dict[str, th.Tensor]:
        """Draw the demands, from (seed, customer)."""
        u = uniform(mix_tensor(seeds, 1), self.n + 1, self.dtype)
        return {**instance, "demand": instance["expected"] * (1.0 + self.spread * (2.0 * u - 1.0))}

    def visible(self, instance: dict[str, th.Tensor]) -> dict[str, th.Tensor]:
        return {"places": instance["places"] / self.unit, "expected": instance["expected"]}

    def initial_state(self, instance: dict[str, th.Tensor], member: th.Tensor) -> th.Tensor:  # type: ignore[override]
        # Place, load, distance; then per place: the demand that is left, and whether it is known.
        demand = instance["demand"].unsqueeze(1)
        front = demand.new_tensor([0.0, 1.0, 0.0]).expand(len(demand), 1, -1)
        return th.cat([front, demand, th.zeros_like(demand)], dim=2).expand(-1, len(member), -1)

    def _parts(self, state: th.Tensor) -> Sequence[th.Tensor]:
        parts: Sequence[th.Tensor] = th.split(state, [1, 1, 1, self.n + 1, self.n + 1], dim=2)
        return parts

    def valid(self, instance: dict[str, th.Tensor], state: th.Tensor) -> th.Tensor:
        here, load, _, left, _ = self._parts(state)
        customers = (left > TINY) & (load > TINY)
        if self.spread == 0:
            customers = customers & (left <= load + TINY)
        depot = (here > 0) | ~customers.any(dim=2, keepdim=True)
        return th.cat([depot, customers[..., 1:]], dim=2)

    def transition(  # type: ignore[override]
        self, instance: dict[str, th.Tensor], state: th.Tensor, actions: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        here, load, length, left, known = self._parts(state)
        action = actions.unsqueeze(2)
        served = th.minimum(load, left.gather(2, action))
        left = left.scatter_add(2, action, -served)
        load = th.where(action == 0, 1.0, load - served)
        terminated = (left <= TINY).all(dim=2)
        places = instance["places"]
        before, now, home = (places.gather(1, i.expand(-1, -1, 2)) for i in (here.long(), action, th.zeros_like(action)))
        way = (now - before).norm(dim=2) + terminated * (home - now).norm(dim=2)
        after = [action, load, length + way.unsqueeze(2), left, known.scatter(2, action, 1.0)]
        return th.cat(after, dim=2), -way / self.unit, terminated

    def cost(self, instance: dict[str, th.Tensor], state: th.Tensor) -> th.Tensor:
        """``[b, g]`` distances of finished tours, in the instance's unit."""
        return state[..., 2]

    def priority(self, rule: str, instance: dict[str, th.Tensor], state: th.Tensor) -> th.Tensor:
        """Priorities of the nearest neighbour: customers before the depot, the nearest first, ``[b, g, n + 1]``."""
        depot = th.arange(self.n + 1, device=state.device) == 0
        return -self._ways(instance, state) - 1e6 * depot

    def _ways(self, instance: dict[str, th.Tensor], state: th.Tensor) -> th.Tensor:
        """``[b, g, n + 1]`` distances from the vehicle."""
        places = instance["places"]
        here = places.gather(1, state[..., :1].long().expand(-1, -1, 2))
        ways: th.Tensor = (places.unsqueeze(1) - here.unsqueeze(2)).norm(dim=3)
        return ways

    def features(self, instance: dict[str, th.Tensor], state: th.Tensor) -> th.Tensor:
        """``[b, g, n + 1, 10]`` features of the places; distances are divided by ``unit``."""
        here, load, _, left, known = self._parts(state)
        places = instance["places"]
        shown = th.where(known > 0, left, instance["expected"].unsqueeze(1))
        g = state.shape[1]
        offset = (places.unsqueeze(1) - places.gather(1, here.long().expand(-1, -1, 2)).unsqueeze(2)) / self.unit
        home = (places - places[:, :1]).norm(dim=2).unsqueeze(1).expand(-1, g, -1) / self.unit
        open_ = (left > TINY).to(state.dtype)
        depot = (th.arange(self.n + 1, device=state.device) == 0).to(state.dtype).expand_as(shown)
        columns = [open_, self.valid(instance, state).to(state.dtype), shown * open_, known, depot, load.expand_as(shown),
                   offset.norm(dim=3), home, offset[..., 0], offset[..., 1]]  # fmt: skip
        return th.stack(columns, dim=3)

    def observe(self, instance: dict[str, th.Tensor], state: th.Tensor) -> th.Tensor:  # type: ignore[override]
        return self.features(instance, state).transpose(2, 3).flatten(2)


class Knapsack(InstanceEnv[dict[str, th.Tensor]]):
    """Stochastic knapsack: the size of an item shows when it is packed; the return is the value of the packed items.

    An item that does not fit ends the episode and has no value (Dean, Goemans and Vondrak, 2008). ``cv=0``: known sizes, and
    only items that fit are valid. Generated instances: values uniform in (0, 1), expected sizes in (0.02, 0.3) of the
    capacity.

    :param num_envs: number of envs
    :param n: number of items
    :param cv: coefficient of variation of the sizes, lognormal with the expected size as mean
    :param instances: :class:`~sb_grpo.tasks.instances.Items` to choose from by the seed; None: generated ones
    :param device: torch device
    :param kwargs: of :class:`~sb_grpo.envs.instance_env.InstanceEnv`
    :raises ValueError: for numbers out of range, or instances of different sizes
    """

    per_item = 6
    hidden = ("size",)
    rules: ClassVar[tuple[str, ...]] = ("DENSITY",)

    def __init__(
        self,
        num_envs: int = 1,
        n: int = 20,
        cv: float = 0.5,
        instances: Sequence[Items] | None = None,
        device: th.device | str = "cpu",
        **kwargs: Any,
    ) -> None:
        if not 0 <= cv <= 10 or n < 1:
            raise ValueError(f"cv={cv} must be from 0 to 10, and n={n} at least 1.")
        self.given = None
        if instances is not None:
            n = len(instances[0].value)
            for items in instances:
                if len(items.value) != n or len(items.size) != n or not items.capacity > 0 or (items.size <= 0).any():
                    raise ValueError(
                        f"Instance {items.name!r}: all instances need {n} values, as many sizes, and a capacity, all above 0."
                    )
            columns = [(items.value, items.size / items.capacity) for items in instances]
            self.given = th.as_tensor(np.array(columns), dtype=th.float32, device=device)
        self.n = n
        self.cv = float(cv)
        super().__init__(num_envs, n, device, **kwargs)

    @property
    def n_given(self) -> int:
        """Number of given instances."""
        return 0 if self.given is None else len(self.given)

    @property
    def uncertain(self) -> bool:
        """Whether sizes show on packing."""
        return self.cv > 0

    def instance(self, seeds: th.Tensor) -> dict[str, th.Tensor]:
        if self.given is not None:
            value, expected = self.given[seeds % self.n_given].unbind(1)
        else:
            u = uniform(seeds, 2 * self.n, self.dtype).view(-1, 2, self.n)
            value = u[:, 0]
            expected = 0.02 + 0.28 * u[:, 1]
        return self.with_noise({"value": value, "expected": expected}, seeds)

    def with_noise(self, instance: dict[str, th.Tensor], seeds: th.Tensor) -> dict[str, th.Tensor]:
        """Draw the sizes, from (seed, item)."""
        return {
            **instance,
            "size": lognormal(instance["expected"], uniform(mix_tensor(seeds, 1), self.n, self.dtype), self.cv),
        }

    def initial_state(self, instance: dict[str, th.Tensor], member: th.Tensor) -> th.Tensor:  # type: ignore[override]
        # Room, value, whether the knapsack has burst; then per item whether it has been tried.
        tried = th.zeros_like(instance["value"]).unsqueeze(1)
        front = tried.new_tensor([1.0, 0.0, 0.0]).expand(len(tried), 1, -1)
        return th.cat([front, tried], dim=2).expand(-1, len(member), -1)

    def _open(self, instance: dict[str, th.Tensor], room: th.Tensor, tried: th.Tensor) -> th.Tensor:
        left = tried == 0
        return left if self.cv else left & (instance["expected"].unsqueeze(1) <= room + TINY)

    def valid(self, instance: dict[str, th.Tensor], state: th.Tensor) -> th.Tensor:
        found = self._open(instance, state[..., :1], state[..., 3:])
        first = th.arange(self.n, device=state.device) == 0
        return found | (~found.any(dim=2, keepdim=True) & first)

    def transition(  # type: ignore[override]
        self, instance: dict[str, th.Tensor], state: th.Tensor, actions: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        room, value, _, tried = th.split(state, [1, 1, 1, self.n], dim=2)
        action = actions.unsqueeze(2)
        size = instance["size"].gather(1, actions).unsqueeze(2)
        fits = (size <= room + TINY) & (tried.gather(2, action) == 0)
        gain = instance["value"].gather(1, actions).unsqueeze(2) * fits
        room = room - size * fits
        tried = tried.scatter(2, action, 1.0)
        over = ~fits | ~self._open(instance, room, tried).any(dim=2, keepdim=True)
        after = th.cat([room, value + gain, (~fits).to(state.dtype), tried], dim=2)
        return after, gain.squeeze(2), over.squeeze(2)

    def cost(self, instance: dict[str, th.Tensor], state: th.Tensor) -> th.Tensor:
        """``[b, g]`` minus the value of the packed items."""
        return -state[..., 1]

    def priority(self, rule: str, instance: dict[str, th.Tensor], state: th.Tensor) -> th.Tensor:
        """Priorities by value per expected size, ``[b, g, n]``."""
        return (instance["value"] / instance["expected"]).unsqueeze(1).expand(-1, state.shape[1], -1)

    def features(self, instance: dict[str, th.Tensor], state: th.Tensor) -> th.Tensor:
        """``[b, g, n, 6]`` features of the items."""
        room = state[..., :1]
        value, expected = (instance[name].unsqueeze(1).expand_as(state[..., 3:]) for name in ("value", "expected"))
        columns = [1.0 - state[..., 3:], self.valid(instance, state).to(state.dtype), value, expected,
                   room.expand_as(value), (expected / room.clamp(min=0.05)).clamp(max=5.0)]  # fmt: skip
        return th.stack(columns, dim=3)

    def observe(self, instance: dict[str, th.Tensor], state: th.Tensor) -> th.Tensor:  # type: ignore[override]
        return self.features(instance, state).transpose(2, 3).flatten(2)
