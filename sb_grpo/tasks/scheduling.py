"""Job shops with noise: uncertain durations, breakdowns and jobs that arrive; dispatching rules.

Jobs visit machines in a fixed order, and a machine works on one operation at a time (Pinedo, "Scheduling", chapter 7). The env
simulates events: it asks for a decision when a machine and a job that needs it are both free, and time then runs to the next
such moment. So schedules have no avoidable delay, unless ``waiting=True`` allows it. Noise is a pure function of (seed, job,
operation): the members of a group meet the same durations, whatever they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th

from sb_grpo.envs.instance_env import InstanceEnv
from sb_grpo.envs.noise import exponential, normal
from sb_grpo.envs.random import mix_tensor, uniform
from sb_grpo.tasks.instances import Jobs

#: Separates the noise of a seed from its instance.
NOISE = 1
#: Mean of generated durations, whole numbers from 1 to 99 as in Taillard (1993).
MEAN = 50.0
#: Columns of :meth:`JobShop.observe` per action.
N_FEATURES = 14
#: Rules whose priorities are further columns where the weighted time in the system counts.
RATIOS = ("WSPT", "WSRPT")

Instance = dict[str, th.Tensor]


class Look(NamedTuple):
    """Visible facts of jobs, ``[b, g, n_jobs]`` each; 0 for jobs that have not arrived or that have begun all operations."""

    here: th.Tensor  #: bool: arrived, and operations are left to begin
    next_time: th.Tensor  #: expected duration of the next operation
    work: th.Tensor  #: expected duration of all operations that are left to begin
    total_work: th.Tensor  #: expected duration of all operations of the job
    n_left: th.Tensor  #: operations that are left to begin
    waited: th.Tensor  #: time since the job arrived or ended its last operation
    age: th.Tensor  #: time since the job arrived
    weight: th.Tensor
    own_wait: th.Tensor  #: expected time until the job ends its running operation
    machine_wait: th.Tensor  #: expected time until the machine of the next operation is free
    machine_work: th.Tensor  #: expected work that jobs which are here have left on this machine
    later_time: th.Tensor  #: expected duration of the operation after the next
    later_wait: th.Tensor  #: expected time until its machine is free


class Parts(NamedTuple):
    """Columns of a state."""

    t: th.Tensor  #: [b, g, 1] time
    begun: th.Tensor  #: [b, g, n_jobs] int64 operations that have begun
    ready: th.Tensor  #: [b, g, n_jobs] end of the last one that has begun; the arrival before the first
    started: th.Tensor  #: [b, g, n_jobs] begin of the last one that has begun
    free: th.Tensor  #: [b, g, n_machines] end of the machine's last operation


class JobShop(InstanceEnv[Instance]):
    """Job shop with uncertain durations; the return is minus the makespan divided by ``unit``.

    An action is the job whose next operation begins now; with ``waiting`` the last action waits for the next event. Generated
    instances are Taillard's: every job visits every machine once in random order, durations from 1 to 99. The policy sees the
    jobs' features, none of the durations to come.

    :param num_envs: number of envs
    :param n_jobs: jobs of an instance
    :param n_machines: machines of an instance, and operations of every job
    :param cv: coefficient of variation of durations, lognormal with the expected duration as mean; 0: known durations
    :param breakdowns: probability that the machine breaks down during an operation, which then lasts longer
    :param repair: mean of the exponential time of a repair
    :param waiting: allow to wait for the next event although a job could begin
    :param instances: to choose from by the seed; None: generated ones. Smaller ones are padded
    :param device: torch device
    :param dtype: floating point type of times
    :raises ValueError: for numbers out of range, or instances with more jobs or operations than ``n_jobs`` and ``n_machines``
        where these are given too
    """

    per_item = N_FEATURES
    hidden: ClassVar[Sequence[str]] = ("machine", "expected", "duration", "n_ops", "release", "weight")
    #: Whether the cost is the weighted time of jobs in the system, not the makespan.
    flow: ClassVar[bool] = False
    rules: ClassVar[tuple[str, ...]] = ("MWKR", "MOR", "SPT", "FIFO")

    def __init__(
        self,
        num_envs: int = 1,
        n_jobs: int | None = None,
        n_machines: int | None = None,
        cv: float = 0.5,
        breakdowns: float = 0.0,
        repair: float = MEAN,
        waiting: bool = False,
        instances: Sequence[Jobs] | None = None,
        device: th.device | str = "cpu",
        dtype: th.dtype = th.float32,
    ) -> None:
        for name, value, most in (("cv", cv, 10.0), ("breakdowns", breakdowns, 1.0), ("repair", repair, np.inf)):
            if not 0 <= value <= most or not np.isfinite(value):
                raise ValueError(f"{name}={value} must be a number from 0 to {most:g}.")
        self.cv = float(cv)
        self.breakdowns = float(breakdowns)
        self.repair = float(repair)
        self.waiting = waiting
        self.given: Instance | None = None
        self.unit = MEAN
        if instances is None:
            self._generated_size(n_jobs, n_machines)
        else:
            self._take(instances, n_jobs, n_machines, device, dtype)
        events = self.n_jobs * self.n_ops
        super().__init__(num_envs, 2 * events + self.n_jobs if waiting else events, device, dtype)

    def _generated_size(self, n_jobs: int | None, n_machines: int | None) -> None:
        self.n_jobs = 6 if n_jobs is None else n_jobs
        self.n_machines = 6 if n_machines is None else n_machines
        self.n_ops = self.n_machines
        if self.n_jobs < 1 or self.n_machines < 1:
            raise ValueError(f"n_jobs={n_jobs} and n_machines={n_machines} must be at least 1.")

    def _take(
        self, instances: Sequence[Jobs], n_jobs: int | None, n_machines: int | None, device: th.device | str, dtype: th.dtype
    ) -> None:
        """Pad instances to one size, and put them on the device."""
        if not instances:
            raise ValueError("instances is empty: give at least one, or None for generated ones.")
        sizes = [(len(i.n_ops), i.machine.shape[1], len(i.machine_names)) for i in instances]
        self.n_jobs = n_jobs or max(size[0] for size in sizes)
        self.n_machines = n_machines or max(size[2] for size in sizes)
        self.n_ops = max(self.n_machines if n_machines else 0, max(size[1] for size in sizes))
        for jobs, (n, _, m) in zip(instances, sizes, strict=True):
            if n > self.n_jobs or m > self.n_machines:
                raise ValueError(
                    f"Instance {jobs.name!r} has {n} jobs and {m} machines, more than n_jobs={self.n_jobs} and "
                    f"n_machines={self.n_machines}, which the env is padded for: raise these, or leave the instance out."
                )
        padded: dict[str, list[np.ndarray]] = {name: [] for name in ("machine", "expected", "n_ops", "release", "weight")}
        for jobs in instances:
            more = self.n_jobs - len(jobs.n_ops)
            room = ((0, more), (0, self.n_ops - jobs.machine.shape[1]))
            padded["machine"].append(np.pad(jobs.machine, room))
            padded["expected"].append(np.pad(jobs.duration, room))
            for name in ("n_ops", "release", "weight"):
                padded[name].append(np.pad(getattr(jobs, name), (0, more)))
        types = {"machine": th.int64, "n_ops": th.int64}
        self.given = {
            name: th.as_tensor(np.stack(rows), dtype=types.get(name, dtype), device=device) for name, rows in padded.items()
        }
        self.unit = float(self.given["expected"].sum() / self.given["n_ops"].sum())

    # ------------------------------------------------------------ instances

    @property
    def uncertain(self) -> bool:
        """Whether instances have noise that nobody knows when he decides."""
        return self.cv > 0 or self.breakdowns > 0 or self.flow

    @property
    def n_given(self) -> int:
        """Number of given instances."""
        return 0 if self.given is None else len(self.given["n_ops"])

    def instance(self, seeds: th.Tensor) -> Instance:
        if self.given is not None:
            found = {name: rows[seeds % len(rows)] for name, rows in self.given.items()}
        else:
            found = self.generate(seeds)
        total = (found["expected"].sum(dim=2) / (self.unit * self.n_ops)).to(self.dtype)
        found["total"] = th.cat([total, th.zeros_like(total[:, :1])], dim=1) if self.waiting else total
        return self.with_noise(found, seeds)

    def generate(self, seeds: th.Tensor) -> Instance:
        """Generate instances without their noise.

        :param seeds: ``[b]`` int64
        """
        shape = (2, -1, self.n_jobs, self.n_ops)
        u = uniform(seeds, 2 * self.n_jobs * self.n_ops, self.dtype).view(len(seeds), 2, *shape[2:]).transpose(0, 1)
        ones = u.new_ones(len(seeds), self.n_jobs)
        return {
            "machine": u[0].argsort(dim=2),
            "expected": 1.0 + (99.0 * u[1]).floor(),
            "n_ops": self.n_ops * ones.long(),
            "release": 0.0 * ones,
            "weight": ones,
        }

    def with_noise(self, instance: Instance, seeds: th.Tensor) -> Instance:
        """Draw the durations, from (seed, job, operation).

        :param instance: ``[b, ...]``
        :param seeds: ``[b]`` int64
        """
        expected = instance["expected"]
        job, operation = (th.arange(n, device=seeds.device) for n in expected.shape[1:])
        words = mix_tensor(seeds.view(-1, 1, 1), NOISE, job.unsqueeze(1), operation)
        u = uniform(words.flatten(), 3, self.dtype).view(*expected.shape, 3)
        duration = lognormal(expected, u[..., 0], self.cv)
        broken = (u[..., 1] < self.breakdowns) & (expected > 0)
        return {**instance, "duration": duration + broken * exponential(u[..., 2], self.repair)}

    def mean_times(self, instance: Instance) -> th.Tensor:
        """``[b, n_jobs, n_ops]`` expected durations with the expected repairs."""
        expected = instance["expected"]
        return expected + (expected > 0) * (self.breakdowns * self.repair)

    # ------------------------------------------------------------ events

    def parts(self, state: th.Tensor) -> Parts:
        """Name the columns of a state ``[b, g, s]``."""
        n = self.n_jobs
        t, begun, ready, started, free = th.split(state, [1, n, n, n, self.n_machines], dim=2)
        return Parts(t, begun.long(), ready, started, free)

    def initial_state(self, instance: Instance, member: th.Tensor) -> th.Tensor:  # type: ignore[override]
        release = instance["release"].unsqueeze(1)
        none = th.zeros_like(release)
        machines = release.new_zeros(len(release), 1, self.n_machines)
        present = th.where(instance["n_ops"] > 0, instance["release"], th.inf).amin(dim=1).view(-1, 1, 1)
        return th.cat([present, none, release, none, machines], dim=2).expand(-1, len(member), -1)

    def valid(self, instance: Instance, state: th.Tensor) -> th.Tensor:
        parts = self.parts(state)
        startable = self._earliest(instance, parts) <= parts.t
        if self.waiting:
            startable = th.cat([startable, (parts.free > parts.t).any(dim=2, keepdim=True)], dim=2)
        over = ~startable.any(dim=2, keepdim=True)  # the episode has ended; some action must be valid
        first = th.arange(startable.shape[2], device=state.device) == 0
        return startable | (over & first)

    def _earliest(self, instance: Instance, parts: Parts) -> th.Tensor:
        """``[b, g, n_jobs]`` earliest begin of the next operations; inf for jobs that have begun all."""
        free = parts.free.gather(2, _of_operation(instance["machine"], parts.begun))
        return th.maximum(parts.ready, free).masked_fill(parts.begun >= instance["n_ops"].unsqueeze(1), th.inf)

    def transition(  # type: ignore[override]
        self, instance: Instance, state: th.Tensor, actions: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Begin an operation, and run the time to the next decision. An invalid action changes nothing."""
        before = self.parts(state)
        action = actions.unsqueeze(2)
        jobs = th.arange(self.n_jobs, device=state.device)
        startable = self._earliest(instance, before) <= before.t
        chosen = (action == jobs) & startable
        machine = _of_operation(instance["machine"], before.begun)
        end = before.t + _of_operation(instance["duration"], before.begun)
        ready = th.where(chosen, end, before.ready)
        started = th.where(chosen, before.t, before.started)
        occupied = (machine.unsqueeze(3) == th.arange(self.n_machines, device=state.device)) & chosen.unsqueeze(3)
        free = th.where(occupied.any(dim=2), (occupied * end.unsqueeze(3)).sum(dim=2), before.free)
        parts = Parts(before.t, before.begun + chosen, ready, started, free)
        earliest = self._earliest(instance, parts).amin(dim=2, keepdim=True)
        terminated = earliest.isinf()
        t = th.maximum(before.t, th.where(terminated, ready.amax(dim=2, keepdim=True), earliest))
        if self.waiting:
            event = th.where(ready > before.t, ready, th.inf).amin(dim=2, keepdim=True)
            waits = (action == self.n_jobs) & (before.free > before.t).any(dim=2, keepdim=True)
            t = th.where(waits & ~terminated, th.maximum(t, event), t)
        cost = self._cost_between(instance, parts, before.t, t)
        after = th.cat([t, parts.begun, ready, started, free], dim=2)
        return after, -cost / self.unit, terminated.squeeze(2)

    def _cost_between(self, instance: Instance, parts: Parts, t: th.Tensor, later: th.Tensor) -> th.Tensor:
        """``[b, g]`` cost of the time from ``t`` to ``later``."""
        if not self.flow:
            return (later - t).squeeze(2)
        complete = parts.begun >= instance["n_ops"].unsqueeze(1)
        until = th.where(complete, th.minimum(parts.ready, later), later)
        since = th.maximum(instance["release"].unsqueeze(1), t)
        return (instance["weight"].unsqueeze(1) * (until - since).clamp(min=0.0)).sum(dim=2)

    def cost(self, instance: Instance, state: th.Tensor) -> th.Tensor:
        """Compute makespan, or weighted time in the system, of finished schedules.

        :param instance: ``[b, ...]``
        :param state: ``[b, g, s]`` after the last step
        :return: ``[b, g]`` in the instance's unit of time
        """
        ready = self.parts(state).ready
        if not self.flow:
            return ready.amax(dim=2)
        within = instance["weight"].unsqueeze(1) * (ready - instance["release"].unsqueeze(1))
        return (within * (instance["n_ops"] > 0).unsqueeze(1)).sum(dim=2)

    def priority(self, rule: str, instance: Instance, state: th.Tensor) -> th.Tensor:
        """Compute the priorities of actions by a dispatching rule of :data:`RULES`; rules never wait.

        :return: ``[b, g, n_actions]``
        """
        priority = RULES[rule](self.look(instance, state))
        return th.cat([priority, th.full_like(priority[..., :1], -th.inf)], dim=2) if self.waiting else priority

    # ------------------------------------------------------------ observations

    def look(self, instance: Instance, state: th.Tensor) -> Look:
        """Collect the facts that a dispatcher knows at this moment.

        :param instance: ``[b, ...]``
        :param state: ``[b, g, s]``
        """
        parts = self.parts(state)
        mean = self.mean_times(instance)
        n_ops = instance["n_ops"].unsqueeze(1)
        arrived = instance["release"].unsqueeze(1) <= parts.t
        here = arrived & (parts.begun < n_ops)
        left = th.arange(self.n_ops, device=state.device) >= parts.begun.unsqueeze(3)  # [b, g, jobs, operations]
        left = left & here.unsqueeze(3)
        work_of = mean.unsqueeze(1) * left
        # Running operations: the mean of the rest, given the time that has passed.
        last = (parts.begun - 1).clamp(min=0)
        running = (parts.begun > 0) & (parts.ready > parts.t)
        rest = self.mean_rest(_of_operation(mean, last), parts.t - parts.started) * running
        machines = th.arange(self.n_machines, device=state.device)
        on = (_of_operation(instance["machine"], last).unsqueeze(3) == machines) & running.unsqueeze(3)
        busy = (on * rest.unsqueeze(3)).amax(dim=2)  # [b, g, machines]
        asks = (instance["machine"].unsqueeze(3) == machines).to(mean.dtype)  # [b, jobs, operations, machines]
        queue = th.einsum("bgjo,bjom->bgm", work_of, asks)
        machine = _of_operation(instance["machine"], parts.begun)
        later = parts.begun + 1
        has_later = here & (later < n_ops)
        later_machine = _of_operation(instance["machine"], later)
        return Look(
            here,
            _of_operation(mean, parts.begun) * here,
            work_of.sum(dim=3),
            mean.sum(dim=2).unsqueeze(1) * here,
            (n_ops - parts.begun) * here,
            (parts.t - parts.ready).clamp(min=0.0) * here,
            (parts.t - instance["release"].unsqueeze(1)) * here,
            instance["weight"].unsqueeze(1) * here,
            rest * here,
            busy.gather(2, machine) * here,
            queue.gather(2, machine) * here,
            _of_operation(mean, later) * has_later,
            busy.gather(2, later_machine) * has_later,
        )

    def mean_rest(self, mean: th.Tensor, passed: th.Tensor) -> th.Tensor:
        """Mean rest of lognormal durations that have lasted for some time: E[X - a | X > a]."""
        if self.cv == 0:
            return (mean - passed).clamp(min=0.0)
        sigma = log(1.0 + self.cv**2) ** 0.5
        z = (passed.clamp(min=1e-6) / mean.clamp(min=1e-6)).log() / sigma + 0.5 * sigma
        beyond = th.special.ndtr(-z).clamp(min=1e-6)
        rest: th.Tensor = mean * th.special.ndtr(sigma - z) / beyond - passed
        return rest.clamp(min=0.0)

    def features(self, instance: Instance, state: th.Tensor) -> th.Tensor:
        """``[b, g, n_actions, per_item]`` features of the actions; times are divided by ``unit``."""
        valid = self.valid(instance, state)
        columns = self._columns(self.look(instance, state), valid[..., : self.n_jobs])
        features = th.stack([column.to(state.dtype) for column in columns], dim=3)
        features = th.cat([features, th.zeros_like(features[..., :1])], dim=3)
        if not self.waiting:
            return features
        wait = th.zeros_like(features[:, :, :1])
        wait[..., 1] = valid[..., -1:]
        wait[..., -1] = 1.0
        return th.cat([features, wait], dim=2)

    def _columns(self, look: Look, valid: th.Tensor) -> list[th.Tensor]:
        """Compute the jobs' features, ``[b, g, n_jobs]`` each, without the one that marks waiting."""
        whole = self.unit * self.n_ops
        behind = (look.work.amax(dim=2, keepdim=True) - look.work) * look.here
        return [
            look.here,
            valid,
            look.next_time / self.unit,
            look.work / whole,
            look.n_left / self.n_ops,
            look.own_wait / self.unit,
            look.machine_wait / self.unit,
            look.waited / self.unit,
            look.weight,
            look.machine_work / whole,
            look.later_time / self.unit,
            look.later_wait / self.unit,
            behind / whole,
        ]

    def observe(self, instance: Instance, state: th.Tensor) -> th.Tensor:  # type: ignore[override]
        return self.features(instance, state).transpose(2, 3).flatten(2)


class DynamicJobShop(JobShop):
    """Job shop with jobs that arrive; the return is minus the weighted time of jobs in the system, divided by ``unit``.

    Jobs that have not arrived are invisible: number, routes, weights and arrival times. Generated instances: some jobs are
    there at time 0, the others come with exponential gaps; weights are 1, 2 or 4 with probability 0.2, 0.6 and 0.2.

    :param n_jobs: jobs of an episode, 10
    :param n_machines: machines, 4
    :param n_first: jobs that are there at the beginning of generated instances
    :param load: share of the time that machines work, where the gaps are concerned
    :param kwargs: of :class:`JobShop`
    :raises ValueError: as :class:`JobShop`, and for a load that is not positive
    """

    per_item = N_FEATURES + len(RATIOS)
    flow = True
    hidden = (*JobShop.hidden, "total")
    rules = ("WSPT", "WSRPT", "ATC", "SPT", "FIFO")

    def __init__(
        self,
        num_envs: int = 1,
        n_jobs: int | None = None,
        n_machines: int | None = None,
        cv: float = 0.5,
        n_first: int = 3,
        load: float = 0.9,
        **kwargs: Any,
    ) -> None:
        if not 0 < load < np.inf or n_first < 1:
            raise ValueError(f"load={load} must be a positive number, and n_first={n_first} at least 1.")
        self.n_first = n_first
        self.load = load
        super().__init__(num_envs, n_jobs, n_machines, cv, **kwargs)

    def _generated_size(self, n_jobs: int | None, n_machines: int | None) -> None:
        super()._generated_size(10 if n_jobs is None else n_jobs, 4 if n_machines is None else n_machines)

    def _columns(self, look: Look, valid: th.Tensor) -> list[th.Tensor]:
        # Logarithms, because a short time makes a ratio much larger than the other columns.
        ratios = [(self.unit * RULES[rule](look)).clamp(min=1e-3).log() * look.here for rule in RATIOS]
        return [*super()._columns(look, valid), *ratios]

    def generate(self, seeds: th.Tensor) -> Instance:
        found = super().generate(seeds)
        u = uniform(mix_tensor(seeds, 2), self.n_jobs, self.dtype)
        return {**found, "weight": 1.0 + (u >= 0.2) + 2.0 * (u >= 0.8)}

    def with_noise(self, instance: Instance, seeds: th.Tensor) -> Instance:
        found = super().with_noise(instance, seeds)
        if self.given is not None:
            return found
        gaps = exponential(uniform(mix_tensor(seeds, 3), self.n_jobs, self.dtype), MEAN / self.load)
        later = th.arange(self.n_jobs, device=seeds.device) >= self.n_first
        return {**found, "release": (gaps * later).cumsum(dim=1)}


def lognormal(mean: th.Tensor, u: th.Tensor, cv: float) -> th.Tensor:
    """Lognormal numbers from uniform ones in [0, 1).

    :param mean: of the numbers
    :param u: of the same shape
    :param cv: coefficient of variation, standard deviation / mean; 0: the mean itself
    """
    if cv == 0:
        return mean
    variance = log(1.0 + cv**2)
    return mean * (normal(u, variance**0.5) - 0.5 * variance).exp()


def _of_operation(values: th.Tensor, index: th.Tensor) -> th.Tensor:
    """Values of one operation of every job; the last one where the index is beyond it.

    :param values: ``[b, n_jobs, n_ops]``, or ``[b, g, n_jobs, n_ops]`` where members differ
    :param index: ``[b, g, n_jobs]`` int64
    :return: ``[b, g, n_jobs]``
    """
    spread = values if values.dim() == 4 else values.unsqueeze(1).expand(-1, index.shape[1], -1, -1)
    return spread.gather(3, index.clamp(max=values.shape[-1] - 1).unsqueeze(3)).squeeze(3)


# ------------------------------------------------------------ dispatching rules

#: ATC's look-ahead parameter (Vepsalainen and Morton, 1987), and the due date: arrival plus this times the job's work.
LOOK_AHEAD = 2.0
ALLOWANCE = 1.5


def _atc(look: Look) -> th.Tensor:
    """Apparent tardiness cost: weight / time * exp(-slack / (2 x mean time)), with due dates of 1.5 times the work."""
    n_here = look.here.sum(dim=2, keepdim=True).clamp(min=1)
    mean = look.next_time.sum(dim=2, keepdim=True) / n_here
    slack = (ALLOWANCE * look.total_work - look.age - look.work).clamp(min=0.0)
    return look.weight / look.next_time.clamp(min=1e-6) * (-slack / (LOOK_AHEAD * mean).clamp(min=1e-6)).exp()


#: Dispatching rules by name: from a :class:`Look` to priorities ``[b, g, n_jobs]``, the largest first. The env has them choose
#: among the jobs that can begin now, so that no delay is avoidable.
RULES: dict[str, Callable[[Look], th.Tensor]] = {
    "MWKR": lambda look: look.work,  # most work remaining
    "MOR": lambda look: look.n_left.to(look.work.dtype),  # most operations remaining
    "SPT": lambda look: -look.next_time,  # shortest processing time
    "FIFO": lambda look: look.waited,  # first in, first out
    "WSPT": lambda look: look.weight / look.next_time.clamp(min=1e-6),  # weighted shortest processing time
    "WSRPT": lambda look: look.weight / look.work.clamp(min=1e-6),  # the same with the work that remains
    "ATC": _atc,
}
