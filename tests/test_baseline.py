"""The closed-form state baseline against known regressions."""

import copy

import pytest
import torch as th

from sb_grpo import GRPO, AdvantageOptions
from sb_grpo.baselines.horizons import HORIZONS, Horizons
from sb_grpo.baselines.state import StateBaseline
from sb_grpo.maths.returns import gae
from sb_grpo.maths.ridge import factorise
from tests.helpers import make_rollout


def rollout_of(features: th.Tensor, rewards: th.Tensor):
    """One-step episodes: the reward is the return."""
    n = len(features)
    return make_rollout([[float(r)] for r in rewards], [i // 4 for i in range(n)], final_observations=features)


def test_it_learns_a_function_of_the_state_and_says_how_well():
    th.manual_seed(0)
    baseline, explained = StateBaseline(3), []
    for _ in range(4):
        x = th.randn(400, 3)
        y = 5.0 + 2.0 * x[:, 0] - x[:, 1] ** 2 + th.sin(x[:, 2])
        advantages, ev = baseline.advantages(rollout_of(x, y), AdvantageOptions(normalize="none"), x, x)
        explained.append(ev)
    assert explained[-1] > 0.97 and explained[-1] >= explained[1] - 0.02
    assert float(advantages.std()) < 0.3 * float(y.std())  # what is left is what the state does not explain


def test_shifting_or_scaling_rewards_shifts_or_scales_the_baseline():
    """The constant is not shrunk and the rest is linear: normalised advantages do not see scale or offset."""
    results = []
    for factor, offset in ((1.0, 0.0), (100.0, 0.0), (1.0, 50.0)):
        th.manual_seed(0)
        baseline = StateBaseline(2)
        for _ in range(3):
            x = th.randn(200, 2)
            y = x[:, 0] + 0.5 * th.randn(200)
            advantages, _ = baseline.advantages(rollout_of(x, factor * y + offset), AdvantageOptions(), x, x)
        results.append(advantages)
    th.testing.assert_close(results[0], results[1], atol=2e-3, rtol=1e-3)
    th.testing.assert_close(results[0], results[2], atol=2e-2, rtol=1e-2)


def test_a_saved_baseline_predicts_the_same():
    th.manual_seed(0)
    baseline = StateBaseline(2)
    for _ in range(2):
        x = th.randn(100, 2)
        baseline.advantages(rollout_of(x, x.sum(1)), AdvantageOptions(), x, x)
    copy = StateBaseline(2)
    copy.load_state_dict(baseline.state_dict())
    assert sum(v.numel() for v in baseline.state_dict().values()) < 1000  # a weight vector and statistics, no projection
    phi = th.randn(7, 2)
    th.testing.assert_close(copy.phi(phi) @ copy.weights, baseline.phi(phi) @ baseline.weights)


def test_without_any_reward_the_baseline_is_zero_and_finite():
    x = th.randn(40, 2)
    baseline = StateBaseline(2)
    for _ in range(2):
        advantages, _ = baseline.advantages(rollout_of(x, th.zeros(40)), AdvantageOptions(), x, x)
        assert (advantages == 0).all()


def test_the_ridge_follows_the_noise():
    """Pure noise asks for a strong ridge, a clean function for a weak one."""
    ridges = []
    for noise in (0.0, 10.0):
        th.manual_seed(0)
        baseline = StateBaseline(3)
        for _ in range(8):
            x = th.randn(300, 3)
            baseline.advantages(rollout_of(x, th.sin(2 * x[:, 0]) + noise * th.randn(300)), AdvantageOptions(), x, x)
        ridges.append(float(baseline.ridge))
    assert ridges[0] <= 1.0 and ridges[1] >= 100.0


@pytest.mark.parametrize(
    "kwargs", [dict(n_features=0), dict(scale=0.0), dict(memory=1.0), dict(anchor=1.1), dict(sweeps=0)], ids=str
)
def test_bad_settings_are_named(kwargs):
    name, value = next(iter(kwargs.items()))
    with pytest.raises(ValueError, match=f"advantage_kwargs: {name}={value} must"):
        StateBaseline(3, **kwargs)


def test_the_anchor_keeps_what_the_newest_rollouts_do_not_show():
    """Two kinds of states, then only one of them: an anchored fit still knows the other."""

    def forgotten(anchor):
        baseline = StateBaseline(1, memory=0.0, anchor=anchor, least_rows=1)
        for kinds in (2, 2, 1, 1):
            x = th.cat([th.full((100, 1), 2.0), th.full((100, 1), -2.0 if kinds == 2 else 2.0)])
            baseline.advantages(rollout_of(x, 3.0 * x[:, 0].sign()), AdvantageOptions(), x, x)
        return abs(3.0 + float(baseline.predict(th.tensor([[-2.0]]))[0, 1]))

    assert forgotten(1.0) < 1.5 < 3.0 < forgotten(0.0)


@pytest.mark.parametrize("folds", [1, 4])
def test_older_targets_can_follow_the_level(folds):
    """Every reward is 10 more than in the rollout before, which saw other states: those are worth 10 more too, not less."""

    def gap(follow_level):
        baseline = StateBaseline(1, memory=0.9, anchor=0.0, sweeps=1, folds=folds, follow_level=follow_level, least_rows=1)
        for level, side in ((0.0, -1.0), (0.0, 1.0), (0.0, -1.0), (10.0, 1.0)):
            x = side + 0.5 * th.linspace(-1.0, 1.0, 200).unsqueeze(1)
            advantages, _ = baseline.advantages(
                rollout_of(x, th.full((200,), level)), AdvantageOptions(normalize="none"), x, x
            )
        seen, unseen = baseline.predict(th.tensor([[1.0], [-1.0]]))[:, 1].tolist()
        return seen - unseen, float(advantages.std())

    (bent, _), (level, spread) = gap(False), gap(True)
    assert bent > 5.0 and abs(level) < 0.1 and spread < 0.1


def test_following_the_level_changes_nothing_where_it_stays():
    """The newest targets lie on the weights before: both predict the same, to rounding."""
    found = []
    for follow_level in (False, True):
        th.manual_seed(0)
        baseline = StateBaseline(2, anchor=1.0, memory=0.5, follow_level=follow_level)
        for _ in range(6):
            x = th.randn(400, 2)
            y = x[:, 0] - x[:, 0].mean()  # the mean of the rewards never moves
            baseline.advantages(rollout_of(x, y), AdvantageOptions(), x, x)
        found.append(baseline.predict(th.tensor([[0.5, -0.5], [-1.0, 1.0]]))[:, 1])
    th.testing.assert_close(found[0], found[1], atol=0.02, rtol=0.0)


def test_sweeps_carry_a_change_of_the_last_reward_to_the_first_step():
    """lambda = 0: a fit sees one step ahead, so each sweep carries the new reward one step back. Truth: 1 at every step."""

    def at_the_start(sweeps):
        baseline = StateBaseline(1, n_features=64, sweeps=sweeps, memory=0.0, least_rows=1)
        for reward in (0.0, 1.0):
            rollout = make_rollout([[0.0] * 5 + [reward + 1e-3 * i] for i in range(40)], [i // 8 for i in range(40)])
            features = th.arange(6.0).repeat(40).unsqueeze(1)
            baseline.advantages(rollout, AdvantageOptions(gamma=1.0, gae_lambda=0.0), features, th.full((40, 1), 6.0))
        return float(baseline.predict(th.tensor([[0.0]]))[0, 1])

    assert at_the_start(1) < 0.2 and 0.8 < at_the_start(12) < 1.2


def test_a_large_rollout_is_fitted_on_some_of_its_rows():
    def explained(fit_rows):
        th.manual_seed(0)
        baseline = StateBaseline(3, fit_rows=fit_rows)
        for _ in range(3):
            x = th.randn(2000, 3)
            y = 5.0 + 2.0 * x[:, 0] - x[:, 1] ** 2 + th.sin(x[:, 2])
            advantages, ev = baseline.advantages(rollout_of(x, y), AdvantageOptions(normalize="none"), x, x)
            assert len(advantages) == 2000
        return ev

    assert explained(2000) == explained(8192) > 0.99  # no sampling up to so many rows
    assert explained(2000) != explained(500) > 0.97
    assert explained(10) < 0.97


def test_episodes_that_grow_longer_do_not_change_what_a_state_is_worth():
    """The default knows no time: the same states at later steps than any fit has seen are predicted as before."""
    th.manual_seed(0)
    baseline, worst = StateBaseline(2), []
    for length in (5, 5, 5, 200):
        n = 400 // length
        x, final = th.randn(n * length, 2), th.randn(n, 2)
        rewards = [x[i * length : (i + 1) * length, 0].tolist() for i in range(n)]
        rollout = make_rollout(rewards, [i // 4 for i in range(n)], final_observations=final)
        advantages, _ = baseline.advantages(rollout, AdvantageOptions(gamma=0.0, gae_lambda=0.0, normalize="none"), x, final)
        worst.append(float(advantages.abs().max()))
    assert worst[3] < 1.5 * worst[2] + 0.1


@pytest.mark.parametrize("settings", [{}, dict(horizons=True)])
def test_small_rollouts_wait_and_are_fitted_as_one(settings):
    """Rollouts of 40 steps in twos: the fits are those to rollouts of 80, and the second of two is judged by them."""
    th.manual_seed(0)
    options = AdvantageOptions(normalize="none", gamma=0.9, gae_lambda=0.8)
    small, large = StateBaseline(3, least_rows=80, **settings), StateBaseline(3, least_rows=80, **settings)
    for k in range(3):
        x, x_final, rewards, ends = th.randn(80, 3), th.randn(16, 3), th.randn(16, 5).tolist(), th.arange(16) % 3 == 0
        of_both, _ = large.advantages(make_rollout(rewards, [i // 4 for i in range(16)], terminated=ends), options, x, x_final)
        before = small.weights.clone()
        for half in (0, 1):
            rows, episodes = slice(40 * half, 40 * half + 40), slice(8 * half, 8 * half + 8)
            rollout = make_rollout(rewards[episodes], [i // 4 for i in range(8)], terminated=ends[episodes])
            advantages, _ = small.advantages(rollout, options, x[rows], x_final[episodes])
            if half == 0:
                assert th.equal(small.weights, before)
                small = copy.deepcopy(small)  # what waits is copied with it
                if k == 0:  # nothing is known yet: rewards to come, and what is cut is worth 0
                    th.testing.assert_close(advantages, gae(rollout, th.zeros(40), th.zeros(8), 0.9, 0.8))
        th.testing.assert_close(advantages, of_both[40:])
        th.testing.assert_close(small.weights, large.weights)
        assert not th.equal(small.weights, before)


def test_what_an_episode_is_compared_with_does_not_know_its_rewards():
    """Another reward of one episode moves its own advantage by the difference; its fold is compared with what it was."""
    advantages = []
    for own in (0.3, 0.4):
        th.manual_seed(0)
        baseline, options = StateBaseline(3, folds=4, least_rows=1), AdvantageOptions(normalize="none")
        for _ in range(2):
            x = th.randn(120, 3)
            y = x[:, 0] + 0.2 * th.randn(120)
            baseline.advantages(rollout_of(x, y), options, x, x)
        y[8] = own
        raw, _ = baseline.advantages(rollout_of(x, y), options, x, x)
        advantages.append(raw)
    change = advantages[1] - advantages[0]
    same_fold = [i for i in range(120) if i % 4 == 0 and i != 8]
    assert change[8] == pytest.approx(0.1 + change[same_fold[0]].item(), abs=1e-4)
    assert change[same_fold].std() < 1e-6 < change[[i for i in range(120) if i % 4]].std()


def test_cross_fitting_sees_a_change_in_the_rollout_where_it_happens():
    """What a state is worth changes its sign: fitted to the past alone, the baseline is wrong by twice of it."""
    spread = {}
    for folds in (1, 4):
        th.manual_seed(0)
        baseline = StateBaseline(2, folds=folds)
        for sign in (1.0, 1.0, 1.0, -1.0):
            x = th.randn(400, 2)
            raw, _ = baseline.advantages(rollout_of(x, sign * x[:, 0]), AdvantageOptions(normalize="none"), x, x)
        spread[folds] = float(raw.std())
    assert spread[1] > 1.5 and spread[4] < 0.75


def test_cross_fitting_needs_no_second_episode_and_no_past():
    """One episode in the rollout: nothing to cross-fit. A loaded baseline has weights, but no moments of the past."""
    th.manual_seed(0)
    x = th.randn(40, 2)
    one = make_rollout([x[:, 0].tolist()], [0], final_observations=x[:1])
    baseline = StateBaseline(2)
    for _ in range(3):
        raw, _ = baseline.advantages(one, AdvantageOptions(), x, x[:1])
        assert bool(th.isfinite(raw).all())
    fresh = StateBaseline(2)
    fresh.load_state_dict(baseline.state_dict())
    raw, _ = fresh.advantages(rollout_of(x, x[:, 0]), AdvantageOptions(), x, x)
    assert bool(th.isfinite(raw).all())


def test_systems_that_are_not_finite_are_refused_and_singular_ones_solved():
    with pytest.raises(ValueError, match="not finite"):
        factorise(th.full((1, 3, 3), th.nan, dtype=th.float64), th.ones(1, dtype=th.float64))
    factor = factorise(-1e-3 * th.eye(3, dtype=th.float64)[None] + th.ones(1, 3, 3), th.zeros(1, dtype=th.float64))
    assert bool(th.isfinite(factor).all())


@pytest.mark.parametrize(("name", "value"), [("n_features", 10.5), ("folds", 2.5), ("memory", "a"), ("scale", None)])
def test_types_of_its_arguments(name, value):
    with pytest.raises(ValueError, match=f"advantage_kwargs: {name}={value!r} must be a"):
        StateBaseline(3, **{name: value})


# The features of states that the state baseline is fitted on

def test_the_fit_does_not_grow_with_very_wide_inputs():
    wide = StateBaseline(3000)
    assert wide.phi.size == 1 + 512 + 512
    th.manual_seed(0)
    direction = th.nn.functional.normalize(th.randn(3000), dim=0)
    inputs = [th.randn(800, 40) @ th.randn(40, 3000, generator=th.Generator().manual_seed(1)) for _ in range(6)]
    for x in inputs:  # forty things that 3000 sensors show
        _, explained = wide.advantages(rollout_of(x, x @ direction), AdvantageOptions(normalize="none"), x, x)
    assert explained > 0.9


# Predictions over several horizons against sums that are known, and what a fit on them can do

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
