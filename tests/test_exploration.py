"""Exploration bonuses: what they count, that they learn, and that returns stay the env's own."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO, CountBonus, RNDBonus
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.extras.exploration import RandomDistillation, StateCounts
from tests.helpers import ProbeEnv, SpaceEnv, make_rollout
from tests.test_grpo import record, weights

SMALL = dict(n_steps=64, batch_size=32, n_epochs=2, group_size=2, seed=0, device="cpu")
UNIT_BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
BONUSES = [CountBonus(), RNDBonus()]


def rollout_of(obs):
    """One episode that makes these observations."""
    return make_rollout([[0.0] * len(obs)], [0], observations=th.as_tensor(obs, dtype=th.float32))


def test_counts_by_hand():
    bonus = StateCounts(UNIT_BOX, CountBonus(scale=6.0), bounded=True)
    here, there = [0.9, 0.9], [-0.9, -0.9]
    first = bonus(rollout_of([here, here, here, here, there]))
    th.testing.assert_close(first, th.tensor([3.0, 3.0, 3.0, 3.0, 6.0]))  # 6 / sqrt(4), 6 / sqrt(1)
    second = bonus(rollout_of([here, here, here, here, here, there, there, there]))
    th.testing.assert_close(second, th.tensor([2.0] * 5 + [3.0] * 3))  # 6 / sqrt(9), 6 / sqrt(4)
    assert int(bonus.counts.sum()) == 13


def test_cells_tell_near_from_far_in_one_direction():
    bonus = StateCounts(UNIT_BOX, CountBonus(), bounded=True)
    ray = th.linspace(0.05, 1.0, 20).unsqueeze(1) * th.tensor([0.6, -0.8])
    assert len(bonus.cells(ray).unique()) >= 5  # planes through the centre would leave one
    coarse = StateCounts(UNIT_BOX, CountBonus(bits=4), bounded=True)
    assert len(coarse.cells(2 * th.rand(2000, 2) - 1).unique()) <= 11  # 4 lines cut a plane into at most 1 + 4 + 6 cells


def test_bounds_of_the_space_set_the_scale():
    wide = spaces.Box(np.float32([-1.2, -0.07]), np.float32([0.6, 0.07]))
    scaled, unit = StateCounts(wide, CountBonus(), True), StateCounts(UNIT_BOX, CountBonus(), True)
    z = 2 * th.rand(500, 2) - 1
    obs = th.tensor([-0.3, 0.0]) + z * th.tensor([0.9, 0.07])
    assert (scaled.cells(obs) == unit.cells(z)).float().mean() > 0.99  # rounding moves a few across a plane


def test_without_bounds_the_first_rollout_sets_the_scale_for_good():
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    bonus = StateCounts(space, CountBonus(), bounded=False)
    obs = th.randn(200, 2) * th.tensor([100.0, 0.0]) + th.tensor([500.0, 3.0])
    bonus(rollout_of(obs))
    cells = bonus.cells(obs)
    bonus(rollout_of(th.randn(200, 2)))
    assert (bonus.cells(obs) == cells).all() and len(cells.unique()) > 5
    th.testing.assert_close(bonus.width, th.tensor([obs[:, 0].std(unbiased=False), 1.0]))  # constant: left in its own unit


def test_rnd_pays_less_for_what_it_has_seen():
    th.manual_seed(0)
    bonus = RandomDistillation(UNIT_BOX, RNDBonus(learning_rate=1e-3, n_epochs=4), gamma=0.99)
    near, far = th.rand(512, 2) * 0.2, th.tensor([[-1.0, -1.0]])
    before = bonus.error(near).mean().item(), bonus.error(far).mean().item()
    for _ in range(30):
        bonus(rollout_of(near))
    after = bonus.error(near).mean().item(), bonus.error(far).mean().item()
    assert after[0] < 0.1 * before[0] and after[1] > 5 * after[0]


def test_rnd_bonuses_have_the_unit_of_their_discounted_sum():
    th.manual_seed(0)
    bonus = RandomDistillation(UNIT_BOX, RNDBonus(scale=2.0), gamma=0.0)  # gamma 0: the sum is the bonus itself
    values = bonus(rollout_of(th.rand(1000, 2)))
    assert values.std(unbiased=False).item() == pytest.approx(2.0, rel=1e-3) and (values >= 0).all()


@pytest.mark.parametrize("bonus", BONUSES)
@pytest.mark.parametrize("env", ["host", "tensor", "normalized"])
def test_returns_are_logged_without_the_bonus(env, bonus):
    venv = make_tensor_env("CartPole-v1", 4) if env == "tensor" else make_vec_env("CartPole-v1", 4)
    venv = VecNormalize(venv) if env == "normalized" else venv
    model = GRPO("MlpPolicy", venv, rewards=dict(bonus=bonus), **SMALL)
    dumps = record(model)
    model.learn(3000)
    for d in dumps:
        assert d["rollout/bonus_mean"] > 0 and d["rollout/bonus_max"] >= d["rollout/bonus_mean"]
        assert d["rollout/bonus_return"] > d["rollout/bonus_mean"]
        assert d["group/reward_mean"] == 1.0
        if "rollout/ep_rew_mean" in d:
            assert d["rollout/ep_rew_mean"] == d["rollout/ep_len_mean"]  # CartPole pays 1 per step


def action_one(rollout):
    return (rollout.actions == 1).float()


@pytest.mark.parametrize("advantage", ["outcome", "process", "step", "state"])
def test_a_bonus_alone_teaches(advantage):
    model = GRPO(
        "MlpPolicy",
        ProbeEnv("constant"),
        advantage=advantage,
        rewards=dict(bonus=action_one),
        learning_rate=3e-3,
        n_steps=256,
        group_size=8,
        seed=0,
        device="cpu",
    ).learn(2560)
    obs = th.tensor([[1.0, 0.0], [-1.0, 0.5]])
    assert (model.policy.get_distribution(obs).distribution.probs[:, 1] > 0.9).all()


def nothing(rollout):
    return th.zeros_like(rollout.rewards)


def test_none_and_a_bonus_of_zero_give_the_same_weights():
    env = make_vec_env("CartPole-v1", 2)
    off, zero = (weights(GRPO("MlpPolicy", env, rewards=dict(bonus=b), **SMALL).learn(512)) for b in (None, nothing))
    assert (off == zero).all()


@pytest.mark.parametrize("bonus", BONUSES)
def test_a_saved_bonus_goes_on_where_it_was(bonus, tmp_path):
    model = GRPO("MlpPolicy", make_vec_env("Pendulum-v1", 2), rewards=dict(bonus=bonus), **SMALL).learn(512)
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=make_vec_env("Pendulum-v1", 3), device="cpu")
    assert loaded.options.rewards.bonus == bonus
    for twice in range(2):  # the second round also compares the optimiser, which the first has used
        probe = rollout_of(th.rand(64, 3, generator=th.Generator().manual_seed(twice)))
        values = []
        for m in (model, loaded):
            th.manual_seed(0)
            values.append(m.bonus(probe))
        assert (values[0] == values[1]).all()
    loaded.learn(300)
    assert GRPO.load(tmp_path / "m", rewards=dict(bonus=None), device="cpu").bonus is None


def test_a_model_saved_without_a_bonus_can_be_given_one(tmp_path):
    GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), **SMALL).learn(128).save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=make_vec_env("CartPole-v1", 2), rewards=dict(bonus=CountBonus()), device="cpu")
    loaded.learn(256)
    assert int(loaded.bonus.counts.sum()) == 256


@pytest.mark.parametrize("bonus", BONUSES)
def test_one_settings_object_serves_two_models(bonus):
    models = [GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), rewards=dict(bonus=bonus), **SMALL) for _ in range(2)]
    models[0].learn(256)
    assert models[0].bonus is not models[1].bonus
    untouched = models[1].bonus.counts if isinstance(bonus, CountBonus) else models[1].bonus.obs_normalizer.count
    assert int(untouched.sum()) == 0


SPACES = [
    spaces.Discrete(6),
    spaces.MultiDiscrete([3, 2]),
    spaces.MultiBinary(4),
    spaces.Box(0, 255, (3, 36, 36), np.uint8),
    spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,), np.float32), "b": spaces.Discrete(3)}),
]


@pytest.mark.parametrize("bonus", BONUSES)
@pytest.mark.parametrize("space", SPACES, ids=lambda s: type(s).__name__)
def test_every_observation_space(space, bonus):
    kind = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "CnnPolicy" if space.shape == (3, 36, 36) else "MlpPolicy"
    env = make_vec_env(lambda: SpaceEnv(space, spaces.Discrete(2)), 2)
    model = GRPO(kind, env, rewards=dict(bonus=bonus), **{**SMALL, "n_steps": 32}).learn(128)
    assert model._n_gradient_steps > 0


def test_discrete_states_are_counted_one_by_one():
    space = spaces.Discrete(16)
    bonus = StateCounts(space, CountBonus(), bounded=True)
    state = th.tensor([0] * 4 + [15])
    th.testing.assert_close(bonus(make_rollout([[0.0] * 5], [0], observations=state)), th.tensor([0.5] * 4 + [1.0]))
    assert len(bonus.cells(th.arange(16)).unique()) == 16


def nan_at_a_step(rollout):
    bonus = th.zeros_like(rollout.rewards)
    bonus[3] = float("nan")
    return bonus


@pytest.mark.parametrize(
    ("bonus", "says"),
    [
        (nan_at_a_step, r"exploration bonus \(<function nan_at_a_step.* of step \d+ .* is nan.*not been updated"),
        (lambda rollout: rollout.rewards[:2], r"returned \(2,\); it must return a torch tensor with one number per step"),
        (lambda rollout: 1.0, "returned float; it must return"),
    ],
)
def test_bad_bonuses_stop_before_the_update(bonus, says):
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), rewards=dict(bonus=bonus), **SMALL)
    before = weights(model)
    with pytest.raises(ValueError, match=says):
        model.learn(128)
    assert (weights(model) == before).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GRPO("MlpPolicy", "CartPole-v1", rewards=dict(bonus=0.1)), "rewards: bonus=0.1 is no bonus: pass Count"),
        (lambda: GRPO("MlpPolicy", "CartPole-v1", rewards=dict(bonus=CountBonus)), r"is no bonus: pass CountBonus\(\)"),
        (lambda: CountBonus(scale=0.0), "CountBonus: scale=0.0 must be a positive number"),
        (lambda: CountBonus(scale=float("nan")), "CountBonus: scale=nan must be"),
        (lambda: CountBonus(bits=63), "CountBonus: bits=63 must be an integer, at least 1 and at most 62"),
        (lambda: RNDBonus(scale=-1.0), "RNDBonus: scale=-1.0 must be a positive number"),
        (lambda: RNDBonus(learning_rate=float("inf")), "RNDBonus: learning_rate=inf must be"),
        (lambda: RNDBonus(hidden=0), "RNDBonus: hidden=0 must be an integer, at least 1"),
        (lambda: RNDBonus(batch_size=0), "RNDBonus: batch_size=0 must be an integer, at least 1"),
    ],
)
def test_bad_settings(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.slow
def test_mountain_car_needs_the_bonus():
    """Without it no group has a spread: whole episodes that never meet the flag all return -200."""
    returns, steps = {}, {}
    for bonus in (None, CountBonus()):
        model = GRPO(
            "MlpPolicy",
            make_vec_env("MountainCar-v0", 8),
            advantage="outcome",
            rewards=dict(bonus=bonus),
            policy_kwargs=dict(normalize_obs=True),
            seed=100,
            device="cpu",
        ).learn(98_304)
        returns[bonus] = np.mean([info["r"] for info in model.ep_info_buffer])
        steps[bonus] = model._n_gradient_steps
    assert steps[None] == 0 and returns[None] == -200.0
    assert steps[CountBonus()] > 1_000 and returns[CountBonus()] > -180.0


@pytest.mark.parametrize("bound", [5.0, 1e10, np.finfo(np.float32).max, np.inf])
def test_states_are_told_apart_whatever_bounds_are_declared(bound):
    class Wide(SpaceEnv):
        def _obs(self):
            return self.np_random.standard_normal(3).astype(np.float32)

    env = Wide(spaces.Box(-bound, bound, (3,), np.float32), spaces.Discrete(2))
    model = GRPO("MlpPolicy", env, rewards=dict(bonus=CountBonus()), **SMALL).learn(256)
    assert int((model.bonus.counts > 0).sum()) > 10
