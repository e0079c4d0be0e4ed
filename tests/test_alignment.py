"""noise_alignment on envs whose answer is known, and its correlation by hand."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sb_grpo.envs.alignment import REMEDIES, correlate, noise_alignment

LENGTH = 30


class Noisy(gym.Env):
    """Two actions; the reward of a step is noise plus what the action adds.

    ``kind`` says where the noise comes from: ``"reset"`` a path drawn there; ``"step"`` one draw per step; ``"order"`` as many
    draws per step as the action says; ``"own"`` a generator that no seed reaches, ``"own start"`` for the start too;
    ``"counter"`` a path whose place depends on the episodes before; ``"start"`` nothing but the first observation; ``"none"``
    nothing at all; ``"apart"`` as many draws per step as the action says, from a part's own generator, which reset seeds;
    ``"fading"`` a path whose weight falls to zero by the middle of the episode.
    """

    def __init__(self, kind: str, weight: float = 1.0) -> None:
        self.kind, self.weight = kind, weight
        self.observation_space, self.action_space = spaces.Box(-10.0, 10.0, (1,), np.float32), spaces.Discrete(2)
        self.own, self.resets = np.random.default_rng(5), 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.resets = 0, self.resets + 1
        self.path = self.np_random.normal(size=5 * LENGTH) if self.kind != "none" else np.zeros(5 * LENGTH)
        self.parts = [SimpleNamespace(source=np.random.RandomState(seed))]
        first = {"own": 0.0, "own start": self.own.normal()}.get(self.kind, self.path[0])
        return np.array([first], dtype=np.float32), {}

    def noise(self, action: int) -> float:
        if self.kind.startswith("own"):
            return self.own.normal()
        if self.kind == "apart":
            return self.parts[0].source.normal(size=1 + action)[0]
        if self.kind in ("step", "order"):
            return self.np_random.normal(size=1 + (action if self.kind == "order" else 0))[0]
        if self.kind == "counter":
            return self.path[self.t + 2 * (self.resets % 2)]
        fade = max(0.0, 1.0 - 2.0 * self.t / LENGTH) if self.kind == "fading" else 1.0
        return 0.0 if self.kind == "start" else fade * self.path[self.t]

    def step(self, action):
        # An action that is 0 or 2 with equal odds adds a variance of 1, that of the noise.
        reward = self.weight * self.noise(action) + 2.0 * action
        self.t += 1
        return np.zeros(1, dtype=np.float32), float(reward), False, self.t == LENGTH, {}


def measured(kind, **kwargs):
    return noise_alignment(lambda: Noisy(kind, **kwargs), n_seeds=60, max_lag=4)


@pytest.mark.parametrize("kind", ["reset", "step"])
@pytest.mark.parametrize("weight", [0.5, 1.0, 3.0])
def test_the_common_share_is_the_noises_share_of_the_variance(kind, weight):
    found = measured(kind, weight=weight)
    share = weight**2 / (1.0 + weight**2)
    assert found.verdict == "in step" and found.replays and found.starts_equal and found.seeds_matter
    assert found.lags.tolist() == list(range(-4, 5)) and found.common_share == found.correlation[4]
    assert abs(found.common_share - share) < 4 * found.standard_error[4] and found.standard_error[4] < 0.04
    assert np.abs(np.delete(found.correlation, 4)).max() < 4.5 * found.standard_error.max()
    assert np.allclose(found.thirds, share, atol=0.15)
    assert found.generator_alike == (None if kind == "reset" else 1.0)


def test_an_unseeded_generator_is_told_by_its_starts_or_by_its_rewards():
    assert "equal seeds gave unequal rewards under equal actions" in measured("own").sentence
    assert "equal seeds gave unequal starts" in measured("own start").sentence


@pytest.mark.parametrize("kind", ["order", "apart"])
def test_draws_that_depend_on_the_action_fall_out_of_step(kind):
    found = measured(kind)
    assert found.verdict == "falls out of step" and found.generator_alike < 0.3
    assert found.thirds[0] > 0.1 and found.thirds[2] < 0.1 and found.replays
    assert "in reset(), or the same number of draws" in found.sentence


def test_a_place_that_reset_does_not_set_back_is_a_lag():
    found = measured("counter")
    # Every second episode begins two places further on: what it lives through at t - 2, the first one does at t.
    assert found.verdict == "out of step by 2" and found.lags[found.correlation.argmax()] == -2 and not found.replays
    assert abs(found.correlation.max() - 0.5) < 0.1 and abs(found.common_share) < 0.1
    assert "counters and generators included" in found.sentence


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("own", "ignores its seed"), ("none", "deterministic"), ("start", "nothing in common"), ("fading", "fades")],
)
def test_verdicts(kind, verdict):
    found = measured(kind, weight=3.0)
    assert found.verdict == verdict and found.sentence.startswith(verdict.capitalize()) and REMEDIES[verdict] in found.sentence


def test_correlation_by_hand():
    # Products 2, -1, 1 over sqrt(6 * 2); the third pair's second step is missing.
    first, second = np.array([[2.0, 0.0], [1.0, 0.0], [1.0, 5.0]]), np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, np.nan]])
    correlation, error = correlate(first, second)
    assert correlation == pytest.approx(2 / np.sqrt(18)) and error > 0
    assert correlate(first, first) == pytest.approx((1.0, 0.0))
    assert correlate(np.zeros((3, 2)), second) == (0.0, 0.0)


def test_standard_error_is_the_spread_over_repetitions():
    rng, found, errors = np.random.default_rng(0), [], []
    for _ in range(300):
        noise, own = rng.normal(size=(40, 1, 10)), rng.normal(size=(40, 2, 10))
        correlation, error = correlate(*np.moveaxis(noise + own, 1, 0))
        found.append(correlation)
        errors.append(error)
    assert np.mean(found) == pytest.approx(0.5, abs=0.01) and np.mean(errors) == pytest.approx(np.std(found), rel=0.1)


def test_episodes_of_different_lengths_and_ids():
    found = noise_alignment("CartPole-v1", n_seeds=10, n_steps=50)
    assert found.verdict == "nothing in common" and not np.isnan(found.correlation).any()  # the reward is always 1
    lake = noise_alignment("FrozenLake-v1", n_seeds=60)  # who reaches the goal has outlived its partner
    assert lake.verdict == "nothing in common" and lake.common_share == 0
    pendulum = noise_alignment("Pendulum-v1", n_seeds=20, n_steps=100)
    assert pendulum.thirds[0] > 0.8 and pendulum.generator_alike is None  # the start alone is shared
    assert pendulum.verdict in ("in step", "fades")
    assert noise_alignment(lambda: Noisy("step"), n_seeds=3, n_steps=3, max_lag=2).lags.tolist() == [-2, -1, 0, 1, 2]


def test_the_policy_decides_what_is_seen_of_the_noise():
    rng = np.random.default_rng(0)
    assert measured("step").common_share < 0.6
    always = noise_alignment(lambda: Noisy("step"), n_seeds=20, policy=lambda obs: 1)
    assert always.common_share == pytest.approx(1.0)
    seldom = noise_alignment(lambda: Noisy("step"), n_seeds=60, policy=lambda obs: int(rng.random() < 0.1))
    assert abs(seldom.common_share - 1 / 1.36) < 4 * seldom.standard_error[5]  # a variance of 4 * 0.1 * 0.9 for the actions


def test_equal_calls_give_equal_metrics():
    for a, b in zip(measured("order"), measured("order"), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("sizes", [dict(n_seeds=2), dict(n_steps=2), dict(max_lag=-1), dict(n_steps=5, max_lag=5)])
def test_sizes_out_of_range_are_named(sizes):
    with pytest.raises(ValueError, match=r"3 seeds and 3 steps or more, and 0 <= max_lag < n_steps"):
        noise_alignment("CartPole-v1", **sizes)


def test_rewards_that_are_no_numbers_are_named():
    class Broken(gym.Wrapper):
        def step(self, action):
            obs, _, *rest = self.env.step(action)
            return obs, float("nan"), *rest

    with pytest.raises(ValueError, match="The reward of step 1 is nan"):
        noise_alignment(lambda: Broken(gym.make("CartPole-v1")), n_seeds=3, n_steps=3, max_lag=1)
