"""CausalIntervention-v0: its mathematics against brute force, its rewards against those who would farm them, its checks."""

import re
import sys
from itertools import permutations, product
from math import comb, lgamma, log, pi
from pathlib import Path

import gymnasium as gym
import networkx as nx
import numpy as np
import pytest
import torch as th
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

from sb_grpo import GRPO, SeededResetWrapper
from sb_grpo.tasks.causal import posterior as posterior_module
from sb_grpo.tasks.causal.actions import make_actions
from sb_grpo.tasks.causal.baselines import BASELINES, at_random, greedy_information, greedy_target, upper_confidence
from sb_grpo.tasks.causal.effects import Effects
from sb_grpo.tasks.causal.env import CausalInterventionEnv
from sb_grpo.tasks.causal.graphs import STRUCTURES, draw_graph
from sb_grpo.tasks.causal.policy import InterventionPolicy
from sb_grpo.tasks.causal.posterior import EdgePosterior, edge_probabilities, tables
from sb_grpo.tasks.causal.regression import PRECISION, RATE, SHAPE, Regressions
from sb_grpo.tasks.causal.rewards import WEIGHTS, BalancedAccuracy
from sb_grpo.tasks.causal.scm import CausalModel, draw_model

ENV_ID = "CausalIntervention-v0"


# ---------------------------------------------------------------- regressions


def evidence_in_closed_form(z: np.ndarray, y: np.ndarray) -> float:
    """Murphy (2012), eq. 7.69 to 7.78, all samples at once."""
    n, p = z.shape
    precision = PRECISION * np.eye(p) + z.T @ z
    mean = np.linalg.solve(precision, z.T @ y)
    rate = RATE + 0.5 * (y @ y - mean @ precision @ mean)
    log_det = p * log(PRECISION) - np.linalg.slogdet(precision)[1]
    gamma = lgamma(SHAPE + n / 2) - lgamma(SHAPE)
    return -n / 2 * log(2 * pi) + 0.5 * log_det + SHAPE * log(RATE) - (SHAPE + n / 2) * log(rate) + gamma


def test_sample_by_sample_is_all_samples_at_once():
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    regressions = Regressions(np.array([[True] * 3, [True, True, False]]), 30)
    for row, target in zip(z, y, strict=True):
        regressions.update(np.stack([row, row * [1, 1, 0]]), np.full(2, target), np.array([True, True]))
    closed = [evidence_in_closed_form(z, y), evidence_in_closed_form(z[:, :2], y)]
    assert np.allclose(regressions.log_evidence, closed, atol=1e-9)
    assert np.allclose(regressions.covariance[0], np.linalg.inv(PRECISION * np.eye(3) + z.T @ z))
    mean, deviation = regressions.predict(np.array([[1.0, 0, 0]]), np.array([0]))
    assert mean[0] == pytest.approx(np.linalg.solve(PRECISION * np.eye(3) + z.T @ z, z.T @ y)[0])
    assert deviation[0] > 0


# ---------------------------------------------------------------- posterior


def brute_force(log_scores: np.ndarray, max_parents: int) -> np.ndarray:
    """Edge probabilities from every graph there is, each as often as there are orders that it agrees with."""
    d = len(log_scores)
    t = tables(d, max_parents, 1)
    row = {tuple(p): f for f, p in enumerate(t.parents.tolist())}
    pairs = [(i, j) for i in range(d) for j in range(d) if i != j]
    total, edges = 0.0, np.zeros((d, d))
    for present in product([False, True], repeat=len(pairs)):
        adjacency = np.zeros((d, d), dtype=bool)
        for (i, j), there in zip(pairs, present, strict=True):
            adjacency[i, j] = there
        if adjacency.sum(0).max() > max_parents:
            continue
        orders = sum(all(o.index(i) < o.index(j) for i, j in np.argwhere(adjacency)) for o in permutations(range(d)))
        if orders:
            families = [row[tuple(np.delete(adjacency[:, j], j).tolist())] for j in range(d)]
            weight = orders * np.exp(sum(log_scores[j, f] for j, f in enumerate(families)))
            total, edges = total + weight, edges + weight * adjacency
    return edges / total


@pytest.mark.parametrize(("d", "max_parents"), [(2, 1), (3, 1), (3, 2), (4, 2), (4, 3)])
def test_edge_probabilities_are_those_of_all_graphs(d, max_parents):
    t = tables(d, max_parents, 1)
    log_scores = np.random.default_rng(d).normal(scale=2.0, size=(d, len(t.masks)))
    assert np.allclose(edge_probabilities(log_scores, t), brute_force(log_scores, max_parents), atol=1e-12)


@pytest.mark.parametrize("d", [3, 7, 10])
def test_plain_numbers_and_logarithms_agree(d, monkeypatch):
    t = tables(d, 3, 1)
    log_scores = np.random.default_rng(d).normal(scale=4.0, size=(d, len(t.masks)))
    plain = edge_probabilities(log_scores, t)
    monkeypatch.setattr(posterior_module, "PLAIN_RANGE", 0.0)
    assert np.allclose(edge_probabilities(log_scores, t), plain, atol=1e-9)
    assert plain.max() > 0.5 and not np.array_equal(edge_probabilities(log_scores, t), plain)  # logarithms round otherwise


def test_scores_that_would_underflow_do_not():
    t = tables(4, 3, 1)
    log_scores = np.random.default_rng(0).normal(scale=2.0, size=(4, len(t.masks)))
    edges = edge_probabilities(1e4 * log_scores - 1e6, t)
    assert np.isfinite(edges).all() and set(edges.round(6).ravel()) == {0.0, 1.0}


def test_the_prior_is_what_the_docs_say():
    posterior = EdgePosterior(4, 2, 1, 1)
    sizes = posterior._tables.parents.sum(1)
    assert np.allclose(posterior.log_scores, [-log(comb(3, n) * 3) for n in sizes])
    edges = posterior.edges()
    assert np.allclose(edges[~np.eye(4, dtype=bool)], edges[0, 1]) and np.all(np.diag(edges) == 0)


def test_a_variable_set_by_hand_says_nothing_about_its_causes():
    posterior = EdgePosterior(3, 2, 1, 2)
    posterior.update(np.array([0.3, -1.0, 2.0]), np.array([[0.3], [-1.0], [2.0]]), None)
    before = posterior.log_scores.copy()
    posterior.update(np.array([2.0, 1.0, 0.0]), np.array([[2.0], [1.0], [0.0]]), 1)
    assert np.array_equal(posterior.log_scores[1], before[1])
    assert np.all(posterior.log_scores[[0, 2]] != before[[0, 2]])


@pytest.mark.parametrize("mechanism", ["linear", "nonlinear"])
@pytest.mark.parametrize("structure", list(STRUCTURES))
def test_enough_experiments_find_the_true_graph(structure, mechanism):
    env = CausalInterventionEnv(structure, n_variables=4, mechanism=mechanism, n_observations=100, n_samples=50, budget=16)
    env.reset(seed=1)
    for action in range(1, 16):
        _, _, _, _, info = env.step(action)
    # Edges that are there are certain, and none is believed backwards. One edge too many is refuted slowly: its odds fall as
    # 1 / sqrt(samples), so that chance leaves doubt about one or the other.
    truth = env.model.adjacency()
    assert env._edges[truth].min() > 0.99 and env._edges.T[truth].max() < 0.01 and env._edges[~truth].mean() < 0.1
    assert info["potentials"]["structure"] > 0.95 and info["potentials"]["parent"] > 0.9


# ---------------------------------------------------------------- graphs and models


@pytest.mark.parametrize("structure", list(STRUCTURES))
@pytest.mark.parametrize("d", [2, 3, 5, 10])
def test_drawn_graphs_are_acyclic_connected_and_shuffled(structure, d):
    seen = set()
    for seed in range(30):
        graph = draw_graph(structure, d, 3, np.random.default_rng(seed))
        assert sorted(graph) == list(range(d)) and nx.is_directed_acyclic_graph(graph) and nx.is_weakly_connected(graph)
        assert graph.in_degree(0) >= 1 and max(dict(graph.in_degree).values()) <= 3
        seen.add(frozenset(graph.edges))
    assert len(seen) > {2: 0, 3: 0}.get(d, 3)


@pytest.mark.parametrize(
    ("structure", "edges"),
    [
        ("chain", {(0, 1), (1, 2), (2, 3), (3, 4)}),
        ("fork", {(0, 1), (0, 2), (0, 3), (0, 4)}),
        ("star", {(0, 3), (1, 3), (2, 3), (3, 4)}),
        ("collider", {(0, 1), (2, 1), (2, 3), (4, 3)}),
    ],
)
def test_the_families_are_what_their_names_say(structure, edges):
    assert set(STRUCTURES[structure](5, 3, np.random.default_rng(0))) == edges
    graph = draw_graph(structure, 5, 3, np.random.default_rng(0))
    assert nx.is_isomorphic(graph, nx.DiGraph(edges))


def worked_model() -> CausalModel:
    """1 -> 2 -> 0 and 1 -> 0: x2 = 1 + 2 x1, x0 = 3 x2 - x1, without noise."""
    coefficients = np.zeros((3, 1, 3))
    coefficients[1, 0, 2], coefficients[2, 0, 0], coefficients[1, 0, 0] = 2.0, 3.0, -1.0
    return CausalModel(nx.DiGraph([(1, 2), (2, 0), (1, 0)]), "linear", coefficients, np.array([0.0, 0.0, 1.0]), np.zeros(3))


def test_interventions_by_hand():
    model, nothing = worked_model(), np.zeros((1, 3))
    assert model.intervene(nothing).tolist() == [[3.0, 0.0, 1.0]]
    assert model.intervene(nothing, 1, 2.0).tolist() == [[13.0, 2.0, 5.0]]
    assert model.intervene(nothing, 2, 2.0).tolist() == [[6.0, 0.0, 2.0]]  # its cause is cut off
    assert model.intervene(nothing, 0, 7.0).tolist() == [[7.0, 0.0, 1.0]]  # effects do not move causes
    assert model.means(0, np.array([1, 2, -1]), np.array([2.0, 2.0, 0.0])).tolist() == [13.0, 6.0, 3.0]


def test_linear_means_are_exact_and_nonlinear_ones_close():
    rng = np.random.default_rng(3)
    for mechanism, tolerance in (("linear", 0.03), ("nonlinear", 0.15)):
        model = draw_model(draw_graph("random", 5, 3, rng), mechanism, 1.0, rng)
        variables, values = np.array([1, 2, 3, 4]), np.array([-2.0, 1.0, 0.0, 2.0])
        noise = rng.standard_normal((200_000, 5))
        sampled = [model.intervene(noise, int(i), v)[:, 0].mean() for i, v in zip(variables, values, strict=True)]
        assert np.allclose(model.means(0, variables, values), sampled, atol=tolerance), mechanism


def test_effects_come_from_experiments_alone():
    effects = Effects(3, np.array([-1.0, 1.0]), "linear", np.array([1.0, 3.0]), 1.0, 400)
    assert effects.estimates()[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    for _ in range(200):
        effects.update(1, 1.0, 2.0 + 3.0)
        effects.update(1, -1.0, 2.0 - 3.0)
    mean, deviation = effects.estimates()
    assert np.allclose(mean[0] * np.sqrt((1 + 2) / 3), [-3.0, 3.0], atol=0.02) and mean[1].tolist() == [0.0, 0.0]
    assert deviation[0].max() < 0.1 < deviation[1].min()


# ---------------------------------------------------------------- env

OPTIONS = [
    {},
    {"mechanism": "nonlinear", "n_variables": (3, 6), "actions": "multi_discrete"},
    {"actions": "box", "n_samples": 3, "n_observations": 0},
    {"n_variables": 10, "structures": ["random", "star"], "budget": 3},
    {"graph": [(1, 0), (2, 1)]},
]


@pytest.mark.filterwarnings("ignore:.*A Box observation space")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_passes_both_checkers(options):
    check_env(gym.make(ENV_ID, **options).unwrapped, skip_render_check=True)
    sb3_check_env(gym.make(ENV_ID, **options))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_same_seed_same_episode(options):
    one, two = CausalInterventionEnv(**options), CausalInterventionEnv(**options)
    two.reset(seed=99)  # what went before leaves no trace
    one.action_space.seed(0)
    a, b = one.reset(seed=7)[0], two.reset(seed=7)[0]
    assert np.array_equal(a, b)
    for _ in range(one.budget):
        action = one.action_space.sample()
        a, b = one.step(action), two.step(action)
        assert np.array_equal(a[0], b[0]) and a[1:] == b[1:]
    one.reset(seed=8), two.reset(seed=7)  # another episode; without observations it only shows in the first step
    assert not np.array_equal(one.step(action)[0], two.step(action)[0])


def test_members_of_a_group_share_the_noise_whatever_they_do():
    one, two = CausalInterventionEnv(structures="chain"), CausalInterventionEnv(structures="chain")
    one.reset(seed=5), two.reset(seed=5)
    for a, b in ((1, 20), (7, 3), (0, 0)):
        last = one.step(a), two.step(b)
    assert last[0][4]["target"] == last[1][4]["target"]  # both look on: the same noise, so the same sample


@pytest.mark.parametrize("vec_env", [None, SubprocVecEnv])
def test_groups_start_alike_on_host_envs(vec_env):
    env = make_vec_env(ENV_ID, 2, vec_env_cls=vec_env, wrapper_class=SeededResetWrapper)
    model = GRPO("MlpPolicy", VecNormalize(env, norm_reward=False), n_steps=32, group_size=4, seed=0).learn(128)
    env.close()
    assert model.groups.start_mismatches == 0 and model.groups.next_group > 2


def test_save_load_and_ppo(tmp_path):
    model = GRPO("MlpPolicy", ENV_ID, n_steps=64, group_size=4, seed=0).learn(128)
    model.save(tmp_path / "model")
    assert GRPO.load(tmp_path / "model", env=gym.make(ENV_ID)).learn(128, reset_num_timesteps=False).num_timesteps == 256
    PPO("MlpPolicy", gym.make(ENV_ID, actions="multi_discrete"), n_steps=64).learn(64)


def test_smaller_graphs_are_padded_and_absent_variables_cannot_be_set():
    env = CausalInterventionEnv(n_variables=(3, 6), structures="chain")
    sizes = set()
    for seed in range(20):
        parts = env.parts(env.reset(seed=seed)[0])
        sizes.add(env.d)
        assert parts["present"].tolist() == [1.0] * env.d + [0.0] * (6 - env.d)
        assert not parts["edges"][env.d :].any() and not parts["deviations"][env.d - 1 :].any()
        assert parts["edges"][: env.d, : env.d].sum() > 0
        obs, _, _, _, info = env.step(env.action_space.n - 1)
        assert info["intervention"] == ((5, 2.0) if env.d == 6 else (None, None))
        assert env.parts(obs)["left"] == pytest.approx(0.9)
    assert sizes == {3, 4, 5, 6}


def test_actions_say_variable_and_value():
    grid = np.array([-2.0, 0.0, 2.0])
    _, discrete = make_actions("discrete", 3, grid)
    assert [discrete(a) for a in range(7)] == [(None, 0.0), (1, -2.0), (1, 0.0), (1, 2.0), (2, -2.0), (2, 0.0), (2, 2.0)]
    _, multi = make_actions("multi_discrete", 3, grid)
    assert multi(np.array([2, 0])) == (2, -2.0) and multi(np.array([0, 2]))[0] is None
    _, box = make_actions("box", 3, grid)
    assert box(np.array([-1.0, 0.2, 0.1, 0.5])) == (1, 1.0) and box(np.array([1.0, 0.2, 0.1, 0.5]))[0] is None


def test_observed_edges_and_tries_are_the_envs():
    env = CausalInterventionEnv(budget=4)
    env.reset(seed=0)
    for action in (1, 6, 6):
        obs, *_ = env.step(action)
    parts = env.parts(obs)
    assert parts["tried"].tolist() == [0.0, 0.25, 0.5, 0.0, 0.0] and parts["left"][0] == 0.25
    assert np.allclose(parts["edges"], env.posterior.edges(), atol=1e-6)


# ---------------------------------------------------------------- rewards


def play(env: CausalInterventionEnv, choose, seed: int) -> tuple[float, dict[str, float], dict[str, float]]:
    """Return, summed components, difference of potentials of one episode."""
    obs, info = env.reset(seed=seed)
    start, rng = info["potentials"], np.random.default_rng(seed)
    total, parts, over = 0.0, dict.fromkeys(WEIGHTS, 0.0), False
    while not over:
        obs, reward, over, _, info = env.step(choose(env.parts(obs), rng))
        total += reward
        parts = {name: parts[name] + info["rewards"][name] for name in parts}
    return total, parts, {name: info["potentials"][name] - start[name] for name in parts}


def constant(action: int):
    return lambda parts, rng: action


@pytest.mark.parametrize("name", list(BASELINES))
def test_an_episode_pays_the_difference_of_potentials(name):
    env = CausalInterventionEnv(n_variables=(3, 6), mechanism="nonlinear")
    for seed in range(10):
        total, parts, differences = play(env, BASELINES[name], seed)
        assert parts == pytest.approx(differences, abs=1e-12)
        assert total == pytest.approx(sum(WEIGHTS[k] * v for k, v in differences.items()))
        assert all(-1.0 <= v <= 1.0 for v in differences.values())


@pytest.mark.parametrize("off", list(WEIGHTS))
def test_a_weight_of_0_takes_away_exactly_its_component(off):
    full, less = CausalInterventionEnv(), CausalInterventionEnv(reward_weights={off: 0.0})
    full.action_space.seed(0)
    moved = 0.0
    for seed in range(5):
        full.reset(seed=seed), less.reset(seed=seed)
        for _ in range(full.budget):
            action = full.action_space.sample()
            (_, with_it, *_, info), (_, without, *_) = full.step(action), less.step(action)
            assert with_it - without == pytest.approx(WEIGHTS[off] * info["rewards"][off], abs=1e-12)
            moved += abs(info["rewards"][off])
    assert moved > 0.1


def test_balanced_accuracy_by_hand():
    score = BalancedAccuracy(np.array([True, False, False]))
    assert score(np.array([0.8, 0.5, 0.1])) == pytest.approx((0.8 + (0.5 + 0.9) / 2) / 2)
    assert score(np.full(3, 0.3)) == pytest.approx(0.5)
    assert BalancedAccuracy(np.array([True, True]))(np.array([0.2, 0.6])) == pytest.approx(0.4)


def test_constant_interventions_earn_less_than_sensible_ones():
    env, seeds = CausalInterventionEnv(), range(20)

    def mean_return(choose) -> float:
        return float(np.mean([play(env, choose, seed)[0] for seed in seeds]))

    best_constant = max(mean_return(constant(action)) for action in range(0, env.action_space.n, 2))
    assert mean_return(BASELINES["upper_confidence"]) > best_constant + 0.2


def test_repetition_cannot_farm_reward_however_long_it_goes_on():
    env = CausalInterventionEnv(budget=300)
    for seed in range(3):
        for choose in (constant(1), lambda parts, rng: 1 if parts["left"][0] * 300 % 2 < 1 else 20):
            total, parts, _ = play(env, choose, seed)
            assert total <= sum(WEIGHTS.values()) and max(parts.values()) <= 1.0
            # Most of what there was to learn from it came early: the second half of the budget pays next to nothing.
            env.reset(seed=seed)
            obs, late = env._observation(), 0.0
            for step in range(300):
                obs, reward, *_ = env.step(choose(env.parts(obs), None))
                late += reward if step >= 150 else 0.0
            assert late < 0.1


@pytest.mark.parametrize("mechanism", ["linear", "nonlinear"])
@pytest.mark.parametrize(("max_value", "noise"), [(1e6, 1.0), (1e-6, 1e-6), (2.0, 1e6), (1e6, 1e-6), (1e6, 1e6)])
def test_extreme_ranges_stay_finite_and_bounded(max_value, noise, mechanism):
    env = CausalInterventionEnv(n_variables=10, max_value=max_value, noise=noise, mechanism=mechanism, budget=30)
    env.action_space.seed(0)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for seed in range(3):
            env.reset(seed=seed)
            for _ in range(30):
                obs, reward, _, _, info = env.step(env.action_space.sample())
                assert env.observation_space.contains(obs) and abs(reward) <= sum(WEIGHTS.values())
                assert all(-1e-9 <= p <= 1 + 1e-9 for p in info["potentials"].values())


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"structures": "ring"}, r"structures=\('ring',\): choose one or more of chain, fork"),
        ({"structures": []}, r"structures=\(\): choose"),
        ({"n_variables": 11}, r"n_variables=11 must lie between 2 and 10"),
        ({"n_variables": (5, 3)}, r"n_variables=\(5, 3\) must be an integer, or the smallest and the largest"),
        ({"n_variables": 1}, r"n_variables=1 must lie between 2 and 10"),
        ({"graph": [(0, 1), (1, 2), (2, 0)]}, r"graph has a cycle \(0 -> 1 -> 2 -> ...\).*remove one"),
        ({"graph": [(0, 1)]}, r"variable 0 of graph is the target and has no parents"),
        ({"graph": [(1, 0), (4, 0)]}, r"graph has the nodes \[0, 1, 4\], but must have 0 to d - 1"),
        ({"graph": [(i, 0) for i in range(1, 6)]}, r"variable 0 of graph has 5 parents, more than max_parents=3"),
        ({"graph": nx.path_graph(11, nx.DiGraph).reverse()}, r"n_variables=11 must lie between 2 and 10"),
        ({"mechanism": "cubic"}, r"mechanism='cubic': choose 'linear', 'nonlinear'"),
        ({"actions": "tuple"}, r"actions='tuple': choose 'discrete'"),
        ({"budget": 0}, r"budget=0 must be an integer of at least 1"),
        ({"n_values": 1}, r"n_values=1 must be an integer of at least 2"),
        ({"n_observations": 2.5}, r"n_observations=2.5 must be an integer of at least 0"),
        ({"max_value": float("inf")}, r"max_value=inf must be a positive number of at most 1e\+06: choose"),
        ({"max_value": 1e7}, r"max_value=10000000.0 must be a positive number of at most 1e\+06"),
        ({"noise": 0.0}, r"noise=0.0 must be a positive number"),
        ({"noise": float("nan")}, r"noise=nan must be a positive number"),
        ({"reward_weights": {"speed": 1.0}}, r"unknown component 'speed': choose among optimization, structure"),
        ({"reward_weights": {"parent": -1.0}}, r"reward_weights\['parent'\]=-1.0 must be finite and not negative"),
        ({"reward_weights": {"parent": float("nan")}}, r"reward_weights\['parent'\]=nan must be finite"),
    ],
)
def test_bad_arguments_are_named_with_the_remedy(arguments, says):
    with pytest.raises(ValueError, match=says):
        gym.make(ENV_ID, **arguments)


@pytest.mark.parametrize(
    ("kind", "action"),
    [("discrete", 21), ("discrete", -1), ("multi_discrete", np.array([5, 0])), ("box", np.full(6, np.nan, np.float32))],
)
def test_actions_outside_the_space_are_refused(kind, action):
    env = CausalInterventionEnv(actions=kind)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="it names no variable and value"):
        env.step(action)


def test_nothing_is_left_after_the_budget():
    env = CausalInterventionEnv(budget=1)
    env.reset(seed=0)
    assert env.step(1)[2]
    with pytest.raises(ValueError, match=r"the budget of 1 experiments is spent: call reset\(\)"):
        env.step(1)


def test_a_model_refuses_cycles_unknown_variables_and_values_that_are_no_numbers():
    model = worked_model()
    with pytest.raises(ValueError, match="intervention on variable 3, but there are 0 to 2"):
        model.intervene(np.zeros((1, 3)), 3, 1.0)
    with pytest.raises(ValueError, match="value nan on variable 1: choose a finite"):
        model.intervene(np.zeros((1, 3)), 1, float("nan"))
    cyclic = nx.DiGraph([(0, 1), (1, 0)])
    with pytest.raises(ValueError, match="has a cycle"):
        CausalModel(cyclic, "linear", np.zeros((2, 1, 2)), np.zeros(2), np.ones(2))
    with pytest.raises(ValueError, match="bias of a CausalModel must be finite"):
        CausalModel(nx.DiGraph([(0, 1)]), "linear", np.zeros((2, 1, 2)), np.array([0.0, np.inf]), np.ones(2))


def test_without_networkx_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match=r"pip install -e '.\[causal\]'"):
        gym.make(ENV_ID)


# ---------------------------------------------------------------- policy and baselines


def relabelled(obs: np.ndarray, env: CausalInterventionEnv, label: list[int]) -> np.ndarray:
    """The observation had variable i been called label[i]."""
    new, old, arms = np.zeros_like(obs), env.parts(obs), [i - 1 for i in label[1:]]
    parts = env.parts(new)  # views
    for name in ("present", "tried"):
        parts[name][label] = old[name]
    parts["edges"][np.ix_(label, label)] = old["edges"]
    for name in ("effects", "deviations"):
        parts[name][arms] = old[name]
    parts["left"][:] = old["left"]
    return new


def test_the_shared_network_does_not_care_about_labels():
    env = CausalInterventionEnv(n_variables=4, n_values=3)
    model = GRPO(InterventionPolicy, env, n_steps=64, seed=0)
    env.reset(seed=0)
    for action in (1, 5, 9):
        obs, *_ = env.step(action)
    label = [0, 3, 1, 2]
    other = relabelled(obs, env, label)
    one, two = model.policy.get_distribution(th.tensor(np.stack([obs, other]))).distribution.logits.detach().numpy()
    assert one[0] == pytest.approx(two[0], abs=1e-6)
    for i in (1, 2, 3):
        old, new = 1 + (i - 1) * 3, 1 + (label[i] - 1) * 3
        assert one[old : old + 3] == pytest.approx(two[new : new + 3], abs=1e-6)
    assert np.ptp(one[1:]) > 1e-4


def test_the_shared_network_learns_saves_and_loads(tmp_path):
    model = GRPO(InterventionPolicy, ENV_ID, n_steps=64, group_size=4, seed=0, policy_kwargs={"net_arch": [8]}).learn(128)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=gym.make(ENV_ID)).learn(64, reset_num_timesteps=False)
    obs = gym.make(ENV_ID).reset(seed=0)[0]
    assert loaded.predict(obs)[0] in range(21) and sum(p.numel() for p in loaded.policy.parameters()) == 12 * 8 + 8 + 8 + 1


@pytest.mark.parametrize(
    "env", [lambda: gym.make(ENV_ID, actions="multi_discrete"), lambda: gym.make("CartPole-v1")], ids=["actions", "env"]
)
def test_the_shared_network_refuses_other_spaces(env):
    with pytest.raises(ValueError, match=r"InterventionPolicy cannot read.*Use MlpPolicy instead"):
        GRPO(InterventionPolicy, env())


def test_baselines_do_what_their_names_say():
    env, rng = CausalInterventionEnv(n_variables=3, n_values=3), np.random.default_rng(0)
    parts = env.parts(np.zeros(env.observation_space.shape, np.float32))
    parts["present"][:] = 1.0
    parts["effects"][:] = [[0.0, 0.1, 0.5], [0.4, 0.2, -1.0]]
    parts["deviations"][:] = [[0.1, 0.1, 0.1], [0.1, 1.0, 0.1]]
    parts["edges"][1, 2], parts["edges"][2, 0] = 0.99, 0.5
    assert greedy_target(parts, rng) == 3 and upper_confidence(parts, rng) == 5
    assert {greedy_information(parts, rng) for _ in range(20)} == {4, 6}  # variable 2, its extremes
    assert {at_random(parts, rng) for _ in range(200)} == set(range(1, 7))
    parts["present"][2] = 0.0
    assert {baseline(parts, rng) for baseline in BASELINES.values() for _ in range(50)} <= {1, 2, 3}


def test_the_docs_example_runs_as_written(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "docs/causal.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    exec(blocks[0], {})
    assert "optimization" in capsys.readouterr().out
