"""Statistics against numbers worked out by hand, by rliable 1.2.0, or by SciPy."""

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from zoo.comparing import statistics

# Runs x tasks, as rliable takes them. What it gave for them (in an environment of its own with pandas 2, seed 1,
# 50,000 resamples; 5,000 for the probability of improvement) stands in the tests below.
X = np.array([[0.1, 0.9, 1.2], [0.4, 0.8, 0.7], [0.35, 1.0, 1.5], [0.6, 0.2, 1.1]])
Y = np.array([[0.2, 0.7, 1.2], [0.3, 0.8, 0.6], [0.3, 0.5, 0.9]])


@pytest.mark.parametrize(
    ("statistic", "value", "low", "high"),
    [
        (statistics.iqm, 0.7333333333, 0.51666667, 0.9),
        (statistics.mean, 0.7375, 0.58333333, 0.87916667),
        (statistics.median, 0.725, 0.4, 0.95),
        (statistics.optimality_gap, 0.3291666667, 0.21666667, 0.4625),
    ],
)
def test_aggregates_and_their_intervals_are_rliables(statistic, value, low, high):
    assert statistic(list(X.T)) == pytest.approx(value)
    assert statistics.interval(statistic, list(X.T), resamples=20_000) == pytest.approx((low, high), abs=0.006)


def test_probability_of_improvement_is_rliables():
    assert statistics.probability_of_improvement(list(X.T), list(Y.T)) == pytest.approx(0.7222222222)
    low, high = statistics.interval(statistics.probability_of_improvement, list(X.T), list(Y.T))
    assert (low, high) == pytest.approx((0.47222222, 0.94444444), abs=0.02)


def test_probability_of_improvement_counts_ties_half_and_mirrors():
    x, y = [np.array([1.0, 2.0])], [np.array([1.0, 0.0])]
    assert statistics.probability_of_improvement(x, y) == (0.5 + 1 + 1 + 1) / 4
    assert statistics.probability_of_improvement(x, y) + statistics.probability_of_improvement(y, x) == 1


def test_performance_profile_is_rliables():
    thresholds = np.array([0, 0.3, 0.5, 0.8, 1, 1.4])
    expected = [1, 10 / 12, 8 / 12, 5 / 12, 3 / 12, 1 / 12]
    assert statistics.performance_profile(list(X.T), thresholds) == pytest.approx(expected)


def test_iqm_drops_the_outer_quarters():
    assert statistics.iqm([np.array([-1000.0, 1, 2, 3, 4, 5, 6, 1000])]) == 3.5
    assert statistics.iqm([np.array([-1000.0, 1, 2, 3]), np.array([4.0, 5, 6, 1000])]) == 3.5  # over all tasks together


def test_iqm_weighs_tasks_alike_however_many_runs_each_has():
    """As the other aggregates do: a task that was run more often says the same thing with more certainty, not louder."""
    few, many = np.array([1.0, 2, 3, 4]), np.array([11.0, 12, 13, 14])
    assert statistics.iqm([few, many]) == 7.5  # the mean of 3, 4, 11 and 12
    assert statistics.iqm([few, np.repeat(many, 3)]) == pytest.approx(7.5)
    # 16 runs: two tasks of 1/2 each, a run of the first weighs 1/8, of the second 1/24. The lowest quarter are 1 and 2, the
    # highest the last six of the second; left are 3 and 4 and the second's first six.
    assert statistics.iqm([few, np.arange(10.0, 22.0)]) == pytest.approx(
        (3 / 8 + 4 / 8 + (10 + 11 + 12 + 13 + 14 + 15) / 24) / 0.5
    )
    # 5 runs: floor(5 / 4) / 5 = 0.2 cut from each end. The first's only run weighs 1/2: 0.3 of it stays, and of the other
    # task's 1/8 each 0.3 as well.
    assert statistics.iqm([np.array([0.0]), np.array([4.0, 8, 12, 16])]) == pytest.approx(
        (0.125 * 4 + 0.125 * 8 + 0.05 * 12) / 0.6
    )


def test_the_median_of_one_task_is_over_its_runs():
    assert statistics.median([np.array([0.0, 1.0, 8.0])]) == 1
    assert statistics.median([np.array([0.0, 2.0]), np.array([3.0, 5.0]), np.array([100.0, 300.0])]) == 4


def test_the_bootstrap_is_stratified():
    """Runs are drawn within their tasks: with no spread inside the tasks there is none between resamples."""
    low, high = statistics.interval(statistics.mean, [np.array([1.0, 1.0]), np.array([5.0, 5.0])], resamples=50)
    assert low == high == 3


def test_the_bootstrap_covers_what_it_says():
    """95 % intervals of the mean of 20 normal numbers hold the true mean in about 95 % of 400 experiments."""
    rng = np.random.default_rng(0)
    bounds = [statistics.interval(statistics.mean, [rng.normal(size=20)], resamples=400) for _ in range(400)]
    assert 0.90 <= np.mean([low <= 0 <= high for low, high in bounds]) <= 0.97


def test_intervals_repeat_and_need_two_runs():
    scores = [np.array([1.0, 4.0, 2.0])]
    assert statistics.interval(statistics.iqm, scores) == statistics.interval(statistics.iqm, scores)
    assert np.isnan(statistics.interval(statistics.iqm, [np.array([1.0, 2.0]), np.array([3.0])])).all()


def test_curves_are_drawn_whole():
    """Two runs that differ by a constant: the interval is as wide everywhere, and its ends are the runs."""
    curves = [np.array([[0.0, 1.0, 5.0], [2.0, 3.0, 7.0]])]
    low, high = statistics.curve_interval(curves, statistics.mean, resamples=200)
    assert low.tolist() == [0, 1, 5] and high.tolist() == [2, 3, 7]


def test_normalised_scores():
    assert statistics.normalise(np.array([-200.0, 0.0, 100.0]), low=-200, high=0).tolist() == [0, 1, 1.5]
    with pytest.raises(ValueError, match="both 3"):
        statistics.normalise(np.array([1.0]), 3, 3)


def test_times():
    steps, curve = np.array([0, 10, 20, 30, 40]), np.array([0.0, 50.0, 100.0, 80.0, 95.0])
    assert statistics.time_to_threshold(curve, steps, 50) == 10  # "at or above"
    assert statistics.time_to_threshold(curve, steps, 101) == np.inf
    assert statistics.convergence_time(curve, steps) == 40  # 90 is left again at 30
    assert statistics.convergence_time(curve, steps, share=0.8) == 20
    assert statistics.convergence_time(np.array([0.0, 100.0, 50.0]), steps[:3]) == np.inf
    assert statistics.convergence_time(np.array([5.0, 5.0]), steps[:2]) == 0


def test_success_rate():
    assert statistics.success_rate(np.array([474.0, 475.0, 500.0, 9.0]), 475) == 0.5


def test_welch_by_hand():
    """n = m = 3, means 2 and 5, variances 1 and 4: t = -3 / sqrt(5/3), 50/17 degrees of freedom by Welch-Satterthwaite."""
    test = statistics.welch(np.array([1.0, 2.0, 3.0]), np.array([3.0, 5.0, 7.0]))
    t, freedom = -3 / np.sqrt(5 / 3), 50 / 17
    assert test.difference == -3 and test.t == pytest.approx(t)
    assert test.p == pytest.approx(2 * stats.t.sf(-t, freedom))
    assert test.high + 3 == pytest.approx(stats.t.ppf(0.975, freedom) * np.sqrt(5 / 3))
    assert test.low + test.high == pytest.approx(-6)


@pytest.mark.filterwarnings("error")
def test_welch_where_one_sample_has_no_spread():
    """An algorithm that solves the task with every seed: only the other's variance 1 counts, with its 2 degrees of freedom."""
    test = statistics.welch(np.full(3, 500.0), np.array([1.0, 2.0, 3.0]))
    t = 498 / np.sqrt(1 / 3)
    assert test.t == pytest.approx(t) and test.p == pytest.approx(2 * stats.t.sf(t, 2))


def test_the_paired_test_by_hand():
    """Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), 2 degrees of freedom, whose t has a closed form."""
    x = np.array([101.0, 202.0, 303.0])
    test = statistics.paired(x, np.array([100.0, 200.0, 300.0]))
    t = 2 * np.sqrt(3)
    assert test.difference == pytest.approx(2) and test.t == pytest.approx(t)
    assert test.p == pytest.approx(1 - t / np.sqrt(2 + t**2))
    assert (test.low, test.high) == pytest.approx((2 - 4.302653 / np.sqrt(3), 2 + 4.302653 / np.sqrt(3)))
    assert np.isnan(test.wilcoxon)


def test_wilcoxon_from_six_pairs_on():
    """Six positive differences: of the 2^6 sign patterns two are as extreme."""
    y = np.zeros(6)
    assert statistics.paired(np.arange(1.0, 7.0), y).wilcoxon == pytest.approx(2 / 64)
    assert np.isnan(statistics.paired(np.array([0.0, 1, 2, 3, 4, 5]), y).wilcoxon)  # a tie is no sign


@pytest.mark.filterwarnings("error")
def test_what_pairs_cannot_say_is_nan():
    x = np.array([0.1, 0.7, 1.3])
    for y in (x, x + 0.1):  # equal differences, the second but for rounding
        test = statistics.paired(x, y)
        assert test.difference == pytest.approx(x.mean() - y.mean()) and np.isnan(test[1:]).all()
    assert np.isnan(statistics.paired(x[:1], x[:1])[1:]).all()
    assert np.isnan(statistics.common_noise([np.ones(3)], [np.ones(3)])).all()
    correlation, saved = statistics.common_noise([np.ones(3)], [x])
    assert np.isnan(correlation) and saved == 0


def test_the_variance_that_pairs_save_by_hand():
    """x has the variance 1, y = 2x the variance 4, their difference 1: of 5 four are saved."""
    x = np.array([-1.0, 0.0, 1.0])
    assert statistics.common_noise([x], [2 * x]) == pytest.approx((1, 4 / 5))
    assert statistics.common_noise([x], [-x]) == pytest.approx((-1, -1))  # good luck of one is bad luck of the other
    # Blocks are measured from their own means, however far apart these are.
    assert statistics.common_noise([x, x + 100], [x + 7, x - 50]) == pytest.approx((1, 1))
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    assert statistics.common_noise([x], [y])[1] == pytest.approx(1 - (x - y).var(ddof=1) / (x.var(ddof=1) + y.var(ddof=1)))


def test_correlated_pairs_save_their_correlation_and_the_interval_covers():
    """Equal variances, correlation 0.9: 0.9 of the variance is saved, intervals are sqrt(0.1) as wide and hold the truth."""
    rng = np.random.default_rng(0)
    saved, widths, covered = [], [], []
    for _ in range(300):
        noise, own = rng.normal(size=10), rng.normal(size=(2, 10))
        x, y = 1 + np.sqrt(0.9) * noise + np.sqrt(0.1) * own[0], np.sqrt(0.9) * noise + np.sqrt(0.1) * own[1]
        paired, welch = statistics.paired(x, y), statistics.welch(x, y)
        saved.append(statistics.common_noise([x], [y])[1])
        widths.append((paired.high - paired.low) / (welch.high - welch.low))
        covered.append(paired.low <= 1 <= paired.high)
    assert 0.92 <= np.mean(covered) <= 0.98
    assert np.median(saved) == pytest.approx(0.9, abs=0.02)
    assert np.median(widths) == pytest.approx(np.sqrt(0.1) * stats.t.ppf(0.975, 9) / stats.t.ppf(0.975, 18), abs=0.03)


def test_holm_by_hand():
    """Sorted .01 .02 .03 .04 times 4 3 2 1 is .04 .06 .06 .04, made monotone."""
    assert statistics.holm(np.array([0.04, 0.01, 0.03, 0.02])) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert statistics.holm(np.array([0.6, 0.9])).tolist() == [1, 1]
    assert statistics.holm(np.array([np.nan, 0.03])) == pytest.approx([np.nan, 0.03], nan_ok=True)


def test_cohens_d_by_hand():
    assert statistics.cohens_d(np.array([1.0, 2.0, 3.0]), np.array([3.0, 5.0, 7.0])) == pytest.approx(-3 / np.sqrt(2.5))


def test_anova_by_hand():
    """Group means 1, 2, 6 of two each, grand mean 3: F = (2 * 14 / 2) / (3 * 2 / 3) = 7."""
    f, p = statistics.anova([np.array([0.0, 2.0]), np.array([1.0, 3.0]), np.array([5.0, 7.0])])
    assert f == pytest.approx(7) and p == pytest.approx(stats.f.sf(7, 2, 3))


def test_what_cannot_be_computed_is_nan():
    solved = np.array([500.0, 500.0])
    assert np.isnan(statistics.welch(solved, solved).p) and statistics.welch(solved, solved).difference == 0
    assert np.isnan(statistics.welch(solved, np.array([1.0])).p)
    assert np.isnan(statistics.cohens_d(solved, solved)) and np.isnan(statistics.anova([solved, solved])).all()


def test_pairwise_corrects_over_its_pairs():
    a, b, c = np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0]), np.array([11.0, 12.0, 13.0])
    rows = statistics.pairwise({"a": a, "b": b, "c": c})
    assert [row[:2] for row in rows] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert rows[1][3] == pytest.approx(3 * stats.ttest_ind(a, c, equal_var=False).pvalue)


def test_ranks_share_ties():
    assert statistics.ranks(np.array([[5.0, 1.0], [5.0, 3.0], [9.0, 2.0]])).tolist() == [[2.5, 3], [2.5, 1], [1, 2]]


def test_resamples_in_parts_are_those_of_all_at_once(monkeypatch):
    """Bit by bit, also where tasks and samples are of several sizes."""
    rng = np.random.default_rng(0)
    x, y = ([rng.normal(size=n).round(1) for n in sizes] for sizes in ((10, 7, 12), (9, 7, 5)))
    thresholds, curves = np.array([0.5, -1.0, 0.0]), [rng.normal(size=(6, 9)), rng.normal(size=(5, 9))]

    def all_of_them():
        yield statistics.interval(statistics.iqm, x)
        yield statistics.interval(statistics.probability_of_improvement, x, y)
        yield statistics.interval(lambda s: statistics.performance_profile(s, thresholds), x)
        yield statistics.curve_interval(curves, statistics.mean)

    at_once = list(all_of_them())
    monkeypatch.setattr(statistics, "AT_ONCE", 1000)
    for whole, parts in zip(at_once, all_of_them(), strict=True):
        assert np.array_equal(whole, parts)


def test_counts_are_those_of_every_pair():
    rng = np.random.default_rng(1)
    a, b, thresholds = (rng.normal(size=shape).round(1) for shape in ((4, 6), (4, 5), 7))
    won = (a[:, :, None] > b[:, None]) + 0.5 * (a[:, :, None] == b[:, None])
    assert np.array_equal(statistics.probability_of_improvement([a], [b]), won.mean((1, 2)))
    above = (a[:, None] > thresholds[:, None]).mean(-1)
    assert np.array_equal(statistics.performance_profile([a], thresholds), above)


def test_the_memory_of_a_bootstrap_does_not_grow_with_the_runs():
    """With 1,000 runs a side 5,000 tables of 1,000 x 1,000 took 40 GB."""
    x, y = (np.random.default_rng(seed).normal(size=1000) for seed in (0, 1))
    tracemalloc.start()
    statistics.interval(statistics.probability_of_improvement, [x], [y], resamples=2500)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 300e6
