"""Pairing: what the other members of a same-seed group got at the same step is taken out of a residual."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO, Rollout
from sb_grpo.baselines.paired import (
    PERIODS,
    Moments,
    Pairing,
    correlated,
    fitted_coefficient,
    level_of_others,
    period,
)
from sb_grpo.maths.returns import Residuals
from tests.helpers import make_rollout


def rollout_of(lengths: list[int], groups: list[int], start: int = 0) -> Rollout:
    """Episodes that begin at step ``start``; their groups have the same number in the model's stream."""
    rollout = make_rollout([[0.0] * n for n in lengths], groups)
    return rollout._replace(t=rollout.t + start, seed_group=rollout.group)


def plain(values: th.Tensor) -> Residuals:
    """Residuals under one baseline for all episodes."""
    return Residuals(values.unsqueeze(1), th.zeros(len(values), dtype=th.int64), values)


def test_one_group_by_hand() -> None:
    """Steps 0 and 1 of members with residuals (1, 5), (2, 3) and (6): the third ends after its first step."""
    pairing = Pairing(coefficient=1.0)
    after = pairing(plain(th.tensor([1.0, 5.0, 2.0, 3.0, 6.0])), rollout_of([2, 2, 1], [0, 0, 0]))
    # Step 0: 1 - (2 + 6) / 2, 2 - (1 + 6) / 2, 6 - (1 + 2) / 2. Step 1: 5 - 3 and 3 - 5.
    assert after.tolist() == [-3.0, 2.0, -1.5, -2.0, 4.5]
    half = Pairing(coefficient=0.5)(plain(th.tensor([1.0, 5.0, 2.0, 3.0, 6.0])), rollout_of([2, 2, 1], [0, 0, 0]))
    assert half.tolist() == [-1.0, 3.5, 0.25, 0.5, 5.25]


def test_correlation_by_hand() -> None:
    """Covariance 2 and variance 3; covariance -2; no rows; residuals that do not vary."""
    sums = [[4.0, 0.0, 0.0, 8.0, 12.0], [4.0, 0.0, 0.0, -8.0, 12.0], [0.0] * 5, [4.0, 4.0, 4.0, 4.0, 4.0]]
    of_part = correlated(Moments(*th.tensor(sums).unbind(1)))
    assert th.allclose(of_part, th.tensor([[4.0, 8 / 3], [4.0, -8 / 3], [0.0, 0.0], [0.0, 0.0]]))


def test_coefficient_by_hand() -> None:
    """Correlation 2/3: one peer leaves 2/3, two (2/3) / (2/3 + 1/6); nothing in common: 0."""
    part, n = th.tensor([0, 0, 1, 2]), th.tensor([1.0, 2.0, 1.0, 1.0])
    assert th.allclose(fitted_coefficient(th.tensor([2 / 3, 0.0, -0.5]), part, n), th.tensor([2 / 3, 0.8, 0.0, 0.0]))


def test_a_common_level_is_no_noise() -> None:
    """Residuals of 5 on average with nothing in common beside the level: the correlation is that of centred ones."""
    of_part = correlated(Moments(*th.tensor([[4.0, 20.0, 20.0, 100.0, 112.0]]).unbind(1)))
    assert of_part.tolist() == [[4.0, 0.0]]


def test_a_baseline_that_lags_is_no_noise() -> None:
    """Every rollout lies as a whole below or above what was expected, by far more than its rows differ: nothing is paired."""
    th.manual_seed(0)
    pairing, rollout = Pairing(), rollout_of([50] * 16, sorted(list(range(4)) * 4))
    for lag in (100.0, -40.0, 60.0, 90.0, -80.0, 120.0):
        values = lag + th.randn(800)
        after = pairing(plain(values), rollout)
        assert after.var() < 1.05 * values.var()
    assert pairing.metrics["group/paired_coef"] < 0.1


def test_level_of_others_by_hand() -> None:
    """Group means 10, 8, 12 and 0. The first sees 8, 12 and 0, the last 10, 8 and 12."""
    own, group = th.tensor([9.0, 11.0, 8.0, 12.0, 0.0]), th.tensor([0, 0, 1, 2, 3])
    level = level_of_others(own, group)
    first = 20 / 3 * (1 - (208 / 3 - 400 / 9) / 2 / (400 / 9))
    last = 10 * (1 - (308 / 3 - 100) / 2 / 100)
    assert th.allclose(level[[0, 1, 4]], th.tensor([first, first, last]))
    assert level_of_others(own, th.tensor([0, 0, 0, 1, 1])).tolist() == [0.0] * 5
    assert level_of_others(th.zeros(3), th.tensor([0, 1, 2])).tolist() == [0.0] * 3


def test_a_rollout_of_large_residuals_counts_as_one() -> None:
    """Nothing in common in five rollouts, and all in one whose residuals are a thousand times theirs: c is a sixth's."""
    th.manual_seed(0)
    pairing, rollout = Pairing(), rollout_of([50] * 16, sorted(list(range(4)) * 4))
    pairing(plain(1e3 * th.randn(4, 1, 50).expand(4, 4, 50).flatten()), rollout)
    for _ in range(5):
        pairing(plain(th.randn(800)), rollout)
    rows, common = pairing.memory.unbind(1)
    assert 0.05 < (common.sum() / rows.sum()).item() < 0.2


def test_sequences() -> None:
    t = th.tensor([0, 7, 8, 23, 24, 55, 56, 10**6])
    assert period(t).tolist() == [0, 0, 1, 1, 2, 2, 3, PERIODS - 1]


def test_nobody_is_compared_with_itself() -> None:
    """The mean of the other members stays as it is whatever its own residual is; the other members' means move."""
    pairing, rollout = Pairing(coefficient=1.0), rollout_of([3, 3, 3], [0, 0, 0])
    values = th.randn(9)
    before = pairing(plain(values), rollout)
    changed = values.clone()
    changed[:3] += 100.0
    after = Pairing(coefficient=1.0)(plain(changed), rollout)
    assert th.allclose(after[:3] - before[:3], th.full((3,), 100.0), atol=1e-4)
    assert th.allclose(after[3:] - before[3:], th.full((6,), -50.0), atol=1e-4)


def test_other_members_are_seen_under_the_values_that_a_row_had_no_part_in() -> None:
    """Two folds: what a member is compared with comes from its own fold's column, whatever the other column holds."""
    by_fold = th.tensor([[1.0, 70.0], [30.0, 4.0]])
    fold = th.tensor([0, 1])
    residuals = Residuals(by_fold, fold, by_fold.gather(1, fold.unsqueeze(1)).squeeze(1))
    assert Pairing(coefficient=1.0)(residuals, rollout_of([1, 1], [0, 0])).tolist() == [1.0 - 30.0, 4.0 - 70.0]


def test_no_group_has_a_part_in_its_own_coefficient() -> None:
    rollout = rollout_of([5] * 12, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    th.manual_seed(0)
    noise = th.randn(3, 1, 5).expand(3, 4, 5)
    values = (noise + 0.3 * th.randn(3, 4, 5)).flatten()

    def coefficients(of: th.Tensor) -> th.Tensor:
        pairing = Pairing()
        after, residuals = pairing(plain(of), rollout), plain(of)
        others = residuals.own - Pairing(coefficient=1.0)(residuals, rollout)
        return (of - after) / others

    before, changed = coefficients(values), values.clone()
    changed[:20] *= -7.0
    after = coefficients(changed)
    assert th.allclose(before[:20], after[:20], atol=1e-5)
    assert not th.allclose(before[20:], after[20:], atol=1e-3)
    assert bool((before > 0.5).all())  # nearly all is noise here


def test_members_one_after_the_other() -> None:
    """An env alone runs the members in turn: the later ones meet what the earlier ones got, until the group is complete."""
    pairing = Pairing(coefficient=1.0)
    first, second = (rollout_of([2], [0])._replace(seed_group=th.tensor([g])) for g in (7, 8))
    assert pairing(plain(th.tensor([1.0, 2.0])), first).tolist() == [1.0, 2.0]
    assert pairing.metrics == {"group/paired_fraction": 0.0}
    assert pairing(plain(th.tensor([10.0, 20.0])), first).tolist() == [9.0, 18.0]
    assert pairing(plain(th.tensor([4.0, 6.0])), first).tolist() == [4.0 - 5.5, 6.0 - 11.0]
    assert pairing(plain(th.tensor([1.0, 1.0])), second).tolist() == [1.0, 1.0]
    assert pairing._met is not None and len(pairing._met.key) == 2, "group 7 is over and forgotten"


def test_cut_episodes_go_on_where_they_were() -> None:
    """Other members are matched by the step's number in the episode, not in the rollout."""
    pairing = Pairing(coefficient=1.0)
    pairing(plain(th.tensor([1.0, 2.0, 3.0, 4.0])), rollout_of([2, 2], [0, 0]))
    after = pairing(plain(th.tensor([10.0, 20.0])), rollout_of([1, 1], [0, 0], start=2))
    assert after.tolist() == [-10.0, 10.0]


def bandit(noise: float, pairs: str, groups: int = 4000, members: int = 4, steps: int = 3) -> th.Tensor:
    """Policy gradients ``[groups]`` of an input-driven MDP: action 1 pays 1 more, and every step has its noise.

    The policy takes action 1 with probability 1/2 by one logit, so the score is a - 1/2, and the gradient of the expected
    return of ``steps`` steps is steps / 4.
    """
    th.manual_seed(0)
    action = th.randint(2, (groups, members, steps)).float()
    reward = action + noise * th.randn(groups, 1, steps)
    to_go = reward.flip(2).cumsum(2).flip(2)
    to_go -= to_go.mean()  # as the loss does
    rollout = rollout_of([steps] * (groups * members), sorted(list(range(groups)) * members))
    if pairs == "fitted":
        to_go = Pairing()(plain(to_go.flatten()), rollout).view_as(to_go)
    elif pairs == "self-included":
        to_go = to_go - to_go.mean(1, keepdim=True)
    return ((action - 0.5) * to_go).sum(2).mean(1)


def test_the_gradient_stays_and_its_noise_goes() -> None:
    """Unbiased to within four standard errors, with a thirtieth of the variance; a member among the other members is not."""
    truth = 3 / 4

    def off(gradients: th.Tensor) -> float:
        return float((gradients.mean() - truth).abs() / (gradients.std() / len(gradients) ** 0.5))

    without, paired, included = (bandit(3.0, pairs) for pairs in ("none", "fitted", "self-included"))
    assert off(without) < 4
    assert off(paired) < 4
    assert paired.var() < 0.03 * without.var()
    assert off(included) > 20
    assert abs(included.mean().item() - truth * 3 / 4) < 0.01  # a quarter of the signal is subtracted with the noise


def test_without_noise_nothing_is_lost() -> None:
    """Members that share nothing: the coefficient is 0 but for its own noise."""
    assert bandit(0.0, "fitted").var() < 1.02 * bandit(0.0, "none").var()


class Dice(gym.Env):
    """Noise is drawn in ``step``: the reward is a die's deviation plus a tenth for action 1."""

    observation_space, action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        return np.full(1, self.t / 20, np.float32), float(self.np_random.normal() + 0.1 * action), False, self.t == 20, {}


def dice_model(**kwargs) -> GRPO:
    kwargs = dict(advantage_kwargs=dict(paired=True), n_steps=40, group_size=4, seed=0, device="cpu") | kwargs
    return GRPO("MlpPolicy", make_vec_env(Dice, 8), **kwargs)


def test_only_what_members_share_can_be_subtracted() -> None:
    """The causal test: the same env, noise shared or drawn by every member for itself."""
    shared = dice_model().learn(1600).last_metrics
    with pytest.warns(UserWarning, match="nothing is left to pair"):
        own = dice_model(group_kwargs=dict(shared_noise=False))
    own_metrics = own.learn(1600).last_metrics
    assert shared["group/paired_fraction"] == own_metrics["group/paired_fraction"] == 1.0
    assert shared["group/paired_variance"] < 0.05 and shared["group/paired_coef"] > 0.95
    assert own_metrics["group/paired_variance"] > 0.8 and own_metrics["group/paired_coef"] < 0.5


def test_one_env_has_pairs_with_earlier_rollouts() -> None:
    model = GRPO(
        "MlpPolicy",
        make_vec_env(Dice, 1),
        n_steps=20,
        batch_size=20,
        group_size=4,
        n_epochs=1,
        seed=0,
        advantage_kwargs=dict(paired=True),
        device="cpu",
    )
    fractions = []
    for _ in range(8):
        model.learn(20, reset_num_timesteps=False)
        fractions.append(model.last_metrics["group/paired_fraction"])
    assert fractions == [0.0, 1.0, 1.0, 1.0] * 2


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(n_groups=2, n_steps=None),
        dict(rewards=dict(objectives={"a": 1.0, "b": 1.0}, normalization="each")),
        dict(multitask=dict(tasks=1, grouping="hierarchical")),
    ],
)
def test_goes_with_other_options(kwargs: dict) -> None:
    class Vector(Dice):
        def step(self, action: int):
            obs, reward, terminated, truncated, _ = super().step(action)
            return obs, reward, terminated, truncated, {"rewards": {"a": reward, "b": -0.5 * reward}, "task": 0}

    model = GRPO("MlpPolicy", make_vec_env(Vector, 8), seed=0, device="cpu", batch_size=32,
                 **(dict(n_steps=40, group_size=4, advantage_kwargs=dict(paired=True)) | kwargs))  # fmt: skip
    metrics = model.learn(1200).last_metrics
    assert metrics["group/paired_fraction"] == 1.0
    assert metrics["group/paired_variance"] < 0.1


def test_what_is_learnt_is_saved_and_may_come_and_go(tmp_path) -> None:
    model = dice_model().learn(640)
    model.save(tmp_path / "model")
    again = GRPO.load(tmp_path / "model", env=model.get_env())
    assert th.equal(again.estimator.pairing.memory, model.estimator.pairing.memory)
    assert bool((again.estimator.pairing.memory[0] != 0).any())
    without = GRPO.load(tmp_path / "model", env=model.get_env(), advantage_kwargs=dict(paired=False))
    assert without.estimator.pairing is None
    assert th.equal(without.estimator.weights, model.estimator.weights)
    without.save(tmp_path / "without")
    paired = GRPO.load(tmp_path / "without", env=model.get_env(), advantage_kwargs=dict(paired=True))
    assert th.equal(paired.estimator.weights, model.estimator.weights)
    assert bool((paired.estimator.pairing.memory == 0).all())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(group_size=1), "group_size=1 leaves no other members in a group. Use group_size >= 2, or paired=False"),
        (
            dict(multitask=dict(grouping="length"), normalize_advantage="group"),
            "grouping='length' compares episodes of different seeds",
        ),
        (dict(advantage_kwargs=dict(paired=1.5)), r"paired=1.5 must be True .*, False, a number in \[0, 1\] .*, or None"),
        (dict(advantage_kwargs=dict(paired="yes")), "paired='yes' must be"),
        (dict(advantage_kwargs=dict(paired=float("nan"))), "paired=nan must be"),
        (dict(advantage="step"), "unknown key 'paired'.*advantage='step' takes"),
    ],
)
def test_bad_input(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dice_model(**kwargs)


def test_an_env_that_cannot_seed_has_no_pairs() -> None:
    from sb_grpo.envs.native import make_tensor_env

    env = make_tensor_env("CartPole-v1", 4)
    env.grouping = "state"
    with pytest.raises(ValueError, match="CartPole cannot seed its resets"):
        GRPO("MlpPolicy", env, advantage_kwargs=dict(paired=True), n_steps=32, device="cpu")


def test_members_of_a_tensor_env_have_no_noise_of_their_own() -> None:
    from sb_grpo.envs.native import make_tensor_env

    with pytest.raises(ValueError, match=r"shared_noise=False .* CartPole cannot do: its luck follows from the reset seed"):
        GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 8), group_kwargs=dict(shared_noise=False), n_steps=32, device="cpu")


def test_the_pages_snippet_runs_as_it_stands() -> None:
    page = (Path(__file__).parent.parent / "docs" / "when_groups_win.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict = {}
    exec(compile(snippet.replace("20_000", "4_096"), "snippet", "exec"), found)
    assert found["model"].last_metrics["group/paired_fraction"] == 1.0


def test_no_warning_where_there_is_nothing_to_warn_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dice_model()
