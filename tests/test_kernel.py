"""The features of states, and their metric, against what is known of the function that is fitted."""

import pytest
import torch as th

from sb_grpo import GRPO, AdvantageOptions
from sb_grpo.baselines.kernel import LARGEST_METRIC, KernelFeatures
from sb_grpo.baselines.state import METRIC_EVERY, StateBaseline
from tests.test_baseline import rollout_of

DIRECTION = th.nn.functional.normalize(th.tensor([1.0, -2.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.5]), dim=0)


def wave(x: th.Tensor) -> th.Tensor:
    """A function of ten inputs that changes in one direction only."""
    return 3.0 * th.sin(1.5 * x @ DIRECTION)


def fitted(rollouts: int = 12, seed: int = 0, **kwargs) -> tuple[StateBaseline, float]:
    th.manual_seed(seed)
    baseline = StateBaseline(10, **kwargs)
    for _ in range(rollouts):
        x = th.randn(800, 10)
        _, explained = baseline.advantages(rollout_of(x, wave(x)), AdvantageOptions(normalize="none"), x, x)
    return baseline, explained


@pytest.mark.parametrize("dim", [3, 70])  # with and without squares
def test_slopes_are_the_gradients(dim):
    features = KernelFeatures(dim, 16, scale=1.0, learn_metric=True, seed=0)
    features.normalizer.update(th.randn(100, dim))  # std 1, nearly
    features.normalizer.var.fill_(1.0)
    x, weights = th.randn(5, dim, requires_grad=True), th.randn(features.size)
    (gradient,) = th.autograd.grad((features(x) @ weights).sum(), x)
    th.testing.assert_close(features.slopes(x.detach(), weights), gradient)


def test_the_metric_finds_the_direction_that_matters():
    metric = fitted(learn_metric=True)[0].phi.metric
    assert float(metric.trace()) == pytest.approx(10.0, rel=1e-4)
    assert float(DIRECTION @ metric @ DIRECTION) > 0.8 * 10.0
    assert abs(float(th.linalg.eigh(metric).eigenvectors[:, -1] @ DIRECTION)) > 0.99


def test_with_it_half_the_features_explain_more():
    isotropic, learnt = fitted(n_features=256)[1], fitted(n_features=128, learn_metric=True)[1]
    assert isotropic < 0.8 < 0.95 < learnt


def test_a_change_of_the_features_leaves_the_function_and_the_past_as_they_were():
    """One more rollout, and the metric moves: on what was seen the baseline predicts what it did."""
    baseline, _ = fitted(METRIC_EVERY - 1, learn_metric=True)
    x = th.randn(800, 10)
    before_following = {}
    follow = baseline.phi.follow

    def look(inputs, weights):
        before_following["values"], before_following["features"] = baseline.predict(x), baseline.phi(x)
        return follow(inputs, weights)

    baseline.phi.follow = look
    baseline.advantages(rollout_of(x, wave(x)), AdvantageOptions(normalize="none"), x, x)
    values, features = baseline.predict(x), baseline.phi(x)
    assert float((features - before_following["features"]).abs().max()) > 0.5
    size = wave(x).std()
    assert float(((values - before_following["values"]).std(0) / size).max()) < 0.4
    wrong, wrong_before = ((v - wave(x).unsqueeze(1)).std(0) / size for v in (values, before_following["values"]))
    assert (wrong < wrong_before).all()  # what it cannot express of the old function is mostly noise
    gram, moment = baseline._moments
    assert float(gram[0, 0]) == pytest.approx(800 * sum(baseline.memory**age for age in range(4)))  # its weights sum to this
    assert len(moment) == baseline.phi.size


def test_targets_that_are_kept_follow_the_level():
    """Every reward rises by 10 per rollout: what is kept of older ones rises with it."""
    th.manual_seed(0)
    baseline = StateBaseline(2, learn_metric=True, follow_level=True, sweeps=1)
    for level in (0.0, 10.0, 20.0):
        x = th.randn(300, 2)
        baseline.advantages(rollout_of(x, level + x[:, 0]), AdvantageOptions(normalize="none"), x, x)
    for inputs, target in baseline._past:
        assert abs(float((target - 20.0 - inputs[:, 0]).mean())) < 1.0


def test_a_constant_function_and_many_inputs_keep_the_metric_they_have():
    features = KernelFeatures(4, 16, scale=1.0, learn_metric=True, seed=0)
    features.normalizer.update(th.randn(50, 4))
    assert not features.follow(th.randn(50, 4), th.zeros(features.size))
    assert features.metric.equal(th.eye(4)) and features.projection.equal(features.directions)
    wide = KernelFeatures(LARGEST_METRIC + 1, 16, scale=1.0, learn_metric=True, seed=0)
    assert "phi.metric" not in StateBaseline(4).state_dict()  # nothing to save where nothing is learnt
    assert not wide.follow(th.randn(5, LARGEST_METRIC + 1), th.randn(wide.size)) and wide.metric is None


def test_the_metric_is_saved_and_the_features_are_rebuilt_from_it():
    baseline, _ = fitted(8, learn_metric=True)
    copy = StateBaseline(10, learn_metric=True)
    copy.load_state_dict(baseline.state_dict())
    x = th.randn(7, 10)
    th.testing.assert_close(copy.predict(x), baseline.predict(x))


def test_a_large_rollout_moves_the_metric_too():
    metric = fitted(fit_rows=400, learn_metric=True)[0].phi.metric
    assert float(DIRECTION @ metric @ DIRECTION) > 0.5 * 10.0


def test_a_model_learns_with_it_and_goes_on_after_loading(tmp_path):
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=256, advantage_kwargs=dict(learn_metric=True), seed=0, device="cpu")
    model.learn(256 * 2 * METRIC_EVERY)
    assert not model.estimator.phi.metric.equal(th.eye(4))
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=model.get_env())
    th.testing.assert_close(loaded.estimator.state_dict(), model.estimator.state_dict())
    loaded.learn(256 * METRIC_EVERY, reset_num_timesteps=False)


def test_the_fit_does_not_grow_with_very_wide_inputs():
    wide = StateBaseline(3000)
    assert wide.phi.size == 1 + 512 + 512
    th.manual_seed(0)
    direction = th.nn.functional.normalize(th.randn(3000), dim=0)
    inputs = [th.randn(800, 40) @ th.randn(40, 3000, generator=th.Generator().manual_seed(1)) for _ in range(6)]
    for x in inputs:  # forty things that 3000 sensors show
        _, explained = wide.advantages(rollout_of(x, x @ direction), AdvantageOptions(normalize="none"), x, x)
    assert explained > 0.9
