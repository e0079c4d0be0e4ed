"""The derived group size, and what is said of a rollout that shows few different starts."""

import warnings
from types import SimpleNamespace

import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from sb_grpo import GRPO
from sb_grpo.baselines.estimators import Outcome, State
from sb_grpo.config import default_group_size
from sb_grpo.maths.estimators import outcome
from tests.helpers import ProbeEnv

PENDULUM = "Pendulum-v1"  # 200 steps


@pytest.mark.parametrize(
    ("paired", "n_envs", "steps_per_env", "limit", "size"),
    [
        (None, 1, 2048, 200, 1),  # no four groups side by side
        (None, 8, 256, 1000, 1),  # 8 (1 + 0.256) = 10 starts: groups of 2 would leave 5
        (None, 8, 256, 200, 2),  # 8 (1 + 1.28) = 18 starts, 9 in pairs
        (None, 8, 256, 50, 2),  # 49 starts, but two groups of 4 side by side
        (None, 16, 128, 100, 4),  # 36 starts, 9 in fours
        (None, 16, 128, 200, 2),  # 26 starts: three members would leave 8, but not run side by side
        (None, 16, 128, None, 1),  # nobody knows how many starts there will be
        (True, 16, 128, None, 2),
        (None, 256, 8, 1000, 8),
        (True, 1, 2048, 200, 2),  # pairs that were asked for have two members
        (True, 8, 256, 1000, 2),
        (False, 16, 128, 100, 1),
    ],
)
def test_state_takes_as_many_members_as_leave_eight_starts(paired, n_envs, steps_per_env, limit, size):
    assert default_group_size(State(paired=paired), False, None, n_envs, steps_per_env, limit) == size


def test_members_that_are_compared_are_eight():
    silent = SimpleNamespace(uses_values=False, whole_episodes=True)  # does not say what it needs
    for estimator, compares in ((Outcome(), False), (silent, False), (State(), True)):
        assert default_group_size(estimator, compares, None, 16, 128, 100) == 8
    assert default_group_size(State(), False, "no luck in common", 16, 128, 100) == 1


@pytest.mark.parametrize(
    ("n_envs", "settings", "size", "paired"),
    [
        (8, {}, 2, True),
        (8, dict(group_size=4), 4, True),
        (8, dict(group_size=1), 1, False),
        (8, dict(advantage_kwargs=dict(paired=False)), 1, False),
        (8, dict(group_kwargs=dict(shared_noise=False)), 1, False),
        (8, dict(normalize_advantage="group"), 8, True),
        (2, {}, 1, False),
        (8, dict(group_size=lambda progress: 4 if progress > 0.5 else 1), None, True),
    ],
)
def test_the_size_and_the_pairs_of_a_model(n_envs, settings, size, paired):
    model = GRPO("MlpPolicy", make_vec_env(PENDULUM, n_envs), device="cpu", **settings)
    assert size is None or model.group_size == size
    assert (model.estimator.pairing is not None) == paired


def test_other_estimators_have_eight():
    for advantage in ("outcome", "process", "step", lambda rollout, options: outcome(rollout, options)):
        assert GRPO("MlpPolicy", make_vec_env(PENDULUM, 8), advantage=advantage, device="cpu").group_size == 8


def test_a_loaded_model_derives_anew_for_other_envs_and_keeps_a_number(tmp_path):
    for given, after in ((None, 4), (3, 3)):
        model = GRPO("MlpPolicy", make_vec_env(PENDULUM, 8), group_size=given, device="cpu")
        model.save(tmp_path / "m")
        assert GRPO.load(tmp_path / "m", make_vec_env(PENDULUM, 32), device="cpu").group_size == after


def few(model, steps):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.learn(steps)
    return [str(w.message) for w in caught if "different starts" in str(w.message)]


def test_few_starts_are_warned_about_once_with_the_remedy():
    env = DummyVecEnv([lambda: ProbeEnv("action")] * 4)
    messages = few(GRPO("MlpPolicy", make_vec_env(PENDULUM, 4), group_size=4, n_steps=64, batch_size=64, device="cpu"), 1024)
    assert len(messages) == 1
    assert "shows 1 different starts (group_size=4, n_envs=4, n_steps=64)" in messages[0]
    assert "lower group_size, raise n_envs, raise n_steps" in messages[0]
    assert few(GRPO("MlpPolicy", env, group_size=2, n_steps=64, batch_size=64, device="cpu"), 256) == []
    messages = few(GRPO("MlpPolicy", make_vec_env(PENDULUM, 2), group_size=16, n_steps=64, batch_size=64, device="cpu"), 128)
    assert "group_size=16 is more than the 2 episodes of a rollout" in messages[0]


def test_starts_are_counted_in_rollouts_and_in_the_window():
    """Episodes of four steps, groups of 4 on 4 envs: 64 steps per env are 16 groups; a window of 100 episodes holds 25."""
    env = make_vec_env(lambda: ProbeEnv("action"), 4)
    model = GRPO("MlpPolicy", env, group_size=4, n_steps=64, batch_size=64, device="cpu").learn(512)
    assert model.last_metrics["group/n_starts"] == 16
    assert model.last_metrics["rollout/n_starts"] == 25
    assert len({episode["group"] for episode in model.ep_info_buffer}) == 25
