"""Group weights: shares by worked-out numbers, and their way into the update."""

import math

import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.extras.group_weights import GroupWeights, performance_shares, progress_shares, row_weights
from tests.helpers import make_rollout
from tests.test_grouping import weights

SMALL = dict(n_steps=64, batch_size=32, n_epochs=2, group_size=2, seed=0)


def rollout_with(returns, tasks):
    """One-step episodes that have ended, with these returns since the reset."""
    rollout = make_rollout([[r] for r in returns], [0] * len(returns))
    return rollout._replace(task=th.tensor(tasks), episode_return=th.tensor(returns))


def test_equal_shares_of_unequal_groups():
    """3 rows and 1 row: 2/3 each and 2; their sums are equal, their mean is 1. The label without rows takes nothing."""
    label = th.tensor([0, 2, 0, 0])
    got = row_weights(th.full((3,), 1 / 3), label)
    th.testing.assert_close(got, th.tensor([2 / 3, 2.0, 2 / 3, 2 / 3]))


def test_a_tiny_group_is_held_back():
    label = th.cat([th.zeros(999, dtype=th.int64), th.ones(1, dtype=th.int64)])
    free, held = row_weights(th.ones(2), label, math.inf), row_weights(th.ones(2), label, 10.0)
    assert math.isclose(float(free[-1]), 500.0, rel_tol=1e-4)
    assert 10.0 < float(held[-1]) < 21.0 and math.isclose(float(held.mean()), 1.0, rel_tol=1e-5)


def test_no_share_for_anyone_who_is_there_means_equal_rows():
    assert row_weights(th.tensor([0.0, 1.0]), th.tensor([0, 0])).tolist() == [1.0, 1.0]
    assert len(row_weights(th.ones(2), th.zeros(0, dtype=th.int64))) == 0


def test_performance_gives_more_to_what_lags():
    shares = performance_shares(th.tensor([0.0, 1.0]), 0.5)
    assert math.isclose(float(shares[0] / shares[1]), math.exp(2.0), rel_tol=1e-5) and math.isclose(
        float(shares.sum()), 1.0, rel_tol=1e-6
    )


def test_progress_gives_more_to_what_changes():
    th.testing.assert_close(progress_shares(th.tensor([3.0, 1.0]), 0.4), th.tensor([0.2 + 0.45, 0.2 + 0.15]))
    th.testing.assert_close(progress_shares(th.zeros(4), 0.4), th.full((4,), 0.25))


def test_performance_over_ranges_compares_what_is_paid_on_different_scales():
    """Returns 250 of 0 to 500 and 0.1 of 0 to 1: the second lags, though on one scale it would be the first."""
    rollout = rollout_with([250.0, 0.1], [0, 1])
    for ranges, lagging in (([(0, 500), (0, 1)], 1), (None, 1), ([(0, 10_000), (0, 0.1)], 0)):
        weighting = GroupWeights("performance", 2, ranges=ranges)
        weighting.observe(rollout, rollout.task)
        assert int(weighting.shares(rollout, rollout.task).argmax()) == lagging
    th.testing.assert_close(weighting.scores(), th.tensor([0.025, 1.0]))


def test_averages_follow_whole_episodes_and_keep_labels_that_are_absent():
    weighting = GroupWeights("adaptive", 3)
    first = rollout_with([10.0, 20.0, 5.0], [0, 0, 1])
    weighting.observe(first, first.task)
    assert weighting.fast.tolist() == [15.0, 5.0, 0.0] and weighting.seen.tolist() == [True, True, False]
    second = rollout_with([25.0, 1000.0], [0, 1])._replace(terminated=th.tensor([True, False]))  # the other goes on
    weighting.observe(second, second.task)
    assert weighting.fast.tolist() == [20.0, 5.0, 0.0]
    th.testing.assert_close(weighting.slow, th.tensor([16.0, 5.0, 0.0]))
    progress = weighting.progress()
    assert progress[0] > 0 and progress[1] == 0
    th.testing.assert_close(progress[2], progress[:2].mean())  # never seen: counts as average
    shares = weighting.shares(second, second.task)
    assert shares[0] > shares[2] > shares[1] > 0


def test_before_anything_has_ended_all_count_alike():
    rollout = rollout_with([1.0, 2.0], [0, 1])._replace(terminated=th.zeros(2, dtype=th.bool))
    for kind in ("performance", "adaptive", "balanced"):
        weighting = GroupWeights(kind, 2)
        weighting.observe(rollout, rollout.task)
        th.testing.assert_close(weighting.shares(rollout, rollout.task), th.tensor([0.5, 0.5]))


def test_a_function_of_shares_is_checked():
    rollout = rollout_with([1.0, 2.0], [0, 1])
    assert GroupWeights(lambda r, labels: th.tensor([3.0, 1.0]), 2).shares(rollout, rollout.task).tolist() == [3.0, 1.0]
    for returned, says in (
        ([1.0, 2.0], "returned list; it must return one share per group: tensor .2,."),
        (th.ones(3), r"returned \(3,\)"),
        (th.tensor([1.0, -1.0]), r"returned \[1.0, -1.0\]; shares must be finite, 0 or more, and not all 0"),
        (th.tensor([1.0, math.nan]), "must be finite"),
        (th.zeros(2), "not all 0"),
    ):
        with pytest.raises(ValueError, match=says):
            GroupWeights(lambda r, labels: returned, 2).shares(rollout, rollout.task)  # noqa: B023


@pytest.mark.parametrize("kind", ["balanced", "performance", "adaptive", lambda r, labels: th.arange(1.0, 5.0)])
@pytest.mark.parametrize("path", ["host", "device"])
def test_weights_train_are_logged_and_survive_save_and_load(kind, path, tmp_path):
    env = make_tensor_env("CartPoleTasks-v0", 4) if path == "device" else make_vec_env("CartPoleTasks-v0", 4, seed=0)
    model = GRPO("MlpPolicy", env, multitask=dict(tasks=4, grouping="task", weights=kind), device="cpu", **SMALL)
    batches, shares = [], []
    original = model.compute_advantages

    def prepare(rollout):
        prepared = original(rollout)
        batches.append(prepared.batch)
        shares.append({k: v for k, v in model.logger.name_to_value.items() if k.startswith(("share/", "group/weight"))})
        return prepared

    model.compute_advantages = prepare
    model.learn(2_000)
    for batch, share in zip(batches, shares, strict=True):
        th.testing.assert_close(batch.weights.mean(), th.ones(()))
        assert math.isclose(sum(v for k, v in share.items() if k.startswith("share/")), 1.0, rel_tol=1e-4)
        assert set(share) == {f"share/task_{i}" for i in range(4)} | {"group/weight_min", "group/weight_max"}
    if kind in ("performance", "adaptive"):
        assert model.group_weighting.seen.any()
    del model.compute_advantages
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=env, device="cpu")
    th.testing.assert_close(loaded.group_weighting.state_dict(), model.group_weighting.state_dict())
    loaded.learn(300, reset_num_timesteps=False)


def test_the_weights_reach_the_loss():
    """All of the loss for one task: another policy comes out."""
    found = []
    for kind in (None, lambda r, labels: th.tensor([1.0, 0.0, 0.0, 0.0])):
        env = make_vec_env("CartPoleTasks-v0", 4, seed=0)
        model = GRPO("MlpPolicy", env, multitask=dict(tasks=4, grouping="task", weights=kind), **SMALL)
        found.append(weights(model.learn(250)))
    assert (found[0] != found[1]).any()


def test_same_seed_groups_can_be_balanced():
    model = GRPO("MlpPolicy", "CartPole-v1", multitask=dict(weights="balanced"), normalize_advantage="group", **SMALL)
    before = weights(model)
    assert (weights(model.learn(200)) != before).any()


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        (dict(multitask=dict(weights="equal")), "weights='equal' is unknown; use one of .'balanced'"),
        (dict(multitask=dict(weights_kwargs=dict(floor=0.1))), "no effect without weights"),
        (dict(multitask=dict(weights="performance")), "same-seed groups never come back.*weights='balanced'"),
        (dict(multitask=dict(weights="adaptive", grouping=lambda r: r.group)), "labels have no lasting meaning.*n_labels"),
        (
            dict(multitask=dict(weights="balanced", weights_kwargs=dict(decay=1))),
            "unknown key 'decay'.*weights='balanced' takes .'floor'",
        ),
        (dict(multitask=dict(weights="balanced", weights_kwargs=dict(temperature=0))), "temperature=0 must be a number in"),
        (
            dict(multitask=dict(weights="balanced", weights_kwargs=dict(floor=0.0))),
            r"floor=0.0 must be a positive number up to 1",
        ),
        (
            dict(multitask=dict(weights="balanced", weights_kwargs=dict(max_weight=0.5))),
            "max_weight=0.5 must be a number in .1,",
        ),
        (
            dict(multitask=dict(weights="performance", tasks=2, grouping="task", weights_kwargs=dict(ranges=[(0, 1)]))),
            "ranges has 1 pairs for 2 groups",
        ),
        (
            dict(multitask=dict(weights="performance", tasks=1, grouping="task", weights_kwargs=dict(ranges=[(1, 1)]))),
            "high above low",
        ),
    ],
)
def test_arguments(kwargs, says):
    with pytest.raises(ValueError, match=says):
        GRPO("MlpPolicy", "CartPole-v1", **kwargs)
