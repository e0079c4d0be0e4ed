"""Vector rewards: summed then normalised, or normalised each and then summed (GDPO)."""

import math

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

from sb_grpo import GRPO, CountBonus
from sb_grpo.advantages import estimate_advantages, total_rewards, weighted_rewards
from sb_grpo.baselines.estimators import Outcome
from sb_grpo.config import Rewards
from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.random import uniform
from sb_grpo.maths.estimators import outcome
from sb_grpo.types import AdvantageOptions, Estimate, select_episodes
from tests.helpers import ProbeEnv, make_rollout
from tests.test_grouping import weights

SMALL = dict(n_steps=64, batch_size=32, n_epochs=2, group_size=2, seed=0)


class TwoGoals(ProbeEnv):
    """Action 1 pays 1 in "win" and costs 1,000 per unit in "cost"; the env's own reward says nothing."""

    def __init__(self, form=dict, win=1.0, cost=-1000.0):
        super().__init__("observation")
        self.form, self.win, self.cost = form, win, cost

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        rewards = {"win": self.win * reward, "cost": self.cost * float(self.np_random.random() < 0.5), "unused": 7.0}
        reported = rewards if self.form is dict else np.array([rewards["win"], rewards["cost"]])
        return obs, 0.0, terminated, truncated, {**info, "rewards": reported}


class TensorGoals(FunctionalTensorEnv):
    """The same two goals on tensors: the state is a bit and a counter."""

    objective_names = ("win", "cost")

    def __init__(self, num_envs, broken=False):
        self.broken = broken
        super().__init__(num_envs, spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2), 4)

    def initial_state(self, seeds):
        return 2.0 * (uniform(seeds, 1) > 0.5) - 1.0

    def transition(self, state, actions):
        win = (2.0 * actions - 1.0 == state[:, 0]).float()
        cost = -1000.0 * actions
        if self.broken:
            cost = cost / 0.0
        self.objectives = th.stack([win, cost], 1)
        return state, th.zeros_like(win), th.zeros_like(win, dtype=th.bool)


def judged(rollout, weight, normalization="each", estimator=None, **rewards):
    """What outcome supervision says of a rollout with these weights of its objectives."""
    settings = Rewards(objectives=dict(enumerate(weight)), normalization=normalization, **rewards)
    weights = th.tensor(weight)
    rollout = total_rewards(rollout, settings, weights)
    return estimate_advantages(estimator or Outcome(), rollout, None, AdvantageOptions(), settings, weights)


def one_step_rollout(objectives):
    objectives = th.tensor(objectives)
    return make_rollout([[0.0]] * len(objectives), [0] * len(objectives))._replace(objectives=objectives)


def test_sum_then_normalise_and_normalise_then_sum():
    """Rewards (0, 0), (0, 1000), (2, 0), (2, 1000), weights 1 and 1: the sum only sees the thousands; z-scores see both."""
    rollout = one_step_rollout([[0.0, 0.0], [0.0, 1000.0], [2.0, 0.0], [2.0, 1000.0]])
    summed = weighted_rewards(rollout, th.tensor([1.0, 1.0]))
    assert summed.rewards.tolist() == [0.0, 1000.0, 2.0, 1002.0]
    by_sum = judged(rollout, [1.0, 1.0], "sum").advantages
    th.testing.assert_close(by_sum, outcome(summed, AdvantageOptions()))
    assert float((by_sum[0] - by_sum[2]).abs()) < 0.005
    each = judged(rollout, [1.0, 1.0]).advantages
    # z-scores (-1, -1), (-1, 1), (1, -1), (1, 1): sums -2, 0, 0, 2, over the root mean square of those that are not 0
    th.testing.assert_close(each, th.tensor([-1.0, 0.0, 0.0, 1.0]))


def test_weights_are_weights_of_normalised_advantages():
    rollout = one_step_rollout([[0.0, 0.0], [0.0, 1000.0], [2.0, 0.0], [2.0, 1000.0]])
    got = judged(rollout, [3.0, 1.0]).advantages
    expected = th.tensor([-4.0, -2.0, 2.0, 4.0]) / math.sqrt(10.0)
    th.testing.assert_close(got, expected)


def test_an_objective_without_spread_and_a_group_without_any_stay_silent():
    rollout = one_step_rollout([[0.0, 5.0], [2.0, 5.0], [1.0, 5.0], [1.0, 5.0]])._replace(
        group=th.tensor([0, 0, 1, 1]), n_groups=2
    )
    got = judged(rollout, [1.0, 1.0]).advantages
    th.testing.assert_close(got, th.tensor([-1.0, 1.0, 0.0, 0.0]))


def test_bounds_apply_to_every_objective():
    rollout = one_step_rollout([[0.0], [3.0], [1.0]])
    got = judged(rollout, [1.0], scaling="clip", clip=1.0).advantages
    th.testing.assert_close(got[1], got[2])


def test_explained_variance_is_the_mean_over_objectives():
    class Known(Outcome):
        def estimate(self, rollout, options, features=None, objective=0):
            return Estimate(rollout.rewards - 0.5, [0.2, 0.6][objective])

    rollout = one_step_rollout([[0.0, 1.0], [1.0, 0.0]])
    assert math.isclose(judged(rollout, [1.0, 1.0], estimator=Known()).explained, 0.4)


@pytest.mark.parametrize("form", [dict, list])
@pytest.mark.parametrize("advantage", ["outcome", "step", "state"])
@pytest.mark.parametrize("normalization", ["sum", "each"])
def test_objectives_train_and_survive_save_and_load(form, advantage, normalization, tmp_path):
    env = DummyVecEnv([lambda: TwoGoals(form)] * 3)
    kwargs = dict(
        rewards=dict(objectives={"win": 1.0, "cost": 1e-3}, normalization=normalization), advantage=advantage, **SMALL
    )
    model, seen = GRPO("MlpPolicy", env, **kwargs), []
    original = model.compute_advantages

    def prepare(rollout):
        seen.append((rollout, original(rollout), dict(model.logger.name_to_value)))
        return seen[-1][1]

    model.compute_advantages = prepare
    before = weights(model)
    model.learn(400)
    assert (weights(model) != before).any()
    for rollout, _, logged in seen:
        assert set(rollout.objectives[:, 0].tolist()) <= {0.0, 1.0} and set(rollout.objectives[:, 1].tolist()) <= {
            0.0,
            -1000.0,
        }
        th.testing.assert_close(logged["objective/win"], float(rollout.objectives[:, 0].mean()))
        expected = float((rollout.objectives @ th.tensor([1.0, 1e-3])).mean())
        assert math.isclose(logged["group/reward_mean"], expected, abs_tol=1e-5)
    del model.compute_advantages
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=env)
    if advantage == "state":
        th.testing.assert_close(loaded.estimator.state_dict(), model.estimator.state_dict())
        assert (len(loaded.estimator) == 2) if normalization == "each" else not hasattr(loaded.estimator, "n_tasks")
    loaded.learn(200, reset_num_timesteps=False)


@pytest.mark.parametrize("normalization", ["sum", "each"])
def test_rewards_that_objectives_replace_cannot_be_changed(normalization):
    env = DummyVecEnv([lambda: TwoGoals(dict)] * 2)
    model = GRPO("MlpPolicy", env, rewards=dict(objectives={"win": 1.0, "cost": 1e-3}, normalization=normalization), **SMALL)
    rollout = model.collect()
    with pytest.raises(ValueError, match=r"rollout.rewards was changed, but .*_replace\(objectives="):
        model.update(rollout._replace(rewards=2.0 * rollout.rewards))
    changed = model.update(rollout._replace(objectives=-rollout.objectives))
    assert changed.mean_reward == pytest.approx(-float((rollout.objectives @ th.tensor([1.0, 1e-3])).mean()), abs=1e-5)
    model.update(select_episodes(rollout, th.arange(len(rollout.group)) > 0)[0])


def test_objectives_arrive_from_tensor_envs():
    model = GRPO("MlpPolicy", TensorGoals(8), rewards=dict(objectives={"win": 2.0, "cost": 0.0}), device="cpu", **SMALL)
    seen = []
    original = model.compute_advantages
    model.compute_advantages = lambda rollout: seen.append(rollout) or original(rollout)
    model.learn(1_000)
    for rollout in seen:
        th.testing.assert_close(rollout.objectives[:, 1], -1000.0 * rollout.actions.float())
    obs = model.env.reset()
    _, _, _, infos = model.env.step(np.ones(8, dtype=np.int64))
    assert infos[0]["rewards"]["cost"] == -1000.0 and infos[0]["rewards"]["win"] == float(obs[0, 0] == 1.0)


def test_only_the_normalised_sum_learns_the_small_objective():
    """ "win" pays 1, "cost" is noise of size 1,000: with equal weights only z-scores per objective show the way."""
    right = {}
    for normalization in ("sum", "each"):
        fast = dict(
            n_steps=64,
            batch_size=64,
            n_epochs=5,
            learning_rate=3e-3,
            group_size=8,
            seed=0,
            advantage="step",
            group_kwargs=dict(shared_noise=False),
        )
        env = DummyVecEnv([TwoGoals] * 8)
        model = GRPO("MlpPolicy", env, rewards=dict(objectives={"win": 1.0, "cost": 1.0}, normalization=normalization), **fast)
        model.learn(10_000)
        bits = th.tensor([[-1.0, 0.25], [1.0, 0.25], [-1.0, 0.75], [1.0, 0.75]])
        with th.no_grad():
            p = model.policy.log_prob(bits, th.tensor([0, 1, 0, 1])).exp()
        right[normalization] = float(p.mean())
    assert right["each"] > 0.9 and right["each"] > right["sum"] + 0.1


class Reports(ProbeEnv):
    def __init__(self, reported):
        super().__init__("action")
        self.reported = reported

    def step(self, action):
        *rest, info = super().step(action)
        return *rest, info | self.reported


@pytest.mark.parametrize(
    ("reported", "says"),
    [
        ({}, "the info of env 0 has no 'rewards'. Report the reward of every step by objective"),
        ({"rewards": {"win": 1.0}}, r"objectives has weights for \['cost'\], but info\['rewards'\] of env 0 holds \['win'\]"),
        ({"rewards": [1.0, 2.0, 3.0]}, r"has shape \(3,\), but objectives has 2 weights"),
        ({"rewards": [1.0, math.nan]}, "reward of env 0 for the objective 'cost' is nan. The policy has not been updated"),
        ({"rewards": {"win": math.inf, "cost": 0.0}}, "for the objective 'win' is inf"),
    ],
)
def test_rewards_that_make_no_sense(reported, says):
    model = GRPO(
        "MlpPolicy", DummyVecEnv([lambda: Reports(reported)] * 2), rewards=dict(objectives={"win": 1.0, "cost": 0.1}), **SMALL
    )
    before = weights(model)
    with pytest.raises(ValueError, match=says):
        model.learn(100)
    assert (weights(model) == before).all()


def test_a_tensor_env_whose_objectives_are_not_finite():
    model = GRPO(
        "MlpPolicy", TensorGoals(4, broken=True), rewards=dict(objectives={"win": 1.0, "cost": 1.0}), device="cpu", **SMALL
    )
    with pytest.raises(ValueError, match="reward by objective of env 0 is not finite at step 0"):
        model.learn(100)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        (dict(rewards=dict(objectives=["win"])), r"objectives=\['win'\] must be a dict of weights by name"),
        (dict(rewards=dict(objectives={})), "must be a dict of weights by name"),
        (dict(rewards=dict(objectives={"win": "1"})), r"objectives=.'win': '1'. must be a dict of weights by name"),
        (dict(rewards=dict(objectives={"win": math.inf})), "each a finite number"),
        (dict(rewards=dict(objectives={"win": 0.0})), "are all 0: there would be nothing to learn from"),
        (dict(rewards=dict(objectives={"win": 1.0}, normalization="both")), "normalization='both' is unknown"),
        (dict(rewards=dict(normalization="each")), "normalization='each' has no effect without objectives"),
        (
            dict(rewards=dict(objectives={"win": 1.0}, normalization="each"), normalize_advantage="none"),
            "'each' has no effect with normalize_advantage='none'",
        ),
        (
            dict(rewards=dict(objectives={"win": 1.0}, normalization="each", bonus=CountBonus())),
            "bonus= is added to the one reward of a step",
        ),
    ],
)
def test_arguments(kwargs, says):
    with pytest.raises(ValueError, match=says):
        GRPO("MlpPolicy", "CartPole-v1", **kwargs)


def test_a_weight_for_an_objective_that_a_tensor_env_does_not_have():
    with pytest.raises(
        ValueError, match=r"weights for \['win', 'style'\], but TensorGoals.objective_names is \['win', 'cost'\]"
    ):
        GRPO("MlpPolicy", TensorGoals(2), rewards=dict(objectives={"win": 1.0, "style": 1.0}), device="cpu")
