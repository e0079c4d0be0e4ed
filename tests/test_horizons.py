"""Predictions over several horizons against sums that are known, and what a fit on them can do."""

import pytest
import torch as th

from sb_grpo import GRPO, AdvantageOptions
from sb_grpo.baselines.horizons import HORIZONS, Horizons
from sb_grpo.baselines.state import StateBaseline
from tests.helpers import make_rollout
from tests.test_baseline import rollout_of

DIRECTION = th.nn.functional.normalize(th.tensor([1.0, -2.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.5]), dim=0)


def wave(x: th.Tensor) -> th.Tensor:
    """A function of ten inputs that changes in one direction only."""
    return 3.0 * th.sin(1.5 * x @ DIRECTION)



def test_sums_of_rewards_and_ends():
    """Ten steps of reward 2, told apart by the observation; then the env ends the episode, or the rollout cuts it."""
    one_hot = th.eye(11)
    x, x_final = one_hot[:10].repeat(40, 1), one_hot[10:].repeat(40, 1)
    for ended in (True, False):
        rollout = make_rollout([[2.0] * 10] * 40, [i // 8 for i in range(40)], terminated=th.tensor([ended] * 40))
        horizons = Horizons(11, seed=0, fit_rows=4096)
        for _ in range(60):
            horizons.learn(rollout, AdvantageOptions(), x, x_final)
        predicted = horizons(one_hot[:10])
        left = th.arange(10, 0, -1.0)
        for k, horizon in enumerate(HORIZONS):
            gamma = 1.0 - 1.0 / horizon
            if ended:
                expected = 2.0 * (1.0 - gamma**left) * horizon
                th.testing.assert_close(predicted[:, k], expected, atol=0.3, rtol=0.02)
            if ended and k > 0:
                ends = predicted[:, len(HORIZONS) + k - 1]
                th.testing.assert_close(ends, gamma ** (left - 1.0), atol=0.03, rtol=0.0)
            if not ended and k > 0:  # no end was seen
                assert float(predicted[:, len(HORIZONS) + k - 1].abs().max()) < 1e-5


def test_what_an_episode_is_given_comes_from_the_rollouts_before():
    th.manual_seed(0)
    horizons, x = Horizons(10, seed=0, fit_rows=4096), th.randn(400, 10)
    horizons.learn(rollout_of(x, wave(x)), AdvantageOptions(), x, x)
    before = horizons(x)
    given, _ = horizons.learn(rollout_of(x, 100.0 + wave(x)), AdvantageOptions(), x, x)
    th.testing.assert_close(given, before)
    assert float((horizons(x)[:, 0] - before[:, 0]).mean()) > 10.0


def test_a_second_layer_fits_what_one_kernel_cannot():
    """A step along one direction of ten: too sharp for a kernel that is as wide as it must be in ten dimensions."""

    def explained(**kwargs) -> float:
        th.manual_seed(0)
        baseline = StateBaseline(10, **kwargs)
        for _ in range(12):
            x = th.randn(800, 10)
            y = 3.0 * th.sign(x @ DIRECTION)
            _, share = baseline.advantages(rollout_of(x, y), AdvantageOptions(normalize="none"), x, x)
        return share

    one, two = explained(), explained(horizons=True)
    assert two > 0.8 and 1.0 - two < 0.75 * (1.0 - one)


@pytest.mark.parametrize("kwargs", [{}, dict(fit_rows=100)])
def test_it_goes_with_the_other_options(kwargs):
    th.manual_seed(0)
    baseline = StateBaseline(10, horizons=True, **kwargs)
    for _ in range(6):
        x = th.randn(800, 10)
        advantages, share = baseline.advantages(rollout_of(x, wave(x)), AdvantageOptions(), x, x)
    assert bool(th.isfinite(advantages).all()) and share > 0.5


def test_it_is_saved_with_the_model(tmp_path):
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=64, advantage_kwargs=dict(horizons=True), seed=0, device="cpu")
    model.learn(256)
    model.save(tmp_path / "model")
    loaded, x = GRPO.load(tmp_path / "model", device="cpu"), th.randn(5, 4)
    mine, other = model.estimator, loaded.estimator
    th.testing.assert_close(other.horizons(x), mine.horizons(x))
    th.testing.assert_close(other.predict(other.horizons(x)), mine.predict(mine.horizons(x)))
    loaded.set_env(model.get_env())
    loaded.learn(128, reset_num_timesteps=False)
