"""A reward that never changes: what ``hold_idle`` keeps still, and what it lets move."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from helpers import make_rollout
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.baselines.idle import Idle


class Unending(gym.Env):
    """A walk on a line that only a time limit ends. ``pays`` gives the reward of where it stands."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, pays=lambda x: -1.0):
        self.pays = pays

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-0.5, 0.5)
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x = float(np.clip(self.x + 0.1 * (action - 1) + self.np_random.normal(0, 0.02), -1, 1))
        return np.array([self.x], np.float32), self.pays(self.x), False, False, {}


def train(hold_idle, steps=20_000, **env_kwargs):
    env = make_vec_env(lambda: gym.wrappers.TimeLimit(Unending(**env_kwargs), 100), 4, seed=0)
    options = dict(n_steps=256, batch_size=256, n_epochs=10, gamma=0.99, learning_rate=1e-3, seed=1, device="cpu")
    return GRPO("MlpPolicy", env, advantage_kwargs=dict(hold_idle=hold_idle), **options).learn(steps)


def entropy(model):
    obs = th.linspace(-1, 1, 21).unsqueeze(1)
    return float(model.policy.get_distribution(obs).distribution.entropy().mean().detach())


@pytest.mark.parametrize("reward", [-1.0, pytest.param(0.1, marks=pytest.mark.slow)])
def test_a_constant_reward_stops_moving_the_policy(reward):
    held = train(True, pays=lambda x: reward)
    assert entropy(held) > 1.03 and held.last_figures["group/frac_zero_std"] == 1.0
    assert not held.estimator.idle.told
    assert entropy(train(False, pays=lambda x: reward)) < 0.95  # what it is there for


def test_a_reward_that_tells_states_apart_is_learnt_as_without_it():
    with_it, without = (train(hold, 10_000, pays=lambda x: float(x)) for hold in (True, False))
    assert with_it.estimator.idle.told
    for a, b in zip(with_it.policy.parameters(), without.policy.parameters(), strict=True):
        assert th.equal(a, b)


def test_by_hand():
    endless = dict(terminated=th.tensor([False, False]), truncated=th.tensor([True, True]))
    idle, same = Idle(), make_rollout([[-2.0, -2.0], [-2.0]], [0, 0], **endless)
    idle.look(same, first=True)
    assert float(idle.reward) == -2.0 and not idle.told
    # r / (1 - gamma) = -20: from three quarters of it on, differences are errors.
    assert not idle.is_noise(th.tensor([-14.0, -15.0]), 0.9) and idle.is_noise(th.tensor([-14.0, -17.0]), 0.9)
    assert not idle.is_noise(th.tensor([-1e6]), 1.0)  # no discount, no level
    idle.look(make_rollout([[-2.0], [-2.001]], [0, 0], **endless), first=False)
    assert idle.told and not idle.is_noise(th.tensor([-20.0]), 0.9)


def test_an_episode_that_the_env_ends_tells_states_apart():
    idle = Idle()
    idle.look(make_rollout([[1.0, 1.0], [1.0]], [0, 0]), first=True)
    assert idle.told


def test_what_it_knows_is_saved(tmp_path):
    model = train(True, 2_000)
    model.save(tmp_path / "model")
    idle = GRPO.load(tmp_path / "model").estimator.idle
    assert float(idle.reward) == -1.0 and not idle.told
