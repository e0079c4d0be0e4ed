"""Advantages against numbers worked out by hand."""

import math

import pytest
import torch as th

from sb_grpo import AdvantageOptions
from sb_grpo.baselines.estimators import Anchor
from sb_grpo.maths import estimators, returns, segments
from tests.helpers import make_rollout

PLAIN = AdvantageOptions(gamma=1.0, normalize="none")


def close(actual: th.Tensor, expected: list[float]) -> None:
    th.testing.assert_close(actual, th.tensor(expected, dtype=th.float32), rtol=1e-5, atol=1e-6)


def test_rewards_to_go_discounts_within_the_episode_only():
    rollout = make_rollout([[1.0, 2.0, 4.0], [8.0]], [0, 0])
    close(returns.rewards_to_go(rollout, 0.5), [1 + 1 + 1, 2 + 2, 4, 8])
    close(returns.episode_returns(rollout, 0.5), [3, 8])


@pytest.mark.parametrize("lengths", [[1], [2, 1, 7], [64, 3, 1, 33]])
def test_linear_recurrence_equals_the_loop(lengths):
    x = th.randn(sum(lengths))
    decay = th.rand(sum(lengths))
    decay[th.tensor(lengths).cumsum(0) - 1] = 0.0
    expected, y = [], 0.0
    for value, d in zip(x.flip(0).tolist(), decay.flip(0).tolist(), strict=True):
        y = value + d * y
        expected.append(y)
    close(returns.LinearRecurrence(decay, max(lengths))(x), expected[::-1])


def test_outcome_is_the_z_score_of_the_group_on_every_step():
    # Group 0: returns 1 and 3 (mean 2, std 1). Group 1: returns 0 and 10 (mean 5, std 5).
    rollout = make_rollout([[1.0, 0.0], [3.0], [0.0], [4.0, 6.0]], [0, 0, 1, 1])
    options = AdvantageOptions(gamma=1.0, normalize="group")
    close(estimators.outcome(rollout, options), [-1, -1, 1, -1, 1, 1])


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("mean", [-3.0, -2.0, 5.0]),  # returns 0 1 8, mean 3
        ("leave_one_out", [-4.5, -3.0, 7.5]),  # others: 4.5, 4, 0.5
        ("median", [-1.0, 0.0, 7.0]),
    ],
)
def test_group_baselines_of_outcome(baseline, expected):
    rollout = make_rollout([[0.0], [1.0], [8.0], [5.0], [5.5], [6.0]], [0, 0, 0, 1, 1, 1])
    close(estimators.outcome(rollout, PLAIN, baseline)[:3], expected)


def test_global_baseline_is_the_mean_of_all_groups():
    rollout = make_rollout([[0.0], [2.0], [4.0], [10.0]], [0, 0, 1, 1])
    close(estimators.outcome(rollout, PLAIN, "global"), [-4, -2, 0, 6])


def test_batch_normalisation_uses_one_spread_for_all():
    rollout = make_rollout([[0.0], [2.0], [10.0], [14.0]], [0, 0, 1, 1])
    # returns 0 2 10 14: mean 6.5, variance (42.25 + 20.25 + 12.25 + 56.25) / 4 = 32.75
    std = math.sqrt(32.75)
    options = AdvantageOptions(gamma=1.0, normalize="batch")
    close(estimators.outcome(rollout, options), [-1 / std, 1 / std, -2 / std, 2 / std])


def test_process_normalises_step_rewards_then_sums_to_go():
    # Step rewards of the group: 0 2 | 4 2: mean 2, std sqrt(2). Normalised: -k 0 | k 0 with k = sqrt(2).
    rollout = make_rollout([[0.0, 2.0], [4.0, 2.0]], [0, 0])
    k = math.sqrt(2)
    close(estimators.process(rollout, AdvantageOptions(gamma=1.0)), [-k, 0, k, 0])
    rollout = make_rollout([[2.0, 0.0], [2.0, 4.0]], [0, 0])
    close(estimators.process(rollout, AdvantageOptions(gamma=0.5)), [-0.5 * k, -k, 0.5 * k, k])


def test_process_leave_one_out_leaves_the_member_out():
    rollout = make_rollout([[0.0, 2.0], [4.0, 2.0], [1.0]], [0, 0, 0])
    # baselines: member 0: (4+2+1)/3, member 1: (0+2+1)/3, member 2: (0+2+4+2)/4
    b = [7 / 3, 7 / 3, 1.0, 1.0, 2.0]
    expected = [(0 - b[0]) + (2 - b[1]), 2 - b[1], (4 - b[2]) + (2 - b[3]), 2 - b[3], 1 - b[4]]
    close(estimators.process(rollout, PLAIN, "leave_one_out"), expected)


@pytest.mark.parametrize(
    ("ended", "baseline", "expected"),
    [
        # Rewards-to-go: member 0: 3 2 1; member 1: 1. At t=1, 2 only member 0 is alive.
        ("zero", "mean", [1.0, 1.0, 0.5, -1.0]),
        ("drop", "mean", [1.0, 0.0, 0.0, -1.0]),
        ("zero", "leave_one_out", [2.0, 2.0, 1.0, -2.0]),
        ("drop", "leave_one_out", [2.0, 0.0, 0.0, -2.0]),
        ("zero", "median", [1.0, 1.0, 0.5, -1.0]),
    ],
)
def test_step_compares_members_at_the_same_time(ended, baseline, expected):
    rollout = make_rollout([[1.0, 1.0, 1.0], [1.0]], [0, 0])
    close(estimators.step(rollout, PLAIN, baseline, ended), expected)


def test_step_with_global_baseline_compares_across_groups():
    rollout = make_rollout([[2.0], [2.0], [4.0, 1.0], [3.0]], [0, 0, 1, 1])
    # t=0: rewards-to-go 2 2 5 3, mean 3; t=1: 1 and three ended members' 0, mean 0.25. Group 0 has no spread of its own.
    close(estimators.step(rollout, PLAIN, "global"), [0, 0, 2, 0.75, 0])


#: Two members: states 0 1 2 with rewards 0 0 1, and 0 1 1 without reward. With gamma 1/2 the rewards-to-go are 1/4 1/2 1 and
#: 0: state 0 has 1/4 and 0, state 1 has 1/2 0 0 (mean 1/6, std 1/sqrt(18)), state 2 occurs once. Returns: 1/4 and 0.
STATES = th.tensor([0, 1, 2, 0, 1, 1])
RECURRING = make_rollout([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], [0, 0])


def test_anchor_adds_a_comparison_of_all_steps_in_a_state():
    plain = AdvantageOptions(gamma=0.5, normalize="none")
    of_episodes = th.tensor([1, 1, 1, -1, -1, -1]) / 8
    of_states = th.tensor([1 / 8, 1 / 3, 0.0, -1 / 8, -1 / 6, -1 / 6])
    advantages, recurs = estimators.anchor(RECURRING, plain, STATES)
    close(advantages, (of_episodes + of_states).tolist())
    assert recurs.tolist() == [True, True, False, True, True, True]
    close(estimators.anchor(RECURRING, plain, STATES, weight=3.0)[0], (of_episodes + 3 * of_states).tolist())
    # Leave one out: state 1 has (0 + 0) / 2 and (1/2 + 0) / 2 as the others' means.
    close(estimators.anchor(RECURRING, plain, STATES, "leave_one_out")[0], [0.5, 0.75, 0.25, -0.5, -0.5, -0.5])


def test_anchor_divides_by_the_spread_of_the_state():
    k = math.sqrt(2)  # (1/2 - 1/6) sqrt(18), and -1/6 sqrt(18) = -k / 2
    advantages, _ = estimators.anchor(RECURRING, AdvantageOptions(gamma=0.5), STATES)
    close(advantages, [2, 1 + k, 1, -2, -1 - k / 2, -1 - k / 2])


@pytest.mark.parametrize("normalize", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "median"])
def test_anchor_by_states_that_never_recur_is_the_outcome(baseline, normalize):
    th.manual_seed(0)
    rollout = make_rollout([th.rand(n).tolist() for n in (3, 5, 2, 4)], [0, 0, 1, 1])
    options = AdvantageOptions(0.9, normalize=normalize)
    alone, recurs = estimators.anchor(rollout, options, th.randperm(14), baseline)
    th.testing.assert_close(alone, estimators.outcome(rollout, options, baseline))
    assert not recurs.any()
    # States of another group are other states, and their numbers do not matter.
    state = th.randint(3, (14,))
    advantages = estimators.anchor(rollout, options, state, baseline)[0]
    renamed = th.where(rollout.group[rollout.episode] == 0, 2 - state, state + 7)
    th.testing.assert_close(estimators.anchor(rollout, options, renamed, baseline)[0], advantages)
    if normalize == "group":  # in units of the spread
        scaled = rollout._replace(rewards=100 * rollout.rewards)
        th.testing.assert_close(estimators.anchor(scaled, options, state, baseline)[0], advantages, rtol=1e-3, atol=1e-4)


def test_anchor_finds_equal_observations():
    observations = {"cell": th.tensor([[0.0, 1.0], [2.0, 3.0], [0.0, 1.0], [-0.0, 1.0]]), "key": th.tensor([0, 0, 0, 1])}
    rollout = make_rollout([[0.0, 0.0], [1.0, 0.0]], [0, 0], observations=observations)
    assert len(set(Anchor().states(rollout).tolist())) == 3  # rows 0 and 2
    cells = Anchor(anchor_key=lambda rollout: rollout.observations["cell"]).states(rollout).tolist()
    assert cells[0] == cells[2] == cells[3] != cells[1]
    for wrong in (lambda rollout: rollout.t[:-1], lambda rollout: [0] * 4):
        with pytest.raises(ValueError, match=r"anchor_key returned .* whose first dimension is 4"):
            Anchor(anchor_key=wrong).states(rollout)
    with pytest.warns(UserWarning, match="0.0% of the steps after an episode's start"):
        estimate = Anchor(anchor_key=lambda rollout: th.arange(4)).estimate(rollout, PLAIN)
    assert estimate.metrics == {"group/anchor_fraction": 0.0}


@pytest.mark.parametrize("estimator", [estimators.outcome, estimators.process, estimators.step])
@pytest.mark.parametrize("normalize", ["group", "batch", "none"])
def test_groups_without_spread_get_exactly_zero(estimator, normalize):
    rollout = make_rollout([[1.0, 1.0], [1.0, 1.0], [1.0, 0.5], [0.0, 2.0]], [0, 0, 1, 1])
    advantages = estimator(rollout, AdvantageOptions(gamma=0.9, normalize=normalize))
    assert (advantages[:4] == 0).all() and (advantages[4:] != 0).any() and th.isfinite(advantages).all()


@pytest.mark.parametrize("estimator", [estimators.outcome, estimators.step])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "median"])
def test_a_group_of_one_has_no_other_members(estimator, baseline):
    rollout = make_rollout([[1.0, 2.0]], [0])
    assert (estimator(rollout, PLAIN, baseline) == 0).all()


def test_segment_median_of_odd_even_and_empty_segments():
    values = th.tensor([5.0, 1.0, 3.0, 8.0, 2.0])
    close(segments.segment_median(values, th.tensor([0, 0, 0, 2, 2]), 3)[[0, 2]], [3.0, 5.0])


def test_gae_by_hand_for_terminated_truncated_and_cut_episodes():
    rollout = make_rollout([[1.0, 1.0], [1.0, 1.0]], [0, 0], terminated=th.tensor([True, False]))
    values, final = th.tensor([3.0, 2.0, 3.0, 2.0]), th.tensor([100.0, 4.0])
    # terminated: the 100 is ignored. delta: 1 + .5*2 - 3 = -1; 1 - 2 = -1. A0 = -1 + .25 * -1
    # goes on:    delta: -1; 1 + .5*4 - 2 = 1.                             A0 = -1 + .25 * 1
    close(returns.gae(rollout, values, final, 0.5, 0.5), [-1.25, -1.0, -0.75, 1.0])


def test_gae_with_lambda_one_is_return_minus_baseline():
    rollout = make_rollout([[1.0, 2.0, 3.0]], [0])
    values = th.tensor([0.3, -0.2, 0.7])
    th.testing.assert_close(returns.gae(rollout, values, th.zeros(1), 0.9, 1.0), returns.rewards_to_go(rollout, 0.9) - values)


def test_centre_and_scale_gives_z_scores_per_group_and_per_batch():
    rollout = make_rollout([[0.0], [0.0, 0.0], [0.0]], [0, 0, 1])
    raw = th.tensor([1.0, 2.0, 3.0, 7.0])
    k = math.sqrt(1.5)
    close(estimators.centre_and_scale(raw, raw, rollout, AdvantageOptions(normalize="group")), [-k, 0, k, 0])
    batch = estimators.centre_and_scale(raw, raw, rollout, AdvantageOptions(normalize="batch"))
    assert abs(float(batch.mean())) < 1e-6 and abs(float(batch.std(unbiased=False)) - 1) < 1e-6
    close(estimators.centre_and_scale(raw, raw, rollout, AdvantageOptions(normalize="none")), raw.tolist())


@pytest.mark.parametrize(("gamma", "has_signal"), [(0.9, False), (0.99, False), (0.9999, True), (1.0, True)])
def test_a_level_that_a_long_horizon_piles_up_hides_no_signal(gamma, has_signal):
    """Residuals of 1 on values of 3,000: nothing if 100 steps earn those 3,000, and much if 10,000 do, at 0.3 each."""
    raw = th.tensor([1.0, -1.0]).repeat(500)
    options = AdvantageOptions(gamma=gamma, normalize="batch")
    found = estimators.centre_and_scale(raw, raw + 3000.0, make_rollout([[0.3] * 1000], [0]), options)
    close(found, raw.tolist() if has_signal else [0.0] * 1000)
    assert not estimators.centre_and_scale(raw, raw + 3000.0, make_rollout([[0.3] * 5] * 200, [0] * 200), options).any()


def test_reward_shaping():
    rewards = th.tensor([-20.0, 0.5, 3.0])
    close(estimators.shape_rewards(rewards, "none", 2.0), [-20, 0.5, 3])
    close(estimators.shape_rewards(rewards, "clip", 2.0), [-2, 0.5, 2])
    close(estimators.shape_rewards(rewards, "tanh", 2.0), [2 * math.tanh(-10), 2 * math.tanh(0.25), 2 * math.tanh(1.5)])


def test_advantages_do_not_depend_on_the_scale_of_the_rewards():
    rewards = [[1.0, 0.3], [3.0], [0.1], [4.0, 6.0]]
    small = make_rollout(rewards, [0, 0, 1, 1])
    large = make_rollout([[1e6 * x for x in r] for r in rewards], [0, 0, 1, 1])
    for estimator in (estimators.outcome, estimators.process, estimators.step):
        th.testing.assert_close(estimator(small, AdvantageOptions()), estimator(large, AdvantageOptions()))


def test_explained_variance():
    actual = th.tensor([1.0, 2.0, 3.0])
    assert returns.explained_variance(actual, actual) == 1.0
    assert returns.explained_variance(th.zeros(3), actual) == 0.0
    assert math.isnan(returns.explained_variance(th.zeros(3), th.ones(3)))


@pytest.mark.parametrize("normalize", ["batch", "none"])
def test_groups_of_one_are_compared_with_each_other(normalize):
    rollout = make_rollout([[0.0], [2.0], [4.0, 4.0], [2.0]], [0, 1, 2, 3])
    # returns 0 2 8 2: mean 3, variance (9 + 1 + 25 + 1) / 4 = 9
    by = 3.0 if normalize == "batch" else 1.0
    options = AdvantageOptions(gamma=1.0, normalize=normalize)
    close(estimators.outcome(rollout, options, "global"), [-3 / by, -1 / by, 5 / by, 5 / by, -1 / by])
    close(estimators.outcome(make_rollout([[2.0], [2.0]], [0, 1]), options, "global"), [0, 0])
    close(estimators.outcome(rollout, options), [0] * 5)
