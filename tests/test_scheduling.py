"""Scheduling, routing and packing: files, event simulation, luck, rules, host versions, solvers, the command."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.envs import make_tensor_env
from sb_grpo.tasks.host_problem import ByInstance
from sb_grpo.tasks.instances import Cities, Items, Jobs, make_jobs, public, read_cities, read_jobs
from sb_grpo.tasks.item_policy import ItemPolicy
from sb_grpo.tasks.scheduling import RULES, DynamicJobShop, JobShop, lognormal
from sb_grpo.tasks.solving import Operation, by_model, by_rule, cp_sat, play, solve
from sb_grpo.tasks.uncertain import CVRP, Knapsack
from zoo import solve as zoo_solve
from zoo.common.command_line import run

ONE = th.zeros(1, dtype=th.int64)


def played(env: Any, choose: Any, seed: int = 0) -> tuple[list[int], list[list[float]], float, float]:
    """Play one env: actions, states before them, return, cost."""
    env.reset_all(th.full((env.num_envs,), seed))
    actions: list[int] = []
    states = []
    total = 0.0
    while True:
        mask = env.action_masks[0]
        actions.append(int(choose(mask)))
        states.append(env.state[0].tolist())
        step = env.step_tensor(th.full((env.num_envs,), actions[-1]))
        total += float(step.rewards[0])
        if step.terminated[0] or step.truncated[0]:
            assert step.terminated[0]
            return actions, states, total, float(env.cost(env.instances, env.state.unsqueeze(1))[0, 0])


def simulated(jobs: Jobs, duration: np.ndarray, order: list[int]) -> tuple[list[float], float]:
    """Begins of operations and makespan by a loop over events, written apart from the env."""
    n_machines = len(jobs.machine_names)
    begun = [0] * len(jobs.n_ops)
    ready = jobs.release.tolist()
    free = [0.0] * n_machines
    now = 0.0
    begins = []
    for job in order:
        while True:
            startable = [
                j for j in range(len(begun))
                if begun[j] < jobs.n_ops[j] and max(ready[j], free[jobs.machine[j, begun[j]]]) <= now
            ]  # fmt: skip
            if startable:
                break
            now = min(x for x in [*ready, *free] if x > now)
        assert job in startable
        begins.append(now)
        machine = jobs.machine[job, begun[job]]
        ready[job] = free[machine] = now + duration[job, begun[job]]
        begun[job] += 1
    return begins, max(ready)


def jobs_of(env: Any) -> Jobs:
    """Instance of the env's first env."""
    found = {name: part[0].numpy() for name, part in env.instances.items()}
    names = tuple(map(str, range(env.n_jobs)))
    return Jobs("", found["machine"], found["expected"], found["n_ops"], found["release"], found["weight"], names,
                tuple(map(str, range(env.n_machines))))  # fmt: skip


@pytest.mark.parametrize("cv", [0.0, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_schedules_are_those_of_a_loop_over_events(cv: float, seed: int) -> None:
    env: Any = JobShop(1, 5, 4, cv=cv, breakdowns=0.1, dtype=th.float64)
    rng = np.random.default_rng(seed)
    actions, states, total, cost = played(env, lambda mask: rng.choice(np.flatnonzero(mask)), seed)
    begins, makespan = simulated(jobs_of(env), env.instances["duration"][0].numpy(), actions)
    assert [state[0] for state in states] == pytest.approx(begins)
    assert cost == pytest.approx(makespan) == pytest.approx(-total * env.unit)


def test_weighted_time_in_the_system_counts_from_the_arrival() -> None:
    """Two jobs on one machine: 4 from time 0 with weight 1, and 2 from time 1 with weight 3; the first is not interrupted."""
    jobs = make_jobs("two", [[(0, 4.0)], [(0, 2.0)]], release=[0, 1], weight=[1, 3])
    env: Any = DynamicJobShop(1, cv=0.0, instances=[jobs])
    _, states, total, cost = played(env, lambda mask: np.flatnonzero(mask)[0])
    assert [state[0] for state in states] == [0, 4]
    assert cost == 1 * 4 + 3 * (6 - 1) == pytest.approx(-total * env.unit)


def test_jobs_are_invisible_before_they_arrive() -> None:
    jobs = make_jobs("two", [[(0, 4.0)], [(0, 2.0)]], release=[0, 1], weight=[1, 3])
    others = make_jobs("two", [[(0, 4.0)], [(0, 7.0)]], release=[0, 3], weight=[1, 2])
    seen = [DynamicJobShop(1, cv=0.0, instances=[i]) for i in (jobs, others)]
    for env in seen:
        env.unit = 1.0
    assert th.equal(seen[0].observations, seen[1].observations)


def test_waiting_reaches_a_schedule_that_no_rule_without_delay_has() -> None:
    """Machine 0 is worth keeping free for the urgent job that comes at time 1: cost 1 + 100 x 1 + ... instead of 100 x 10."""
    jobs = make_jobs("wait", [[(0, 10.0)], [(1, 1.0), (0, 1.0)]], weight=[1, 100])
    hurry: Any = DynamicJobShop(1, cv=0.0, instances=[jobs])
    assert played(hurry, lambda mask: np.flatnonzero(mask)[0])[3] == 10 + 100 * 11
    patient: Any = DynamicJobShop(1, cv=0.0, instances=[jobs], waiting=True)
    plan = iter([1, 2, 1, 0])
    assert played(patient, lambda mask: next(plan))[3] == 12 + 100 * 2


def test_members_share_the_luck_of_an_operation_whatever_they_do() -> None:
    env: Any = JobShop(2, 3, 3, cv=0.5)
    env.arrange(2)
    env.reset_all(th.tensor([5, 5]))
    assert env.instances["duration"].shape == (1, 3, 3)
    env.step_tensor(th.tensor([0, 1]))
    env.step_tensor(th.tensor([1, 0]))
    parts = env.parts(env.state.unsqueeze(0))
    both = (parts.begun > 0).all(dim=1)[0]
    lasted = (parts.ready - parts.started)[0]
    assert both.any() and th.allclose(lasted[0, both], lasted[1, both])


def test_durations_have_the_mean_and_the_variation_that_were_asked_for() -> None:
    u = (th.arange(200_000, dtype=th.float64) + 0.5) / 200_000
    x = lognormal(th.full_like(u, 10.0), u, 0.5)
    assert float(x.mean()) == pytest.approx(10, rel=1e-3) and float(x.std() / x.mean()) == pytest.approx(0.5, rel=1e-2)
    shop: Any = JobShop(2000, 2, 2, cv=0.0, breakdowns=0.2, repair=30.0)
    shop.reset_all(th.arange(2000))
    late = shop.instances["duration"] - shop.instances["expected"]
    assert float((late > 0).double().mean()) == pytest.approx(0.2, abs=0.02)
    assert float(late.mean()) == pytest.approx(6.0, rel=0.1)
    # The mean rest of a running operation: E[X - a | X > a] of the numbers above.
    env: Any = JobShop(1, 2, 2, cv=0.5)
    for passed in (0.0, 8.0, 20.0):
        rest = env.mean_rest(th.tensor(10.0), th.tensor(passed))
        assert float(rest) == pytest.approx(float((x[x > passed] - passed).mean()), rel=1e-2)


def test_rules_choose_by_their_names() -> None:
    """Jobs on one machine: times 5, 2 + 9 later, 3; weights 1, 1, 9."""
    jobs = make_jobs("rules", [[(0, 5.0)], [(0, 2.0), (1, 9.0)], [(0, 3.0)]], weight=[1, 1, 9])
    env: Any = JobShop(1, cv=0.0, instances=[jobs])
    state = env.state.unsqueeze(1)
    first = {rule: int(env.priority(rule, env.instances, state).argmax()) for rule in RULES}
    assert first == {"MWKR": 1, "MOR": 1, "SPT": 1, "FIFO": 0, "WSPT": 2, "WSRPT": 2, "ATC": 2}


def test_shops_with_weights_show_the_ratios_of_weight_to_time() -> None:
    """As logarithms in units, at jobs that are here; the last job comes later."""
    jobs = make_jobs("ratios", [[(0, 5.0)], [(0, 2.0), (1, 8.0)], [(0, 3.0)]], release=[0, 0, 9], weight=[1, 4, 9])
    for waiting in (False, True):
        env: Any = DynamicJobShop(1, cv=0.0, instances=[jobs], waiting=waiting)
        env.unit = 10.0
        shown = env.features(env.instances, env.state.unsqueeze(1))[0, 0, :, -3:]
        expected = [[np.log(10 / 5), np.log(10 / 5), 0.0], [np.log(10 * 4 / 2), np.log(10 * 4 / 10), 0.0], [0.0, 0.0, 0.0]]
        np.testing.assert_allclose(shown.numpy(), [*expected, *[[0.0, 0.0, 1.0]] * waiting], rtol=1e-6)


# ------------------------------------------------------------ routing and packing


def test_a_vehicle_returns_for_the_rest_of_a_demand() -> None:
    """Customer at distance 1 demands 1.5 of expected 1 x capacity: two visits, four ways."""
    env: Any = CVRP(1, spread=0.5, instances=[Cities("one", np.array([[0, 0], [1, 0]]), np.array([0, 1]), 1.0)])
    env.instances["demand"] = th.tensor([[0.0, 1.5]])
    env.state = env.initial_state(env.instances, ONE).flatten(0, 1)
    seen = []
    for action in (1, 0, 1):
        seen.append(env.action_masks[0].tolist())
        step = env.step_tensor(th.tensor([action]))
    assert seen == [[False, True], [True, False], [False, True]]
    assert step.terminated[0] and float(env.cost(env.instances, env.state.unsqueeze(1))) == pytest.approx(4.0)


def test_a_knapsack_bursts_and_keeps_the_value_before() -> None:
    env: Any = Knapsack(1, instances=[Items("three", np.array([3.0, 2.0, 1.0]), np.array([4.0, 4.0, 4.0]), 10.0)])
    env.instances["size"] = th.tensor([[0.4, 0.5, 0.2]])
    rewards = [float(env.step_tensor(th.tensor([item])).rewards[0]) for item in (0, 1, 2)]
    assert rewards == [3, 2, 0] and env.idle[0]
    known: Any = Knapsack(1, cv=0.0, instances=[Items("three", np.array([3.0, 2.0, 1.0]), np.array([4.0, 4.0, 8.0]), 10.0)])
    played(known, lambda mask: np.flatnonzero(mask)[0])
    assert float(known.cost(known.instances, known.state.unsqueeze(1))) == -5


PROBLEMS = [
    ("JobShop-v0", {"n_jobs": 3, "n_machines": 3}),
    ("JobShop-v0", {"n_jobs": 3, "n_machines": 3, "waiting": True, "breakdowns": 0.2}),
    ("DynamicJobShop-v0", {"n_jobs": 5, "n_machines": 2}),
    ("CVRP-v0", {"n": 5}),
    ("CVRP-v0", {"n": 5, "spread": 0.0}),
    ("Knapsack-v0", {"n": 6}),
]


@pytest.mark.parametrize(("env_id", "kwargs"), PROBLEMS)
def test_host_and_tensor_version_give_the_same_numbers(env_id: str, kwargs: dict[str, Any]) -> None:
    host: Any = gym.make(env_id, **kwargs).unwrapped
    env: Any = make_tensor_env(env_id, 6, **kwargs)
    env.arrange(3)
    env.reset_all(th.tensor([11, 11, 11, 12, 12, 12]))
    obs, _ = host.reset(seed=12)
    rng = np.random.default_rng(0)
    for _ in range(200):
        np.testing.assert_array_equal(obs, env.observations[4].numpy())
        masks = env.action_masks.numpy()
        np.testing.assert_array_equal(host.action_masks(), masks[4])
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
        step = env.step_tensor(th.as_tensor(actions))
        obs, reward, terminated, truncated, info = host.step(actions[4])
        assert (reward, terminated, truncated) == tuple(x[4].item() for x in (step.rewards, step.terminated, step.truncated))
        if terminated:
            costs = env.cost(env.instances, env.state.view(2, 3, -1))
            assert info["cost"] == pytest.approx(float(costs[1, 1]))
            return
    raise AssertionError("The episode does not end.")


# ------------------------------------------------------------ files


def test_public_instances_are_whole() -> None:
    ft06 = public("ft06")
    assert ft06.optimum == 55 and ft06.duration.sum() == 197 and ft06.machine[0].tolist() == [2, 0, 1, 3, 5, 4]
    assert public("ft10").duration.shape == (10, 10) and public("ft10").optimum == 930
    berlin = public("berlin52")
    assert berlin.optimum == 7542 and berlin.distances()[0, 1] == 666  # sqrt(540^2 + 390^2) = 666.1


def test_csv_and_taillard_files_hold_the_same_jobs(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job,machine,duration,weight\nA,saw,3,2\nA,drill,2,2\nB,drill,4,\n")
    jobs = read_jobs(tmp_path / "jobs.csv")
    assert jobs.job_names == ("A", "B") and jobs.machine_names == ("saw", "drill")
    assert jobs.n_ops.tolist() == [2, 1] and jobs.weight.tolist() == [2, 1] and jobs.machine[1, 0] == 1
    (tmp_path / "tai.txt").write_text("2 2 1 1 9 9\nTimes\n3 2\n4 1\nMachines\n1 2\n2 1\n")
    assert read_jobs(tmp_path / "tai.txt").machine.tolist() == [[0, 1], [1, 0]]


def test_cvrplib_files(tmp_path: Path) -> None:
    text = ("NAME: small\nTYPE: CVRP\nDIMENSION: 3\nEDGE_WEIGHT_TYPE: EUC_2D\nCAPACITY: 5\nNODE_COORD_SECTION\n1 0 0\n"
            "2 3 4\n3 6 8\nDEMAND_SECTION\n1 0\n2 2\n3 3\nDEPOT_SECTION\n1\n-1\nEOF\n")  # fmt: skip
    (tmp_path / "small.vrp").write_text(text)
    cities = read_cities(tmp_path / "small.vrp")
    assert cities.capacity == 5 and cities.demand is not None and cities.demand.tolist() == [0, 2, 3]
    assert cities.distances()[0].tolist() == [0, 5, 10]
    (tmp_path / "large.vrp").write_text(text.replace("3 3\n", "3 9\n"))
    with pytest.raises(ValueError, match=r"infeasible.*split"):
        read_cities(tmp_path / "large.vrp")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "2 2\n0 3 1 2\n", "line 2.*2 jobs need 2 lines"),
        ("a.txt", "1 2\n0 3 1\n", "line 2.*4 numbers, not 3"),
        ("a.txt", "1 2\n0 3 2 1\n", "line 2.*machine 2 is outside 0 to 1"),
        ("a.txt", "1 1\n0 x\n", "line 2.*'x' is no number"),
        ("a.txt", "", "line 1.*empty"),
        ("a.txt", "1 1\nTimes\n3\nMachines\n2\n", "line 5.*outside 1 to 1"),
        ("a.csv", "job,machine\nA,1\n", "line 1.*'duration'.*missing"),
        ("a.csv", "job,machine,duration\nA,saw,3\nA,saw,-1\n", "line 3.*-1 must be above 0"),
        ("a.csv", "job,machine,duration\nA,saw,nan\n", "line 2.*finite"),
        ("a.csv", "job,machine,duration\n", "no rows"),
    ],
)
def test_malformed_job_lists_are_named_by_line_and_rule(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_jobs(tmp_path / name)


def test_malformed_cities_are_named_by_line_and_rule(tmp_path: Path) -> None:
    for text, message in (
        ("EDGE_WEIGHT_TYPE: GEO\n", "line 1.*only EUC_2D"),
        ("EDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n1 2\n", "line 3.*two coordinates"),
        ("DIMENSION: 3\nEDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n1 2 3\n2 3 4\n", "DIMENSION is 3, but there are 2"),
    ):
        (tmp_path / "a.tsp").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_cities(tmp_path / "a.tsp")


def test_bad_input_is_refused_before_any_step() -> None:
    with pytest.raises(ValueError, match=r"cv=-1"):
        JobShop(1, cv=-1)
    with pytest.raises(ValueError, match=r"'ft10' has 10 jobs and 10 machines.*padded"):
        JobShop(1, n_jobs=6, n_machines=6, instances=[public("ft10")])
    host: Any = gym.make("JobShop-v0", n_jobs=2, n_machines=2, disable_env_checker=True)
    host.reset(seed=0)
    with pytest.raises(ValueError, match="Action 7 is not valid"):
        host.unwrapped.step(7)
    with pytest.raises(ValueError, match="0 instances"):
        host.unwrapped.reset(seed=0, options={"instance": 3})


def test_padding_changes_nothing() -> None:
    small = public("ft06")
    both: Any = JobShop(1, cv=0.0, instances=[small, public("ft10")])
    alone: Any = JobShop(1, cv=0.0, instances=[small])
    for env in (both, alone):
        played(env, lambda mask: np.flatnonzero(mask)[0])
    costs = [float(env.cost(env.instances, env.state.unsqueeze(1))) for env in (both, alone)]
    assert costs[0] == costs[1] >= 55


def test_own_luck_keeps_the_instance() -> None:
    host: Any = gym.make("JobShop-v0", n_jobs=3, n_machines=3).unwrapped
    host.reset(seed=1)
    before = {name: part.clone() for name, part in host.tensor_env.instances.items()}
    host.np_random = np.random.default_rng(5)
    host.step(int(np.flatnonzero(host.action_masks())[0]))
    after = host.tensor_env.instances
    assert th.equal(before["expected"], after["expected"]) and not th.equal(before["duration"], after["duration"])


class OneInstance(gym.Env[np.ndarray, int]):
    """Env in the old manner of JSSEnv: the instance in the constructor, and a reset without seed and info."""

    def __init__(self, level: float) -> None:
        self.level = level
        self.observation_space = gym.spaces.Box(0.0, level // 100 + 1.0, (1,), np.float32)
        self.action_space: Any = gym.spaces.Discrete(2)

    def reset(self) -> np.ndarray:  # type: ignore[override]
        return np.array([self.level], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.reset(), self.level * action, True, False, {}


def test_envs_of_one_instance_are_chosen_by_seed_and_option() -> None:
    env = ByInstance(OneInstance, [0.1, 0.2, 0.3])
    assert [float(env.reset(seed=seed)[0][0]) for seed in (3, 4, 3)] == pytest.approx([0.1, 0.2, 0.1])
    assert float(env.reset(seed=0, options={"instance": 2})[0][0]) == pytest.approx(0.3)
    assert env.step(1)[1] == pytest.approx(0.3)
    for instances, message in (([], "empty"), ([0.1, 200.0], "one size")):
        with pytest.raises(ValueError, match=message):
            ByInstance(OneInstance, instances).reset(seed=1)
    with pytest.raises(ValueError, match="no instance 7"):
        env.reset(options={"instance": 7})


def test_jssenv_trains_on_instances_of_its_own(tmp_path: Path) -> None:
    found = pytest.importorskip("JSSEnv.envs.jss_env")
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, time in zip(paths, (3, 5), strict=True):
        path.write_text(f"2 2\n0 {time} 1 2\n1 4 0 1\n")
    env = make_vec_env(lambda: ByInstance(lambda path: found.JssEnv({"instance_path": path}), paths), 4)
    model = GRPO("MultiInputPolicy", env, advantage="outcome", group_size=4, n_steps=16, device="cpu", seed=0).learn(64)
    assert model.mask_source == "observation"


def test_job_shop_lib_gets_the_instances_of_the_starts() -> None:
    pytest.importorskip("job_shop_lib")
    from job_shop_lib import JobShopInstance, Operation
    from job_shop_lib.graphs import build_disjunctive_graph
    from job_shop_lib.reinforcement_learning import SingleJobShopGraphEnv

    class ByJob(gym.Wrapper[Any, Any, Any, Any]):
        """Choose a job; observed are the jobs' features."""

        def __init__(self, times: list[int]) -> None:
            jobs = [[Operation(machine, times[job]) for machine in (job, 1 - job)] for job in (0, 1)]
            super().__init__(SingleJobShopGraphEnv(build_disjunctive_graph(JobShopInstance(jobs)), ["duration"]))
            self.observation_space = gym.spaces.Dict(
                jobs=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), action_mask=gym.spaces.MultiBinary(2)
            )
            self.action_space = gym.spaces.Discrete(2)

        def seen(self, obs: Any, info: dict[str, Any]) -> dict[str, np.ndarray]:
            able = {job for *_, job in info["available_operations_with_ids"]}
            mask = np.array([job in able for job in (0, 1)], np.int8)
            return {"jobs": obs["jobs"].ravel().astype(np.float32), "action_mask": mask}

        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            obs, info = self.env.reset(**kwargs)
            return self.seen(obs, info), info

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, reward, terminated, truncated, info = self.env.step((int(action), -1))
            return self.seen(obs, info), float(reward), terminated, truncated, info

    env = ByInstance(ByJob, [[3, 5], [4, 7]])
    for number, makespan in ((0, 10), (1, 14)):  # each job waits for the longer one once
        env.reset(options={"instance": number})
        rewards = [env.step(job)[1] for job in (0, 1, 1, 0)]
        assert sum(rewards) == -makespan
    starts = [{"options": {"instance": 1}}]
    model = GRPO(
        "MultiInputPolicy", make_vec_env(lambda: ByInstance(ByJob, [[3, 5], [4, 7]]), 4), advantage="outcome", group_size=4,
        group_kwargs={"starts": starts}, n_steps=16, device="cpu", seed=0,
    )  # fmt: skip
    rollout: Any = model.collect()
    assert model.mask_source == "observation"
    assert set(rollout.observations["jobs"][rollout.t == 0].flatten().tolist()) == {8.0, 14.0}


# ------------------------------------------------------------ answers


def check_schedule(jobs: Jobs, schedule: list[Operation]) -> float:
    """Makespan of a schedule, after a check that jobs and machines do one thing at a time, in order."""
    assert len(schedule) == jobs.n_ops.sum()
    for key in ("job", "machine"):
        rows = sorted(schedule, key=lambda row: row.start)
        for name in {getattr(row, key) for row in rows}:
            mine = [row for row in rows if getattr(row, key) == name]
            assert all(a.end <= b.start + 1e-3 for a, b in itertools.pairwise(mine))
            assert key == "machine" or [row.operation for row in mine] == [*range(len(mine))]
    return max(row.end for row in schedule)


def test_cp_sat_proves_ft06_and_rules_come_close() -> None:
    jobs = public("ft06")
    found = cp_sat([jobs])[0]
    assert found.optimal and found.cost == 55 == check_schedule(jobs, found.schedule)
    for rule in JobShop.rules:
        by = solve(rule, [jobs])[0]
        assert 55 <= by.cost == check_schedule(jobs, by.schedule) < 1.7 * 55


def test_plans_on_expectations_meet_the_durations_as_they_come() -> None:
    """Known durations: planning again changes nothing. Unknown ones: the schedule is valid, and a plan is seldom the best."""
    jobs = public("ft06")
    assert cp_sat([jobs], resolve=True)[0].cost == 55
    costs = {}
    for resolve in (False, True):
        found = [cp_sat([jobs], resolve=resolve, seed=seed, cv=0.5)[0] for seed in range(3)]
        assert not any(one.optimal for one in found)
        costs[resolve] = np.mean([check_schedule(jobs, one.schedule) for one in found])
        assert costs[resolve] == pytest.approx(np.mean([one.cost for one in found]), rel=1e-4)
    assert costs[True] < costs[False] < 1.5 * costs[True]


def test_cp_sat_plans_jobs_that_have_arrived() -> None:
    """A short job of weight 9 comes while the machine works; it goes before the long one that waits."""
    jobs = make_jobs("three", [[(0, 4.0)], [(0, 8.0)], [(0, 1.0)]], release=[0, 0, 2], weight=[2, 1, 9])
    found = cp_sat([jobs], resolve=True)[0]
    assert [row.job for row in found.schedule] == ["0", "2", "1"] and found.cost == 2 * 4 + 9 * 3 + 1 * 13
    with pytest.raises(ValueError, match="resolve=True"):
        cp_sat([jobs])


def test_exact_tours_routes_and_packings() -> None:
    square = Cities("square", np.array([[0, 0], [1, 1], [0, 1], [1, 0]], dtype=float))
    assert cp_sat([square])[0].cost == pytest.approx(4.0) and cp_sat([square])[0].optimal
    # Two customers left and two right of the depot; the vehicle carries two.
    line = Cities("line", np.array([[0, 0], [-1, 0], [-2, 0], [1, 0], [2, 0]], dtype=float), np.array([0.0, 1, 1, 1, 1]), 2.0)
    found = cp_sat([line])[0]
    assert found.cost == pytest.approx(8.0) and found.optimal and found.actions.count(0) == 1
    assert solve("NEAREST", [line])[0].cost == pytest.approx(8.0)
    items = Items("three", np.array([3.0, 2.9, 2.9]), np.array([6.0, 5.0, 5.0]), 10.0)
    assert cp_sat([items])[0].cost == pytest.approx(-5.8)


def test_all_starts_and_samples_take_the_best() -> None:
    """An untrained policy on ft06: each search contains the attempts before it."""
    jobs = public("ft06")
    model = GRPO(ItemPolicy, JobShop(16, cv=0.0, instances=[jobs]), advantage="outcome", group_size=8, seed=0, device="cpu")
    greedy = solve(model, [jobs])[0]
    every = solve(model, [jobs], starts="all")[0]
    drawn = solve(model, [jobs], decode="sample", samples=32)[0]
    assert 55 <= every.cost <= greedy.cost and 55 <= drawn.cost < greedy.cost + 10
    assert check_schedule(jobs, every.schedule) == every.cost
    larger = solve(model, [public("ft10")])[0]  # its weights fit any number of jobs
    assert check_schedule(public("ft10"), larger.schedule) == larger.cost >= 930
    with pytest.raises(ValueError, match="nobody knows"):
        solve(model, [jobs], starts="all", cv=0.5)
    mlp = GRPO("MlpPolicy", JobShop(16, cv=0.0, instances=[jobs]), advantage="outcome", group_size=8, device="cpu")
    with pytest.raises(ValueError, match="n_jobs"):
        solve(mlp, [public("ft10")])


@pytest.mark.slow
def test_training_on_uncertain_shops_beats_every_rule() -> None:
    """Rules are at 600 and above on these 100 instances; an untrained policy that chooses at random is at 660."""
    model = GRPO(
        ItemPolicy, JobShop(64), advantage="outcome", group_size=8, n_groups=16, learning_rate=1e-3, batch_size=512,
        n_epochs=4, gamma=1.0, seed=0, device="cpu",
    ).learn(20_000)  # fmt: skip
    env: Any = JobShop(100)
    instance = env.instance(th.arange(10**6, 10**6 + 100))
    best = min(float(play(env, instance, by_rule(env, rule)).cost.mean()) for rule in JobShop.rules)
    assert float(play(env, instance, by_model(env, model)).cost.mean()) < best - 5


def test_maskable_ppo_runs_on_the_host_version() -> None:
    env = make_vec_env("JobShop-v0", 2, env_kwargs={"n_jobs": 3, "n_machines": 3})
    model = MaskablePPO("MlpPolicy", env, n_steps=32, batch_size=32, device="cpu").learn(64)
    jobs = make_jobs("three", [[(0, 4.0), (1, 1.0), (2, 2.0)]] * 3)
    assert solve(model, [jobs], cv=0.5)[0].cost > 0


# ------------------------------------------------------------ the command


def command(*arguments: Any) -> int:
    return run("zoo.solve", zoo_solve.main, [*map(str, arguments), "--num-threads", "-1"])


def test_a_job_list_becomes_a_schedule_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job,machine,duration\nchair,saw,3\nchair,drill,2\ntable,drill,2\ntable,saw,4\n")
    assert command("--problem", "jobshop", "--jobs", jobs, "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "best of the rules and CP-SAT" in printed and "MWKR" in printed
    found = json.loads((tmp_path / "out" / "solution.json").read_text())
    assert found["cost"] == 7 and found["optimal"]  # the saw works 3 + 4
    rows = (tmp_path / "out" / "schedule.csv").read_text().splitlines()
    assert rows[0] == "job,operation,machine,start,end" and "table,1,saw,3.0,7.0" in rows
    assert (tmp_path / "out" / "gantt.png").stat().st_size > 5_000


def test_uncertain_jobs_and_a_trained_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--problem", "jobshop", "--jobs", "ft06", "--cv", 0.5, "--draws", 2, "--out", tmp_path / "out"]
    model = tmp_path / "model.zip"
    assert command(*options, "--seconds", 0, "--train", 1, "--save", model) == 0
    assert command(*options, "--seconds", 0, "--model", model, "--untrusted") == 0
    lines = [
        [line.split()[2:3] for line in text.splitlines() if line.startswith("model, greedy")]
        for text in capsys.readouterr().out.split("Means over 2 futures")
    ]
    assert lines[0] == lines[1] != []


def test_a_tour_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "cities.csv").write_text("x,y\n0,0\n10,10\n0,10\n10,0\n")
    assert command("--problem", "tsp", "--cities", tmp_path / "cities.csv", "--out", tmp_path, "--train", 1) == 0
    found = json.loads((tmp_path / "solution.json").read_text())
    assert found["cost"] == 40 and sorted(found["tour"]) == [0, 1, 2, 3] and (tmp_path / "tour.png").exists()
    assert min(found["costs"]["model, all starts"]) >= 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problem", "tsp", "--jobs", "ft06"], "takes --cities FILE"),
        (["--problem", "tsp", "--cities", "ft06"], "is an instance of jobshop"),
        (["--problem", "jobshop", "--jobs", "nowhere.csv"], "No such file"),
        (["--problem", "jobshop", "--jobs", "ft06", "--cv", "-1"], "cv=-1.0 must be"),
        (["--problem", "jobshop", "--jobs", "ft06", "--model", "nowhere.zip"], "cannot be loaded"),
        (["--problem", "jobshop", "--jobs", "ft06", "--draws", "0"], "--draws 0 must be at least 1"),
    ],
)
def test_bad_options_of_the_command(arguments: list[str], message: str, tmp_path: Path, capsys: Any) -> None:
    assert command(*arguments, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
