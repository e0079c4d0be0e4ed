"""Recovery: trainings that really break down go back to what was healthy, learn on in smaller steps, and give up when told."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO
from sb_grpo.callbacks import RECOVERY_RULES, HealthCallback, RecoveryCallback
from sb_grpo.types import Breakdown
from tests.test_validation import SETTINGS, USUAL, host_env, learnt, same, tensor_env

FAST = dict(n_steps=128, batch_size=64, seed=0, device="cpu")


class Poisoned(gym.Wrapper):
    """CartPole that is broken for good after so many steps."""

    def __init__(self, env: gym.Env, after: int) -> None:
        super().__init__(env)
        self.after, self.n = after, 0

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        self.n += 1
        return (obs, np.nan if self.n > self.after else reward, *rest)


class Watched(RecoveryCallback):
    """Keeps what was there when it was healthy, when it broke down, and after going back."""

    def _keep(self) -> None:
        super()._keep()
        self.healthy = state(self.model)

    def _go_back(self, error: Breakdown) -> None:
        self.broken = state(self.model)
        super()._go_back(error)
        self.back, self.then_healthy = state(self.model), self.healthy


def state(model: GRPO) -> dict[str, Any]:
    """All that learns, by name."""
    moments = model.policy.optimizer.state_dict()["state"]
    found = {f"optimizer.{i}.{k}": copy.deepcopy(v) for i, part in moments.items() for k, v in part.items()}
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        found |= {f"vec_normalize.{k}": float(np.sum(getattr(normalize.obs_rms, k))) for k in ("mean", "var", "count")}
        found["vec_normalize.ret"] = float(normalize.ret_rms.var)
    return {**learnt(model), **found}


def test_steps_far_too_large_become_smaller_until_the_training_learns(capsys):
    """Three hundred times the default: without recovery the policy is one action from the first update on."""
    recovery = RecoveryCallback()
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 4), learning_rate=0.1, **FAST)
    model.learn(8_000, callback=recovery)
    assert 1 <= recovery.n <= 3 and model.lr_scale == 0.5**recovery.n
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * model.lr_scale)
    assert recovery.reasons[0].startswith(("The rule kl is broken", "The rule entropy is broken"))
    assert "Recovery: 1 of 3, at step" in capsys.readouterr().out
    assert model.last_metrics["train/mean_entropy"] > 0.02


def test_a_healthy_training_is_the_same_with_and_without():
    weights = []
    for callback in (None, [HealthCallback(verbose=0), RecoveryCallback()]):
        model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), **FAST)
        model.learn(1_500, callback=callback)
        weights.append(th.cat([p.flatten() for p in model.policy.parameters()]))
    assert th.equal(*weights) and callback[1].n == 0 and model.lr_scale == 1.0


@pytest.mark.parametrize("path", ["host", "tensor"])
@pytest.mark.parametrize("name", ["state", "horizons", "paired", "normalize_obs", "rnd", "adaptive"])
def test_all_that_learns_goes_back_after_one_huge_reward(name, path):
    env = host_env(1e30, "reward") if path == "host" else tensor_env(1e30, "reward")
    recovery = Watched(verbose=0)
    model = GRPO("MlpPolicy", env, **{**USUAL, **SETTINGS[name]})
    model.learn(200 * env.num_envs, callback=recovery)
    assert recovery.n == 1 and "reward of" in recovery.reasons[0] and model.num_timesteps >= 200 * env.num_envs
    assert all(same(recovery.back[key], recovery.then_healthy[key]) for key in recovery.back)
    assert not all(same(value, recovery.back[key]) for key, value in state(model).items())  # it has learnt on from there


def test_what_goes_back_is_what_was_healthy():
    """Bit by bit: weights, optimiser, baseline with its moments, and VecNormalize's statistics."""
    recovery = Watched(verbose=0)
    GRPO("MlpPolicy", VecNormalize(host_env(1e9, "reward")), **USUAL).learn(128 * 4, callback=recovery)
    assert "reward_outlier" in recovery.reasons[0] and "size 1e+09" in recovery.reasons[0]
    assert all(same(recovery.back[key], recovery.then_healthy[key]) for key in recovery.back)
    changed = {key.split(".")[0] for key in recovery.back if not same(recovery.broken[key], recovery.back[key])}
    assert changed == {"policy", "estimator", "optimizer", "vec_normalize"}


def test_after_so_many_times_it_stops_with_the_reason_and_the_healthy_weights():
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2, wrapper_class=Poisoned, wrapper_kwargs=dict(after=200)), **FAST)
    recovery = Watched(max_retries=2, factor=0.1, verbose=0)
    with pytest.raises(Breakdown, match=r"broken down 3 times, and max_retries is 2; .* reward of env 0 .* is not finite"):
        model.learn(4_000, callback=recovery)
    assert recovery.n == 2 and len(recovery.reasons) == 3 and model.lr_scale == pytest.approx(0.01)
    after = state(model)
    assert all(same(after[key], recovery.healthy[key]) for key in after) and model.num_timesteps == 400


def test_the_schedule_is_scaled_and_stays_so_when_it_is_saved(tmp_path):
    model = GRPO("MlpPolicy", "CartPole-v1", learning_rate=lambda progress: 1e-3 * progress, **FAST)
    model.scale_learning_rate(0.5)
    model.scale_learning_rate(0.5)
    assert [model.lr_schedule(x) for x in (1.0, 0.5, 0.0)] == [2.5e-4, 1.25e-4, 0.0]
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=model.env)
    assert loaded.lr_scale == 0.25 and loaded.lr_schedule(0.5) == 1.25e-4
    other = GRPO.load(tmp_path / "model", env=model.env, learning_rate=1e-2)  # as zoo.train --continue gives it
    assert other.lr_schedule(0.5) == 2.5e-3
    plain = GRPO.load(tmp_path / "model", env=model.env, trusted=False, custom_objects={"learning_rate": 1e-2})
    assert plain.lr_schedule(1.0) == 2.5e-3
    plain.lr_schedule = lambda progress: 1e-2 * progress  # by hand: the schedule that is scaled
    plain.scale_learning_rate(0.5)
    assert plain.lr_schedule(0.5) == 2.5e-3


def test_the_end_of_a_training_is_judged_too():
    """The last update breaks the rule: what the training leaves is what was healthy."""
    model = GRPO("MlpPolicy", host_env(1e9, "reward"), **USUAL)
    recovery = Watched(verbose=0)
    model.learn(128 * 2, callback=recovery)  # two rollouts; the reward is in the second
    assert len(recovery.reasons) == 1 and recovery.n == 0 and model.lr_scale == 1.0
    assert all(same(value, recovery.back[key]) for key, value in state(model).items())


def test_without_the_callback_an_error_stays_an_error():
    model = GRPO("MlpPolicy", host_env(1e30, "reward"), **USUAL)
    model.learn(64, callback=RecoveryCallback(verbose=0))
    with pytest.raises(Breakdown, match="beyond"):
        model.learn(4_000, reset_num_timesteps=False)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        (dict(max_retries=0), "max_retries=0 must be at least 1"),
        (dict(factor=1.0), r"factor=1.0 must lie in \(0, 1\)"),
        (dict(factor=0.0), r"factor=0.0 must lie in \(0, 1\)"),
    ],
    ids=lambda x: str(x),
)
def test_values_out_of_range_are_refused(kwargs, says):
    with pytest.raises(ValueError, match=says):
        RecoveryCallback(**kwargs)


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="the model is a PPO"):
        PPO("MlpPolicy", "CartPole-v1", device="cpu", n_steps=64).learn(64, callback=RecoveryCallback())


def test_a_solved_task_has_not_collapsed():
    """What counts as a breakdown of a policy that tries nothing new: not where returns have grown by half."""
    by_name = {rule.name: rule for rule in RECOVERY_RULES}
    assert {"kl", "entropy", "noise_growth", "reward_outlier"} <= set(by_name) and "dead_groups" not in by_name
    assert by_name["entropy"].excused_by == by_name["noise_collapse"].excused_by == "group/baseline"
