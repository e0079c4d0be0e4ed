"""Answers for instances: schedules, tours and packings of trained models, of rules and of CP-SAT.

Where data is uncertain, a policy decides online, and CP-SAT plans with expected values: once, or again at every event.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy

from sb_grpo.envs.instance_env import InstanceEnv, InstanceT
from sb_grpo.tasks.instances import Cities, Items, Jobs
from sb_grpo.tasks.routing import TSP
from sb_grpo.tasks.scheduling import RULES, DynamicJobShop, Instance, JobShop
from sb_grpo.tasks.uncertain import CVRP, Knapsack
from sb_grpo.types import TensorOrDict

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, IntervalVar, IntVar, LinearExpr

Given: TypeAlias = Jobs | Cities | Items
Problem: TypeAlias = JobShop | TSP | CVRP | Knapsack
InstanceIn = TypeVar("InstanceIn", bound=TensorOrDict, contravariant=True)
#: Chooses actions ``[b, g]`` of instances, states ``[b, g, s]`` and valid actions ``[b, g, n]``.
Choose: TypeAlias = Callable[[InstanceT, th.Tensor, th.Tensor], th.Tensor]


class HasRules(Protocol[InstanceIn]):
    """A problem with dispatching rules."""

    @property
    def rules(self) -> Sequence[str]:
        """Names of the rules."""

    def priority(self, rule: str, instance: InstanceIn, state: th.Tensor) -> th.Tensor:
        """Compute priorities ``[b, g, n]``; the largest valid one goes first."""


class Predicts(Protocol):
    """A trained model that takes masks: GRPO, sb3-contrib's MaskablePPO, or a policy of one."""

    def predict(
        self, observation: np.ndarray, *, deterministic: bool, action_masks: np.ndarray
    ) -> tuple[np.ndarray, object]:
        """Choose an action for every row."""


class Operation(NamedTuple):
    """One row of a schedule."""

    job: str
    operation: int  #: number within its job, from 0
    machine: str
    start: float
    end: float


class Solution(NamedTuple):
    """Answer for one instance."""

    name: str  #: of the instance
    cost: float  #: makespan, weighted time in the system, length, or minus the value
    actions: list[int]  #: of the episode
    seconds: float  #: wall-clock time; of several instances solved together, the mean
    schedule: list[Operation]  #: of a shop; otherwise empty
    optimal: bool = False  #: the solver proved that no better plan exists


class Played(NamedTuple):
    """Episodes of one batch."""

    actions: th.Tensor  #: [T, b, g]
    times: th.Tensor  #: [T, b, g] first column of the state before each action, the time of a shop
    steps: th.Tensor  #: [b, g] length of the episodes
    cost: th.Tensor  #: [b, g]


def make_problem(instances: Sequence[Given], **kwargs: Any) -> Problem:
    """Make a tensor env with one sub-env per instance, without noise unless ``kwargs`` ask for it.

    :param instances: of one type
    :param kwargs: of the env: ``cv``, ``breakdowns``, ``waiting``, ``n_jobs`` (shops), ``spread`` (CVRP), ``cv`` (knapsack)
    :return: JobShop, DynamicJobShop (jobs with arrivals or weights), TSP, CVRP or Knapsack
    :raises ValueError: for no instances, and instances of several types or, for tours and packings, sizes
    """
    kinds = {type(instance) for instance in instances}
    if len(kinds) != 1:
        raise ValueError(
            f"{len(instances)} instances of {len(kinds)} types: give at least one, and only Jobs, Cities or Items."
        )
    n = len(instances)
    jobs = [given for given in instances if isinstance(given, Jobs)]
    if jobs:
        flow = any((i.release > 0).any() or (i.weight != 1).any() for i in jobs)
        make = DynamicJobShop if flow else JobShop
        return make(n, instances=jobs, **{"cv": 0.0, **kwargs})
    items = [given for given in instances if isinstance(given, Items)]
    if items:
        return Knapsack(n, instances=items, **{"cv": 0.0, **kwargs})
    places = [given for given in instances if isinstance(given, Cities)]
    if places[0].demand is not None:
        return CVRP(n, instances=places, **{"spread": 0.0, **kwargs})
    sizes = {len(cities.xy) for cities in places}
    if len(sizes) > 1:
        raise ValueError(f"The instances have {sorted(sizes)} cities: solve those of one size together.")
    # The policy is trained in the unit square.
    scaled = [_in_unit_square(cities.xy) for cities in places]
    return TSP(n, cities=th.as_tensor(np.stack(scaled), dtype=th.float32), **kwargs)


def _in_unit_square(xy: np.ndarray) -> np.ndarray:
    low = xy.min(axis=0)
    scaled: np.ndarray = (xy - low) / max((xy.max(axis=0) - low).max(), 1e-12)
    return scaled


def play(
    env: InstanceEnv[InstanceT],
    instance: InstanceT,
    choose: Choose[InstanceT],
    members: int = 1,
    first: th.Tensor | None = None,
) -> Played:
    """Play one episode per instance and member.

    :param env: of the instances
    :param instance: ``[b, ...]``
    :param choose: the decisions
    :param members: episodes per instance
    :param first: ``[b, g]`` first actions where they are valid; None: those of ``choose``
    """
    state = env.initial_state(instance, th.arange(members, device=env.device))
    over = th.zeros(state.shape[:2], dtype=th.bool, device=env.device)
    steps = over.long()
    actions: list[th.Tensor] = []
    times = []
    returns = th.zeros(state.shape[:2], device=env.device)
    limit = env.max_episode_steps
    while not over.all():
        if len(actions) > limit:
            raise ValueError(f"An episode of {type(env).__name__} has not ended after {limit} steps: its actions go round.")
        valid = env.valid(instance, state)
        chosen = choose(instance, state, valid)
        if first is not None and not actions:
            chosen = th.where(valid.gather(2, first.unsqueeze(2)).squeeze(2), first, chosen)
        wrong = ~valid.gather(2, chosen.unsqueeze(2)).squeeze(2) & ~over
        if wrong.any():
            row, member = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"Action {int(chosen[row, member])} of instance {row} is outside the mask: valid are "
                f"{valid[row, member].nonzero().flatten().tolist()}."
            )
        after, rewards, terminated = env.transition(instance, state, chosen)
        actions.append(chosen)
        times.append(state[..., 0])
        steps = steps + ~over
        returns = returns + rewards.masked_fill(over, 0.0)
        state = th.where(over.unsqueeze(2), state, after)
        over = over | terminated
    cost = env.cost(instance, state) if hasattr(env, "cost") else -returns
    return Played(th.stack(actions), th.stack(times), steps, cost)


def by_rule(env: HasRules[InstanceT], rule: str) -> Choose[InstanceT]:
    """Decisions of a dispatching rule; ties go to the first action.

    :param env: with ``rules``
    :param rule: name
    :raises ValueError: for an unknown rule
    """
    if rule not in env.rules and not (isinstance(env, JobShop) and rule in RULES):
        raise ValueError(f"There is no rule {rule!r} for {type(env).__name__}: there are {', '.join(env.rules)}.")

    def choose(instance: InstanceT, state: th.Tensor, valid: th.Tensor) -> th.Tensor:
        return env.priority(rule, instance, state).masked_fill(~valid, -th.inf).argmax(dim=2)

    return choose


def by_model(env: InstanceEnv[InstanceT], model: Predicts, decode: str = "greedy") -> Choose[InstanceT]:
    """Decisions of a trained model that takes masks: GRPO, MaskablePPO, or a policy.

    :param env: of the instances
    :param model: with ``predict``
    :param decode: ``"greedy"`` or ``"sample"``
    :raises ValueError: for a policy that is not made for the env's sizes
    """
    fitted = _fitted(model, env)

    def choose(instance: InstanceT, state: th.Tensor, valid: th.Tensor) -> th.Tensor:
        g = state.shape[1]
        visible = env.visible(instance)
        each = (
            {name: part.repeat_interleave(g, dim=0) for name, part in visible.items()}
            if isinstance(visible, dict)
            else visible.repeat_interleave(g, dim=0)
        )
        rows = env.observation_space.join(each, env.observe(instance, state).flatten(0, 1))
        masks = valid.flatten(0, 1).cpu().numpy()
        found, _ = fitted.predict(rows.cpu().numpy(), deterministic=decode == "greedy", action_masks=masks)
        return th.as_tensor(found, device=env.device).view(len(state), g)

    return choose


def _fitted(model: Predicts, env: InstanceEnv[InstanceT]) -> Predicts:
    """Model for the env's spaces: itself, or its policy made anew for another number of items, if the weights fit."""
    policy: object = getattr(model, "policy", model)
    assert isinstance(policy, BasePolicy)
    if policy.action_space == env.action_space and policy.observation_space.shape == env.observation_space.shape:
        return model
    try:
        arguments = {
            **policy._get_constructor_parameters(),
            "observation_space": env.observation_space,
            "action_space": env.action_space,
        }
        for key in ("features_extractor_class", "features_extractor_kwargs", "net_arch"):
            if key in arguments and hasattr(policy, "hidden"):
                del arguments[key]
        other = type(policy)(**arguments)
        other.load_state_dict(policy.state_dict())
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"The policy was made for {policy.action_space} and observations {policy.observation_space.shape}, the instances "
            f"have {env.action_space} and {env.observation_space.shape}, and its weights do not fit them ({error}). Pad the "
            "env to the policy's size (n_jobs=...), or train an ItemPolicy or SetPolicy, which fit any size."
        ) from error
    return other  # type: ignore[return-value]  # takes masks as the model does


def solve(
    model: Predicts | str,
    instances: Sequence[Given],
    decode: str = "greedy",
    samples: int = 64,
    starts: str | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> list[Solution]:
    """Solve instances with a trained model or a rule. With noise (``cv``, ``breakdowns``, ``spread``) it decides online.

    :param model: GRPO, MaskablePPO, a policy, or the name of a rule
    :param instances: of one type
    :param decode: ``"greedy"`` takes the most probable actions; ``"sample"`` the best of ``samples`` drawn ones
    :param samples: draws per instance
    :param starts: ``"all"``: one attempt per first action (POMO, Kwon et al., 2020), of which the best counts; None: one
    :param seed: of the noise: instance i meets the noise of ``seed * len(instances) + i``
    :param kwargs: of the env (:func:`make_problem`)
    :return: one solution per instance, costs in the unit of the instance
    :raises ValueError: for the best of several attempts where noise makes the comparison hindsight, and unknown options
    """
    if decode not in ("greedy", "sample") or starts not in (None, "all") or samples < 1:
        raise ValueError(
            f"decode={decode!r}, starts={starts!r}, samples={samples}: decode is 'greedy' or 'sample', starts None or 'all', "
            "samples at least 1."
        )
    begun = time.perf_counter()
    if starts == "all" and _is_tour(instances):
        kwargs = {"multi_start": True, **kwargs}
    env: Any = make_problem(instances, **kwargs)  # mypy cannot tell which instances belong to which of the problems
    if getattr(env, "uncertain", False) and (decode == "sample" or starts == "all"):
        raise ValueError(
            f"decode={decode!r} and starts={starts!r} take the best of several attempts, which needs luck that nobody knows "
            "when he decides. Use decode='greedy' and starts=None for uncertain data."
        )
    choose = by_rule(env, model) if isinstance(model, str) else by_model(env, model, decode)
    n_actions = int(env.action_space.n)
    members = max(samples if decode == "sample" else 1, n_actions if starts == "all" else 1)
    first = None
    if starts == "all" and not env.unequal_starts:
        first = (th.arange(members) % n_actions).expand(len(instances), -1).to(env.device)
    instance = env.instance(seed * len(instances) + th.arange(len(instances), device=env.device))
    with th.no_grad():
        played = play(env, instance, choose, members, first)
    return _solutions(env, instance, instances, played, time.perf_counter() - begun)


def _is_tour(instances: Sequence[Given]) -> bool:
    return all(isinstance(cities, Cities) and cities.demand is None for cities in instances)


def _solutions(
    env: Problem,
    instance: TensorOrDict,
    instances: Sequence[Given],
    played: Played,
    seconds: float,
    optimal: Sequence[bool] | None = None,
) -> list[Solution]:
    best = played.cost.argmin(dim=1)
    found = []
    for i, given in enumerate(instances):
        member = int(best[i])
        n = int(played.steps[i, member])
        actions = played.actions[:n, i, member].tolist()
        cost = float(played.cost[i, member])
        if isinstance(given, Cities):
            if given.demand is None:
                actions = [member % len(given.xy) if env.unequal_starts else 0, *actions]
            cost = length(given, actions)
        schedule = []
        if isinstance(given, Jobs):
            assert isinstance(instance, dict)
            schedule = _schedule(given, instance["duration"][i].tolist(), actions, played.times[:n, i, member].tolist())
        found.append(Solution(given.name, cost, actions, seconds / len(instances), schedule, bool(optimal and optimal[i])))
    return found


def length(cities: Cities, tour: Sequence[int]) -> float:
    """Length of a round trip, or of a vehicle's way from the depot and back.

    :param cities: the places
    :param tour: visited places in order
    """
    places = [*tour, tour[0]] if cities.demand is None else [0, *tour, 0]
    between = cities.distances()
    return float(sum(between[a, b] for a, b in itertools.pairwise(places)))


def _schedule(jobs: Jobs, duration: list[list[float]], actions: list[int], times: list[float]) -> list[Operation]:
    begun = [0] * len(jobs.n_ops)
    rows = []
    for job, start in zip(actions, times, strict=True):
        if job < len(begun):
            k = begun[job]
            machine = jobs.machine_names[jobs.machine[job, k]]
            rows.append(Operation(jobs.job_names[job], k, machine, start, start + duration[job][k]))
            begun[job] += 1
    return rows


# ------------------------------------------------------------ CP-SAT


def _cp_model() -> ModuleType:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError("CP-SAT is in OR-Tools: pip install 'sb_grpo[solve]'.") from error
    return cp_model


def _run(cp_model: ModuleType, program: CpModel, seconds: float) -> tuple[CpSolver, bool]:
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    status = solver.Solve(program)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise ValueError(
            f"CP-SAT found no solution within {seconds} s ({solver.StatusName(status)}): give it more seconds, or correct the "
            "instance."
        )
    return solver, status == cp_model.OPTIMAL


class Work(NamedTuple):
    """Rest of a shop at one moment, with whole times from then on."""

    operations: list[list[tuple[int, int]]]  #: (machine, time) of the operations that every job has left
    ready: list[int]  #: time at which every job is free
    free: list[int]  #: time at which every machine is free
    weight: list[int] | None  #: of the jobs; None: makespan


def plan_shop(work: Work, seconds: float) -> tuple[list[list[int]], bool]:
    """Plan the rest of a shop by CP-SAT, without needless slack.

    :param work: the rest
    :param seconds: limit of the search
    :return: begin of every operation, and whether the plan is optimal
    """
    cp_model = _cp_model()
    program = cp_model.CpModel()
    horizon = max([*work.ready, *work.free]) + sum(d for job in work.operations for _, d in job)
    on: dict[int, list[IntervalVar]] = {}
    begins: list[list[IntVar]] = []
    ends = []
    for job, ready in zip(work.operations, work.ready, strict=True):
        end: LinearExpr | int = ready
        begins.append([])
        for machine, duration in job:
            begin = program.NewIntVar(max(ready, work.free[machine]), horizon, "")
            program.Add(begin >= end)
            on.setdefault(machine, []).append(program.NewIntervalVar(begin, duration, begin + duration, ""))
            begins[-1].append(begin)
            end = begin + duration
        ends.append(end)
    for intervals in on.values():
        program.AddNoOverlap(intervals)
    if work.weight is None:
        makespan = program.NewIntVar(0, horizon, "")
        for end in ends:
            program.Add(makespan >= end)
        program.Minimize(makespan)
    else:
        program.Minimize(sum(w * end for w, end in zip(work.weight, ends, strict=True)))
    solver, optimal = _run(cp_model, program, seconds)
    return _without_slack(work, [[solver.Value(begin) for begin in job] for job in begins]), optimal


def _without_slack(work: Work, begins: list[list[int]]) -> list[list[int]]:
    """Begin every operation as early as the plan's order on the machines allows."""
    order = sorted((begin, j, k) for j, job in enumerate(begins) for k, begin in enumerate(job))
    ready = list(work.ready)
    free = list(work.free)
    found = [list(job) for job in begins]
    for _, j, k in order:
        machine, duration = work.operations[j][k]
        found[j][k] = max(ready[j], free[machine])
        ready[j] = free[machine] = found[j][k] + duration
    return found


class Planner:
    """Decisions of CP-SAT in a shop that knows expected durations alone. The env must allow to wait.

    :param env: with ``waiting=True``
    :param resolve: plan again at every event; else the first plan's order is kept on every machine
    :param seconds: limit of every plan
    :raises ValueError: for a plan in advance of jobs that nobody knows of
    """

    def __init__(self, env: JobShop, resolve: bool, seconds: float) -> None:
        if env.flow and not resolve and env.given is not None and bool((env.given["release"] > 0).any()):
            raise ValueError("Jobs that arrive later are unknown to a plan that is made once: use resolve=True.")
        self.env = env
        self.resolve = resolve
        self.seconds = seconds
        self.plans: dict[int, list[tuple[float, int, int]]] = {}  #: row -> (begin, job, operation) in order
        self.made_at: dict[int, float] = {}
        self.optimal: dict[int, bool] = {}

    def __call__(self, instance: Instance, state: th.Tensor, valid: th.Tensor) -> th.Tensor:
        parts = self.env.parts(state)
        actions = [
            self._act(row, instance, state[row : row + 1], parts.t[row, 0, 0].item(), valid[row, 0].numpy())
            for row in range(len(state))
        ]
        return th.tensor(actions).unsqueeze(1)

    def _act(self, row: int, instance: Instance, state: th.Tensor, t: float, valid: np.ndarray) -> int:
        n = self.env.n_jobs
        if not valid[:n].any() and not valid[n]:
            return 0
        one = {name: part[row : row + 1] for name, part in instance.items()}
        parts = self.env.parts(state)
        begun = parts.begun[0, 0].tolist()
        if all(k >= m for k, m in zip(begun, one["n_ops"][0].tolist(), strict=True)):
            return 0  # the episode is over
        if row not in self.plans or (self.resolve and self.made_at[row] != t):
            self.plans[row] = self._plan(row, one, state)
            self.made_at[row] = t
        seen: set[int] = set()
        machine_of = one["machine"][0].tolist()
        for begin, job, k in self.plans[row]:
            if k < begun[job]:
                continue
            machine = machine_of[job][k]
            if machine not in seen and k == begun[job] and valid[job] and (not self.resolve or begin <= 0):
                return job
            seen.add(machine)
        return n if valid[n] else int(np.flatnonzero(valid)[0])

    def _plan(self, row: int, instance: Instance, state: th.Tensor) -> list[tuple[float, int, int]]:
        env = self.env
        parts = env.parts(state)
        look = env.look(instance, state)
        mean = env.mean_times(instance)[0]
        scale = 1.0 if bool((mean == mean.round()).all()) and not env.cv and not env.breakdowns else 10.0
        begun = parts.begun[0, 0].tolist()
        n_ops = instance["n_ops"][0].tolist()
        machine = instance["machine"][0].tolist()
        here = (instance["release"][0] <= parts.t[0, 0]).tolist()
        jobs = [j for j in range(env.n_jobs) if begun[j] < n_ops[j] and here[j]]
        times = (mean * scale).round().clamp(min=1).long().tolist()
        rest = look.own_wait[0, 0].tolist()
        # A machine is busy until the job on it ends: the wait of any job that has begun its last operation counts as well.
        busy = [0] * env.n_machines
        t = float(parts.t[0, 0, 0])
        ready = parts.ready[0, 0].tolist()
        last = env.mean_rest(
            mean.gather(1, (parts.begun[0, 0] - 1).clamp(min=0).unsqueeze(1)).squeeze(1), t - parts.started[0, 0]
        ).tolist()
        for j in range(env.n_jobs):
            if begun[j] > 0 and ready[j] > t:
                busy[machine[j][begun[j] - 1]] = max(1, round(last[j] * scale))
        work = Work(
            [[(machine[j][k], times[j][k]) for k in range(begun[j], n_ops[j])] for j in jobs],
            [max(1, round(rest[j] * scale)) if ready[j] > t else 0 for j in jobs],
            busy,
            [max(1, round(10 * float(instance["weight"][0, j]))) for j in jobs] if env.flow else None,
        )
        begins, optimal = plan_shop(work, self.seconds)
        self.optimal.setdefault(row, optimal)
        return sorted(
            (begin, job, begun[job] + i) for job, row_ in zip(jobs, begins, strict=True) for i, begin in enumerate(row_)
        )


def cp_sat(
    instances: Sequence[Given], seconds: float = 10.0, resolve: bool = False, seed: int = 0, **kwargs: Any
) -> list[Solution]:
    """Solve instances with CP-SAT of OR-Tools (``pip install 'sb_grpo[solve]'``): exactly, if it has the time.

    With noise it plans with expected durations, and its order of the operations is kept as they come; ``resolve=True`` plans
    again at every event.

    :param instances: of one type
    :param seconds: limit of every search, on one core
    :param resolve: plan again at every event (shops)
    :param seed: of the noise, as of :func:`solve`
    :param kwargs: of the env (:func:`make_problem`)
    :return: one solution per instance
    :raises ValueError: for uncertain demands or sizes, and if nothing was found in time
    :raises ImportError: without OR-Tools
    """
    begun = time.perf_counter()
    env = make_problem(instances, **{**kwargs, **({"waiting": True} if isinstance(instances[0], Jobs) else {})})
    if isinstance(env, JobShop):
        instance = env.instance(seed * len(instances) + th.arange(len(instances)))
        planner = Planner(env, resolve, seconds)
        played = play(env, instance, planner)
        proven = [planner.optimal[row] and not env.cv and not env.breakdowns and not resolve for row in range(len(instances))]
        return _solutions(env, instance, instances, played, time.perf_counter() - begun, proven)
    if getattr(env, "uncertain", False):
        raise ValueError("CP-SAT here plans demands and sizes that are known: leave spread and cv at 0.")
    found = []
    for given in instances:
        begun = time.perf_counter()
        actions, cost, optimal = _exact(given, seconds)
        found.append(Solution(given.name, cost, actions, time.perf_counter() - begun, [], optimal))
    return found


def _exact(given: Given, seconds: float) -> tuple[list[int], float, bool]:
    assert not isinstance(given, Jobs)
    if isinstance(given, Items):
        return _exact_packing(given, seconds)
    return _exact_tour(given, seconds) if given.demand is None else _exact_routes(given, seconds)


def _arcs(program: CpModel, cities: Cities, precision: float) -> tuple[list[tuple[int, int, IntVar]], LinearExpr | int]:
    n = len(cities.xy)
    whole = np.rint(cities.distances() * precision).astype(int)
    arcs = [(i, j, program.NewBoolVar("")) for i in range(n) for j in range(n) if i != j]
    return arcs, sum(int(whole[i, j]) * used for i, j, used in arcs)  # type: ignore[misc]  # mypy knows sums of one type


def _precision(cities: Cities) -> float:
    return 1.0 if cities.rounded else 1e5 / max(float(cities.distances().max()), 1e-12)


def _exact_tour(cities: Cities, seconds: float) -> tuple[list[int], float, bool]:
    cp_model = _cp_model()
    program = cp_model.CpModel()
    arcs, cost = _arcs(program, cities, _precision(cities))
    program.AddCircuit(arcs)
    program.Minimize(cost)
    solver, optimal = _run(cp_model, program, seconds)
    following = {i: j for i, j, used in arcs if solver.Value(used)}
    tour = [0]
    while len(tour) < len(cities.xy):
        tour.append(following[tour[-1]])
    return tour, length(cities, tour), optimal


def _exact_routes(cities: Cities, seconds: float) -> tuple[list[int], float, bool]:
    assert cities.demand is not None and cities.capacity is not None
    cp_model = _cp_model()
    program = cp_model.CpModel()
    scale = 1 if (np.append(cities.demand, cities.capacity) % 1 == 0).all() else 1000
    demand = np.rint(cities.demand * scale).astype(int).tolist()
    capacity = int(cities.capacity * scale)
    arcs, cost = _arcs(program, cities, _precision(cities))
    program.AddMultipleCircuit(arcs)
    load = [program.NewIntVar(d, capacity, "") for d in demand]
    for i, j, used in arcs:
        if j:
            program.Add(load[j] >= (load[i] if i else 0) + demand[j]).OnlyEnforceIf(used)
    program.Minimize(cost)
    solver, optimal = _run(cp_model, program, seconds)
    following = {i: j for i, j, used in arcs if i and solver.Value(used)}
    way: list[int] = []
    for begin in (j for i, j, used in arcs if i == 0 and solver.Value(used)):
        way += [0] * bool(way)
        while begin:
            way.append(begin)
            begin = following[begin]
    return way, length(cities, way), optimal


def _exact_packing(items: Items, seconds: float) -> tuple[list[int], float, bool]:
    cp_model = _cp_model()
    program = cp_model.CpModel()
    packed = [program.NewBoolVar("") for _ in items.value]
    fine = 1e6 / items.capacity
    program.Add(sum(int(np.ceil(size * fine)) * p for size, p in zip(items.size, packed, strict=True)) <= 1_000_000)
    worth = 1e6 / max(float(np.max(items.value)), 1e-12)
    program.Maximize(sum(round(value * worth) * p for value, p in zip(items.value, packed, strict=True)))
    solver, optimal = _run(cp_model, program, seconds)
    chosen = [i for i, p in enumerate(packed) if solver.Value(p)]
    return chosen, -float(np.sum(items.value[chosen])), optimal
