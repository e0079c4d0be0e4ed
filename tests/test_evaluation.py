"""evaluate_paired: known answers, SB3's own evaluation, and what it refuses."""

import math
import re
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from scipy import stats
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from sb_grpo import SeededResetWrapper, evaluate_paired
from sb_grpo.envs.native import Pendulum
from sb_grpo.evaluation import paired_difference

ROOT = Path(__file__).parents[1]


class Noisy(gym.Env):
    """Two steps; each pays the seed's luck, 50 times the seed, and half of the seed's bonus where the action is 1."""

    observation_space, action_space = spaces.Box(0, 1e6, (1,)), spaces.Discrete(2)

    def __init__(self, bonus=lambda seed: float(seed)):
        self.bonus = bonus

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.steps = seed or 0, 0
        return np.full(1, self.number, dtype=np.float32), {}

    def step(self, action):
        self.steps += 1
        reward = 50.0 * self.number + self.bonus(self.number) / 2 * action
        return np.full(1, self.number, dtype=np.float32), reward, self.steps == 2, False, {}


class IgnoresItsSeed(Noisy):
    def reset(self, *, seed=None, options=None):
        return np.random.rand(1).astype(np.float32), super().reset(seed=seed)[1]


def zeros(observations):
    return np.zeros(len(observations), dtype=np.int64)


def ones(observations):
    return np.ones(len(observations), dtype=np.int64)


def swing_up(gain):
    """Pendulum: with the swing where it hangs, against the angle near the top."""

    def act(observations):
        cos, sin, speed = observations.T
        angle = np.arctan2(sin, cos)
        push = np.where(np.abs(angle) < 0.6, -gain * angle - 2 * speed, 2 * np.sign(speed))
        return np.clip(push, -2, 2)[:, None].astype(np.float32)

    return act


# ---------------------------------------------------------------- the answer


@pytest.mark.parametrize("n_envs", [1, 2, 5])
def test_the_answer_by_hand(n_envs):
    """A gets 100, 200, 300, B 1, 2, 3 more: mean 2, standard error 1 / sqrt(3), 2 degrees of freedom. The variances are 10000
    and 10201, that of the difference 1: 3 (10000 + 10201) independent episodes."""
    found = evaluate_paired(zeros, ones, Noisy, [1, 2, 3], n_envs=n_envs)
    assert found.returns_a.tolist() == [100, 200, 300] and found.returns_b.tolist() == [101, 202, 303]
    assert (found.mean_a, found.mean_b, found.difference, found.episodes) == (200, 202, 2, 3)
    t = 2 * math.sqrt(3)
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t**2))
    assert (found.low, found.high) == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)))
    assert found.independent_episodes == pytest.approx(60603) and found.episodes_saved == pytest.approx(60600)
    assert found.correlation == pytest.approx(1)
    assert found.verdict == (
        "No difference between B and A is shown: mean return 202 against 200, difference 2 (95 % interval [-0.4841, 4.484], "
        "p = 0.074) from 3 pairs of episodes; without pairs 60,603 episodes of each would say as much."
    )
    turned = evaluate_paired(ones, zeros, Noisy, [1, 2, 3])
    assert (turned.difference, turned.low, turned.p) == pytest.approx((-2, -found.high, found.p))
    assert evaluate_paired(zeros, ones, Noisy, [1, 2, 3], level=0.5).high < 2.5


def test_shared_noise_makes_the_interval_narrow():
    """Luck of 1000 between seeds, an advantage of 3 or 5: unpaired nothing is seen, paired it is beyond doubt."""
    found = evaluate_paired(zeros, ones, lambda: Noisy(lambda seed: 3.0 + 2 * (seed % 2)), list(range(20)))
    unpaired = stats.ttest_ind(found.returns_b, found.returns_a).confidence_interval()
    assert unpaired.low < 0 < unpaired.high
    assert found.low > 3 and (unpaired.high - unpaired.low) / (found.high - found.low) > 500
    assert found.p < 1e-9 and found.verdict.startswith("B is better than A: ")
    assert evaluate_paired(ones, zeros, Noisy, range(20)).verdict.startswith("B is worse than A: ")


def test_a_policy_against_itself():
    found = evaluate_paired(ones, ones, Noisy, 10)
    assert (found.difference, found.low, found.high, found.p, found.correlation) == pytest.approx((0, 0, 0, 1, 1))
    assert found.seeds == tuple(range(2**30, 2**30 + 10)) and "every pair differs by the same amount" in found.verdict


def test_nothing_is_nan_where_nothing_varies():
    """Returns all equal; all equal and apart; and the same difference in every pair."""
    flat = np.full(4, 7.0)
    for a, b, p, independent in [
        (flat, flat, 1, 4),
        (flat, flat + 1, 0, 4),
        (np.arange(4.0), np.arange(4.0) + 0.1, 0, math.inf),
    ]:
        found = paired_difference(a, b, range(4), 0.95)
        assert (found.p, found.independent_episodes) == (p, independent)
        numbers = [found.low, found.high, found.correlation, found.episodes_saved, found.mean_a, found.difference]
        assert not np.isnan(numbers).any() and "nan" not in found.verdict


def test_opposite_noise_saves_less_than_nothing():
    found = paired_difference(np.array([0.0, 1.0, 5.0]), np.array([5.0, 1.0, 0.0]), [1, 2, 3], 0.95)
    assert found.correlation < 0 and found.episodes_saved < 0


def test_it_is_scipys_paired_test_and_covers():
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(300):
        noise, a, b = rng.normal(size=(3, 12))
        found = paired_difference(5 * noise + a, 5 * noise + b + 2, range(12), 0.95)
        covered.append(found.low <= 2 <= found.high)
    assert 0.92 <= np.mean(covered) <= 0.98
    test = stats.ttest_rel(found.returns_b, found.returns_a)
    assert found.p == pytest.approx(test.pvalue) and found.low == pytest.approx(test.confidence_interval().low)


def test_without_scipy_nothing_is_played(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"evaluate_paired needs SciPy .*: pip install scipy"):
        evaluate_paired(None, None, "CartPole-v1", 2)


# ---------------------------------------------------------------- the episodes


def test_episodes_are_those_of_sb3s_evaluate_policy():
    """Seeds 5 to 9, given to five envs by SB3's ``seed``, or played one after another in two."""
    model, other = PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu"), PPO("MlpPolicy", "CartPole-v1", seed=1, device="cpu")
    envs = make_vec_env("CartPole-v1", 5)
    envs.seed(5)
    returns, _ = evaluate_policy(model, envs, 5, return_episode_rewards=True)
    found = evaluate_paired(model, other.policy, "CartPole-v1", range(5, 10), n_envs=2)
    assert sorted(found.returns_a.tolist()) == sorted(returns)
    assert evaluate_paired(other, model, envs, range(5, 10)).returns_b.tolist() == found.returns_a.tolist()
    env = gym.make("CartPole-v1")
    for _ in range(2):  # what is given stays open
        assert evaluate_paired(other, model, env, range(5, 10)).returns_b.tolist() == found.returns_a.tolist()


def test_stochastic_policies_sample_from_the_same_numbers_and_leave_the_callers():
    model = PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    th.manual_seed(3)
    expected = th.rand(1)
    th.manual_seed(3)
    found = evaluate_paired(model, model, "CartPole-v1", 6, deterministic=False, n_envs=3)
    assert th.rand(1) == expected
    assert found.p == 1 and len(set(found.returns_a)) > 1


def test_a_recurrent_policy_forgets_between_episodes():
    """One after another in one env, or each in its own: the same returns."""
    model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", seed=0, n_steps=8, batch_size=8, device="cpu")
    alone, together = (evaluate_paired(model, lambda o: zeros(o), "CartPole-v1", 4, n_envs=n) for n in (1, 4))
    assert alone.returns_a.tolist() == together.returns_a.tolist()


def test_vec_normalize_stands_still_and_shows_the_envs_own_rewards():
    statistics = VecNormalize(make_vec_env("Pendulum-v1", 2))
    statistics.reset()
    for _ in range(50):
        statistics.step(np.ones((2, 1), dtype=np.float32))
    before, count = statistics.obs_rms.mean.copy(), statistics.obs_rms.count
    model = PPO("MlpPolicy", statistics, seed=0)
    wrapped = evaluate_paired(model, model, statistics, 3)
    assert statistics.training and statistics.obs_rms.count == count and (statistics.obs_rms.mean == before).all()
    apart = evaluate_paired(model, model, "Pendulum-v1", 3, normalize=(statistics, None))
    assert apart.returns_a == pytest.approx(wrapped.returns_a, rel=1e-6)
    assert apart.difference != 0 and apart.mean_a < -100  # B saw raw observations; rewards are not normalised
    unmonitored = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    unmonitored.obs_rms = statistics.obs_rms
    assert evaluate_paired(model, model, unmonitored, 3).returns_a == pytest.approx(wrapped.returns_a, rel=1e-4)


def test_a_lost_life_does_not_end_an_episode():
    """As SB3's Atari wrappers do above Monitor: done after every step, a reset goes on until the game is over."""

    class Lives(gym.Wrapper):
        over = True

        def reset(self, **options):
            if self.over:
                return self.env.reset(**options)
            return np.full(1, self.unwrapped.number, dtype=np.float32), {}

        def step(self, action):
            observation, reward, self.over, truncated, info = self.env.step(action)
            return observation, reward, True, truncated, info

    found = evaluate_paired(zeros, ones, DummyVecEnv([lambda: Lives(Monitor(Noisy()))]), [1, 2, 3])
    assert found.returns_a.tolist() == [100, 200, 300] and found.returns_b.tolist() == [101, 202, 303]


def test_tensor_envs():
    """In batches of any size the same returns; the better gain is seen."""
    few, many = (evaluate_paired(swing_up(3), swing_up(10), Pendulum(n), 12) for n in (5, 12))
    assert few.returns_a == pytest.approx(many.returns_a) and few.returns_b == pytest.approx(many.returns_b)
    host = evaluate_paired(swing_up(3), swing_up(10), "Pendulum-v1", 12)
    assert many.correlation > 0.5 and host.correlation > 0.5
    assert abs(many.mean_a - host.mean_a) < 400  # other starts, the same task


@pytest.mark.slow
def test_envs_in_processes():
    venv = make_vec_env("CartPole-v1", 2, vec_env_cls=SubprocVecEnv, wrapper_class=SeededResetWrapper)
    found = evaluate_paired(zeros, ones, venv, 5)
    venv.close()
    assert found.returns_a.tolist() == evaluate_paired(zeros, ones, "CartPole-v1", 5).returns_a.tolist()


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seeds": [3]}, "1 seed"),
        ({"seeds": 1}, "1 seed"),
        ({"seeds": [3, 4, 3]}, "holds 3 twice"),
        ({"seeds": [3, -4]}, "holds -4"),
        ({"seeds": [3, 2.5]}, "holds 2.5"),
        ({"seeds": [3, 2**31], "env": Pendulum(1)}, "from 0 to 2147483647"),
        ({"level": 95}, "level=95"),
        ({"n_envs": 0}, "n_envs=0"),
        ({"env": IgnoresItsSeed}, "seed 1073741824 start differently"),
        ({"env": lambda: Noisy(lambda seed: math.nan)}, "seed 1073741824 has the return nan"),
        ({"policy_a": 3}, "policy_a is a int"),
        ({"env": "CartPole-v1", "policy_b": PPO("MlpPolicy", "Pendulum-v1")}, "policy_b has the observation_space"),
    ],
)
def test_bad_input(options, says):
    with pytest.raises(ValueError, match=says):
        evaluate_paired(**{"policy_a": zeros, "policy_b": ones, "env": Noisy, "seeds": 3, **options})


def test_observations_are_not_normalised_twice():
    venv = VecNormalize(DummyVecEnv([Noisy]))
    with pytest.raises(ValueError, match="twice"):
        evaluate_paired(zeros, ones, venv, 3, normalize=(venv, None))


def test_tensor_env_that_ignores_its_seeds():
    class Unseeded(Pendulum):
        def initial_state(self, seeds):
            return super().initial_state(seeds) + th.rand(1)

    with pytest.raises(ValueError, match="start differently"):
        evaluate_paired(swing_up(3), swing_up(4), Unseeded(2), 4)


def page():
    """Its runnable blocks, and what it says that they print."""
    text = (ROOT / "docs/paired_evaluation.md").read_text()
    return (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "text"))


def test_the_page_as_it_stands(capsys):
    blocks, printed = page()
    exec(blocks[0], {})
    assert capsys.readouterr().out.startswith(printed[0])


@pytest.mark.slow
def test_the_trained_models_of_the_page(capsys):
    """Digits may differ between processors; that pairing is worth a lot there may not."""
    blocks, _ = page()
    exec(blocks[1], {})
    episodes = re.search(r"without pairs ([\d,]+) episodes", capsys.readouterr().out)
    assert len(blocks) == 2 and int(episodes[1].replace(",", "")) > 250
