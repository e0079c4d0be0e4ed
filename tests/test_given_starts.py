"""Starts that the user gives: which member of which group begins where, on every kind of env, and after a run is resumed."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from sb_grpo import GRPO, SeededResetWrapper, evaluate_paired
from sb_grpo.collect.given_starts import GivenStarts, TensorStarts
from sb_grpo.config import GroupOptions
from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.envs.process_vec_env import ProcessVecEnv
from sb_grpo.envs.random import group_seed

SMALL: dict[str, Any] = dict(
    n_steps=32, batch_size=64, n_epochs=1, group_size=4, seed=0, device="cpu", policy_kwargs=dict(net_arch=[8])
)


class Errand(gym.Env):
    """Shows the start that it was given: seed, place and member's number; the first action decides how long it takes."""

    observation_space = spaces.Box(-1, 10**6, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        options = options or {}
        place = options.get("place", [-1])
        self.given = [seed % 4096, place[0], options.get("member", -1)]
        place[0] = 10**5  # used up
        return self._see(), {}

    def _see(self):
        return np.array([*self.given, self.t], np.float32)

    def step(self, action):
        self.t += 1
        self.length = 2 + action if self.t == 1 else self.length
        return self._see(), float(action), self.t >= self.length, False, {}


def errands(kind: str, n: int) -> Any:
    if kind == "workers":
        return ProcessVecEnv([Errand] * n, n_workers=2)
    if kind == "subproc":
        return make_vec_env(
            Errand, n, vec_env_cls=SubprocVecEnv, vec_env_kwargs=dict(start_method="fork"), wrapper_class=SeededResetWrapper
        )
    if kind == "normalized":
        return VecNormalize(make_vec_env(Errand, n), norm_obs=False)
    return make_vec_env(Errand, n)


def beginnings(model: GRPO, rollouts: int = 1) -> list[tuple[int, tuple[float, ...]]]:
    """Group and first observation of every episode that begins."""
    found = []
    for _ in range(rollouts):
        rollout = model.collect()
        assert rollout is not None and rollout.seed_group is not None
        rows = (rollout.t == 0).nonzero().squeeze(1)
        groups = rollout.seed_group[rollout.episode[rows]].tolist()
        found += list(zip(groups, map(tuple, rollout.observations[rows].tolist()), strict=True))
    return found


def by_group(found: list[tuple[int, tuple[float, ...]]]) -> dict[int, tuple[float, ...]]:
    """First observation of each group, which all of its members share."""
    groups: dict[int, set] = {}
    for group, start in found:
        groups.setdefault(group, set()).add(start)
    assert all(len(starts) == 1 for starts in groups.values())
    return {group: next(iter(starts)) for group, starts in groups.items()}


# ---------------------------------------------------------------- members, groups, auto-resets


@pytest.mark.parametrize("kind", ["dummy", "subproc", "workers", "normalized"])
def test_all_members_get_their_groups_seed_and_options_at_every_reset(kind):
    """Group k begins with entry k modulo 3: a seed; options; both."""
    starts = [7, {"options": {"place": [30]}}, {"seed": 9, "options": {"place": [40]}}]
    env = errands(kind, 3)
    model = GRPO("MlpPolicy", env, group_kwargs=dict(starts=starts), **SMALL)
    found = beginnings(model, 2)
    env.close()
    groups = by_group(found)
    assert len(groups) >= 15 and Counter(group for group, _ in found)[0] == 4 and len(found) > 3 * 3  # many auto-resets
    for group, start in groups.items():
        own_seed = group_seed(0, group) % 4096
        expected = [(7, -1), (own_seed, 30), (9, 40)][group % 3]
        assert start == (*expected, -1, 0)
    assert model.groups.start_mismatches == 0


def test_a_function_is_called_once_per_group_in_turn():
    called = []

    def ladder(group: int) -> dict[str, Any]:
        called.append(group)
        return {"options": {"place": [min(group, 5)]}}

    model = GRPO("MlpPolicy", errands("dummy", 3), group_kwargs=dict(starts=ladder), **SMALL)
    groups = by_group(beginnings(model, 2))
    assert called == list(range(len(called))) and len(called) >= len(groups)
    assert all(start[1] == min(group, 5) for group, start in groups.items())
    assert len(model.groups.given.known) <= 3 + 3  # those of running and queued episodes


def test_without_starts_nothing_is_asked():
    model = GRPO("MlpPolicy", errands("dummy", 3), **SMALL)
    assert by_group(beginnings(model))[0] == (group_seed(0, 0) % 4096, -1, -1, 0) and model.groups.given is None


def test_one_start_for_all_groups_is_meant():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = GRPO("MlpPolicy", errands("dummy", 8), **{**SMALL, "group_size": 2}, group_kwargs=dict(starts=[5]))
        assert set(by_group(beginnings(model, 2)).values()) == {(5, -1, -1, 0)}


def test_starts_go_on_where_groups_do():
    """A second learn() continues with the next groups."""
    model = GRPO(
        "MlpPolicy", errands("dummy", 4), group_kwargs=dict(starts=[{"options": {"place": [i]}} for i in range(100)]), **SMALL
    )
    first = by_group(beginnings(model))
    model.restart_groups()
    second = by_group(beginnings(model))
    assert min(second) > max(first) and all(start[1] == group for group, start in {**first, **second}.items())


def test_a_member_may_ask_for_its_number():
    """Unequal starts that were asked for are no mismatch."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = dict(starts=[{"options": {"place": [3]}}] * 2, tell_member=True)
        model = GRPO("MlpPolicy", errands("dummy", 8), group_kwargs=options, **SMALL)
        found = beginnings(model, 2)
    members: dict[int, list] = {}
    for group, start in found:
        assert start[1] == 3
        members.setdefault(group, []).append(start[2])
    assert all(len(set(numbers)) == len(numbers) and set(numbers) <= set(range(4)) for numbers in members.values())
    assert sorted(members[0]) == [0, 1, 2, 3] and model.groups.start_mismatches == 0
    alone = GRPO("MlpPolicy", errands("dummy", 8), group_kwargs=dict(tell_member=True), **SMALL)
    assert {start[1:3] for _, start in beginnings(alone)} == {(-1, k) for k in range(4)}


# ---------------------------------------------------------------- order


def order_of(kind: str, n: int, groups: int) -> list[int]:
    options = GroupOptions(starts=list(range(n)), starts_order=kind)
    given = GivenStarts(options, 11, errands("dummy", 1))
    return [given.of_group(group).seed for group in range(groups)]


def test_the_orders():
    assert order_of("cycle", 3, 7) == [0, 1, 2, 0, 1, 2, 0]
    shuffled = order_of("shuffle", 10, 30)
    turns = [shuffled[:10], shuffled[10:20], shuffled[20:]]
    assert all(sorted(turn) == list(range(10)) for turn in turns) and len(set(map(tuple, turns))) == 3
    drawn = order_of("random", 10, 2000)
    counts = np.bincount(drawn, minlength=10)
    assert sorted(drawn[:10]) != list(range(10)) and abs(counts - 200).max() < 5 * np.sqrt(2000 * 0.1 * 0.9)


@pytest.mark.parametrize("order", ["cycle", "shuffle", "random"])
@pytest.mark.parametrize("n", [1, 3, 50])
def test_tensor_envs_use_the_same_order(order, n):
    env = make_tensor_env("CartPole-v1", 12)
    options = GroupOptions(starts=list(range(n)), starts_order=order)
    on_device = TensorStarts(options, 11, env, 12 // 2 + 2)
    for newest in (5, 49, 50, 51, 99, 140):
        groups = th.arange(newest - 5, newest + 1).repeat_interleave(2)
        seeds, _, states = on_device.of_groups(groups, th.zeros(12, dtype=th.int64))
        assert seeds.tolist() == [order_of(order, n, 141)[group] for group in groups.tolist()] and states is None


# ---------------------------------------------------------------- tensor envs


class Drift(FunctionalTensorEnv):
    """A point that moves by the action, from a place that the seed gives; over beyond 3."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, spaces.Box(-1e6, 1e6, (2,)), spaces.Discrete(2), max_episode_steps=5)

    def initial_state(self, seeds):
        return th.stack([seeds % 4096, th.zeros_like(seeds)], dim=1).to(self.dtype)

    def transition(self, state, actions):
        moved = state + th.stack([th.zeros_like(actions), actions + 1], dim=1)
        return moved, actions.to(self.dtype), moved[:, 1] > 3


def test_groups_of_a_tensor_env_begin_in_given_states_and_seeds():
    starts = [7, {"state": [5000.0, 2.0]}, {"seed": 9, "state": [6000.0, -1.0]}, {}]
    for given in (starts, lambda group: starts[group % 4]):
        model = GRPO("MlpPolicy", Drift(6), group_kwargs=dict(starts=given), **SMALL)
        groups = by_group(beginnings(model, 2))
        assert len(groups) >= 16 and model.groups.start_mismatches == 0
        for group, start in groups.items():
            assert start == [(7, 0), (5000, 2), (6000, -1), (group_seed(0, group) % 4096, 0)][group % 4]


@pytest.mark.slow
def test_a_compiled_loop_uses_the_same_starts():
    """A sequence is looked up in the graph; a function is not compiled, and a warning says so."""
    starts = [{"seed": i, "state": [100.0 * i, 0.0]} if i % 2 else 7 + i for i in range(5)]
    found = []
    for compiled in (False, True):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="compile")
            options = dict(starts=starts, starts_order="shuffle")
            model = GRPO("MlpPolicy", Drift(6), group_kwargs=options, compile=compiled, **SMALL)
            found.append(beginnings(model, 2))
    eager, compiled = map(by_group, found)
    assert all(eager[group] == compiled[group] for group in eager.keys() & compiled.keys())
    assert len(eager.keys() & compiled.keys()) >= 12
    with pytest.warns(UserWarning, match="starts= is a function"):
        GRPO("MlpPolicy", Drift(6), group_kwargs=dict(starts=lambda group: group), compile=True, **SMALL)


def test_a_simulator_whose_envs_start_together_takes_given_seeds():
    from tests.test_simulator_groups import Together

    class Named(Together):
        def reset_all(self, seeds):
            self.asked = seeds.tolist()
            super().reset_all(seeds)

    env = Named(4)
    model = GRPO("MlpPolicy", env, group_kwargs=dict(starts=[3, 5, 8]), **{**SMALL, "group_size": 2})
    model.collect()
    assert env.asked[0] == env.asked[1] and env.asked[2] == env.asked[3] and set(env.asked) <= {3, 5, 8}


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("kind", ["host", "tensor"])
@pytest.mark.parametrize("order", ["cycle", "shuffle", "random"])
def test_a_resumed_run_goes_on_with_the_same_starts(kind, order):
    def make() -> Any:
        return Drift(4) if kind == "tensor" else errands("dummy", 4)

    starts = [{"seed": i, "state": [100.0 + i, 0.0]} if kind == "tensor" else {"options": {"place": [i]}} for i in range(7)]
    settings = {**SMALL, "n_steps": 16}
    model = GRPO("MlpPolicy", make(), group_kwargs=dict(starts=starts, starts_order=order), **settings)
    model.learn(64)
    model.restart_groups()
    file = io.BytesIO()
    model.save_run(file)
    went_on = beginnings(model, 2)
    resumed = GRPO.load_run(file, make())
    assert resumed.group_kwargs == model.group_kwargs
    assert beginnings(resumed, 2) == went_on and len(by_group(went_on)) >= 5
    for one, other in zip(model.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert th.equal(one, other)


def test_a_model_is_loaded_with_the_arrays_among_its_options(tmp_path):
    starts = [{"options": {"place": np.array([i]), "tour": (1, 2)}} for i in range(3)]
    model = GRPO("MlpPolicy", errands("dummy", 2), group_kwargs=dict(starts=starts), **SMALL)
    model.save(tmp_path / "model")
    for trusted in (True, False):
        loaded = GRPO.load(tmp_path / "model", errands("dummy", 2), trusted=trusted)
        assert by_group(beginnings(loaded))[2][1] == 2
        assert loaded.group_kwargs["starts"][2]["options"]["tour"] == (1, 2)


def test_a_function_is_pickled_as_sb3_does_and_asked_for_where_that_is_not_trusted(tmp_path):
    model = GRPO("MlpPolicy", errands("dummy", 2), group_kwargs=dict(starts=lambda group: 40 + group), **SMALL)
    model.save(tmp_path / "model")
    assert by_group(beginnings(GRPO.load(tmp_path / "model", errands("dummy", 2))))[1][0] == 41
    with pytest.raises(ValueError, match=r"not trusted.*group_kwargs"):
        GRPO.load(tmp_path / "model", errands("dummy", 2), trusted=False)
    given = dict(starts=lambda group: 50 + group)
    loaded = GRPO.load(tmp_path / "model", errands("dummy", 2), trusted=False, group_kwargs=given)
    assert by_group(beginnings(loaded))[1][0] == 51


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([1, 2, -3], r"starts\[2\] has the seed -3: it must be an integer from 0 to 2147483647"),
        ([2**31], r"starts\[0\] has the seed 2147483648"),
        ([1, "a"], r"starts\[1\] is 'a': it must be a reset seed .* or a dict with keys among"),
        ([True], r"starts\[0\] is True"),
        (np.array([0.5]), r"starts\[0\] is 0.5"),
        ([0, {"size": 3}], r"starts\[1\] has an unknown key 'size'.*takes \['options', 'seed', 'state'\]"),
        ([{"option": {}}], r"starts\[0\] has an unknown key 'option'; did you mean 'options'\?"),
        ([{"options": [1]}], r"starts\[0\] has the options \[1\]: they must be a dict"),
        ([{"options": {"times": [{0: 2}]}}], r"starts\[0\] has the options .* whose keys are text"),
        ([3, {"state": [1.0]}], r"starts\[1\] has a state, which a DummyVecEnv cannot take.*'options'"),
        ([], r"starts=\[\] must be a sequence of at least one start"),
        ("12", r"starts='12' must be a sequence"),
        ((i for i in range(3)), r"starts=<generator .* must be a sequence"),
        ({"seed": 3}, r"starts={'seed': 3} must be a sequence"),
    ],
)
def test_a_bad_start_is_named_with_its_number_before_anything_is_built(starts, message):
    with pytest.raises(ValueError, match=message):
        GRPO("MlpPolicy", errands("dummy", 2), group_kwargs=dict(starts=starts), **SMALL)


@pytest.mark.parametrize(
    ("group_kwargs", "message"),
    [
        (
            dict(starts=[{"options": {"a": 1}}]),
            r"starts\[0\] has options, but the resets of a Drift .* take seeds alone",
        ),
        (dict(starts=[{"state": [1.0]}]), r"starts\[0\] has the state \[1.0\]: it must be finite numbers of shape \(2,\)"),
        (dict(starts=[{"state": [1.0, np.nan]}]), r"starts\[0\] has the state .*finite"),
        (dict(starts=[{"state": "x"}]), r"starts\[0\] has the state 'x'"),
        (dict(tell_member=True), r"tell_member=True .* resets of a Drift .* get none"),
        (dict(starts_order="shuffle"), r"starts_order='shuffle' has no effect without starts"),
        (dict(starts=lambda g: g, starts_order="random"), r"starts_order='random' has no effect on a function"),
        (
            dict(starts=[1], starts_order="sorted"),
            r"starts_order='sorted' is unknown; use one of \['cycle', ",
        ),
    ],
)
def test_what_a_tensor_env_cannot_take_is_refused(group_kwargs, message):
    with pytest.raises(ValueError, match=message):
        GRPO("MlpPolicy", Drift(4), group_kwargs=group_kwargs, **SMALL)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        (lambda group: None if group == 3 else 1, r"starts\(3\) is None: it must be a reset seed"),
        (lambda group: [5, 6, 7][group], r"starts failed for group 3 \(IndexError: .*must return a start for every group"),
        (lambda group: {"state": [0.0, 0.0]}, r"starts\(0\) has a state, which a DummyVecEnv"),
    ],
)
def test_a_function_that_returns_no_start_is_named_with_the_group(starts, message):
    model = GRPO("MlpPolicy", errands("dummy", 2), group_kwargs=dict(starts=starts), **SMALL)
    with pytest.raises(ValueError, match=message):
        model.learn(64)


def test_an_env_that_takes_no_options_is_named():
    class Closed(Errand):
        def reset(self, *, seed=None):
            return super().reset(seed=seed)

    model = GRPO("MlpPolicy", DummyVecEnv([Closed]), group_kwargs=dict(starts=[{"options": {"place": [1]}}]), **SMALL)
    with pytest.raises(ValueError, match=r"Closed.reset\(options={'place': \[1\]}\) raised TypeError.*Without them it works"):
        model.learn(64)


def test_a_vec_env_of_the_users_own_takes_seeds_but_no_options():
    from tests.test_training_env import SeededBatch

    with pytest.raises(ValueError, match=r"set_next_seed of SeededBatch takes seeds alone"):
        GRPO("MlpPolicy", SeededBatch(), group_kwargs=dict(starts=[{"options": {"a": 1}}]), **SMALL).learn(64)
    GRPO("MlpPolicy", SeededBatch(), group_kwargs=dict(starts=[3, 4, 5]), **SMALL).learn(64)


# ---------------------------------------------------------------- a validation set


class Reach(gym.Env):
    """Pays the given number for action 1, nothing for action 0; one step."""

    observation_space = spaces.Box(0, 1000, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = options["number"] if options else (seed or 0) % 100
        return np.array([self.number], np.float32), {}

    def step(self, action):
        return np.array([0], np.float32), float(action * self.number), True, False, {}


def test_evaluate_paired_plays_given_starts():
    """Returns of action 1 are the numbers; of action 0 nothing."""
    zeros, ones = (lambda obs, a=a: np.full(len(obs), a) for a in (0, 1))
    starts = [{"options": {"number": n}} for n in (3, 1, 4, 1, 5)]
    for n_envs in (1, 2, 5):
        found = evaluate_paired(zeros, ones, Reach, starts=starts, n_envs=n_envs)
        assert found.returns_b.tolist() == [3, 1, 4, 1, 5] and found.returns_a.tolist() == [0] * 5
        assert found.seeds == tuple(range(2**30, 2**30 + 5))
    requested = evaluate_paired(zeros, ones, Reach, 4, starts=lambda i: {"options": {"number": 10 * i}})
    assert requested.returns_b.tolist() == [0, 10, 20, 30]
    seeded = evaluate_paired(zeros, ones, Reach, starts=[{"seed": 7}, 12, {"seed": 7, "options": {"number": 2}}])
    assert seeded.returns_b.tolist() == [7, 12, 2] and seeded.seeds == (7, 12, 7)


def test_evaluate_paired_plays_given_states_of_a_tensor_env():
    """From -2, 0, 2 it takes 6, 4 and 2 steps of 1 to get beyond 3 (5 at most), and 3, 2 and 1 of 2."""
    ones, twos = (lambda obs, a=a: np.full(len(obs), a) for a in (0, 1))
    starts = [{"state": [0.0, place]} for place in (-2.0, 0.0, 2.0)]
    found = evaluate_paired(ones, twos, Drift(2), starts=starts)
    assert found.returns_b.tolist() == [3, 2, 1] and found.returns_a.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(starts=[1]), r"1 start\(s\) give no interval"),
        (dict(starts=[1, "x"]), r"starts\[1\] is 'x'"),
        (dict(starts=[1, {"state": [1.0]}]), r"starts\[1\] has a state, which a DummyVecEnv cannot take"),
        (dict(starts=[4, 4]), r"starts holds 4 twice"),
        (dict(starts=[1, 2], seeds=7), r"starts and seeds=7 both say"),
        (dict(starts=[1, 2], seeds=[7, 8]), r"starts and seeds=\[7, 8\] both say"),
    ],
)
def test_bad_starts_of_an_evaluation_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        evaluate_paired(lambda obs: np.zeros(len(obs)), lambda obs: np.zeros(len(obs)), Reach, **options)


# ---------------------------------------------------------------- learning


class Order(gym.Env):
    """The options say which of four drinks is wanted; the guest sees it, and is pleased with that one alone."""

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.wanted, self.t = options["wanted"], 0  # without options there is no task
        return np.eye(4, dtype=np.float32)[self.wanted], {}

    def step(self, action):
        self.t += 1
        return np.eye(4, dtype=np.float32)[self.wanted], float(action == self.wanted), False, self.t == 4, {}


def test_a_task_that_only_the_options_hold_is_learnt_and_generalises_to_the_validation_set():
    starts = [{"options": {"wanted": k}} for k in range(4)]
    model = GRPO(
        "MlpPolicy", make_vec_env(Order, 8), advantage="outcome", n_steps=64, learning_rate=3e-3, seed=0, device="cpu",
        policy_kwargs=dict(net_arch=[16]), group_kwargs=dict(starts=starts, starts_order="shuffle"),
    )  # fmt: skip
    model.learn(6_000)
    found = evaluate_paired(lambda obs: np.zeros(len(obs), dtype=int), model, Order, starts=starts, n_envs=2)
    assert found.returns_b.tolist() == [4, 4, 4, 4] and found.returns_a.tolist() == [4, 0, 0, 0]
