"""The trainings whose weights are guarded, in one table: where an argument of GRPO gets another name, only this file changes.

Small envs, small networks and several rollouts each, so that what is carried from rollout to rollout counts. Everything here
runs on the CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from sb_grpo import GRPO, CountBonus, RNDBonus, SeededResetWrapper
from sb_grpo.callbacks import CurriculumCallback, GammaCallback
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.maths.estimators import outcome
from sb_grpo.tasks.causal.policy import InterventionPolicy
from sb_grpo.tasks.goal_car import TensorGoalCar
from tests.helpers import SpaceEnv
from tests.test_objectives import TensorGoals, TwoGoals
from tests.test_simulator_groups import Together, Unseeded

SMALL: dict[str, Any] = dict(n_steps=64, batch_size=64, n_epochs=2, group_size=2)
TINY = dict(net_arch=[8])
GROUPS_OF_8: dict[str, Any] = dict(group_size=8, advantage_kwargs=dict(paired=False))


def train(env: Any, steps: int, *, policy: Any = "MlpPolicy", callback: BaseCallback | None = None, **settings: Any) -> GRPO:
    """A model trained with small settings, unless given others; the state baseline is fitted to every rollout by itself."""
    settings = {**SMALL, "policy_kwargs": TINY, **settings}
    if "advantage" not in settings:
        settings["advantage_kwargs"] = dict(least_rows=1, paired=False) | settings.get("advantage_kwargs", {})
    return GRPO(policy, env, seed=0, device="cpu", **settings).learn(steps, callback=callback)


def host(env_id: str, n_envs: int = 2, **kwargs: Any) -> VecEnv:
    return make_vec_env(env_id, n_envs, seed=0, **kwargs)


def of_spaces(observation: Callable[[], spaces.Space]) -> VecEnv:
    """Two envs with random observations of a space; each has spaces of its own, which it seeds."""
    return DummyVecEnv([lambda: SpaceEnv(observation(), spaces.Discrete(2))] * 2)


def image() -> spaces.Space:
    return spaces.Box(0, 255, (3, 36, 36), np.uint8)


def mixed() -> spaces.Space:
    return spaces.Dict(vector=spaces.Box(-1.0, 1.0, (3,), np.float32), kind=spaces.Discrete(4))


def goals(form: type) -> VecEnv:
    return DummyVecEnv([lambda: TwoGoals(form)] * 2)


def double_outcome(rollout: Any, options: Any) -> th.Tensor:
    """An estimator of a user's own."""
    return 2.0 * outcome(rollout, options)


def subprocesses() -> GRPO:
    fork = dict(start_method="fork")
    env = host("CartPole-v1", vec_env_cls=SubprocVecEnv, vec_env_kwargs=fork, wrapper_class=SeededResetWrapper)
    try:
        return train(env, 512)
    finally:
        env.close()


def loaded_and_continued() -> GRPO:
    """What a zip holds decides how the training goes on: counters, groups, baseline, optimiser."""
    model = train(host("CartPole-v1"), 256, kl_coef=0.1)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        loaded = GRPO.load(Path(folder) / "model", env=host("CartPole-v1"), device="cpu")
    return loaded.learn(256, reset_num_timesteps=False)


GOALS = {"win": 1.0, "cost": 1e-3}

#: Name -> function that trains a model.
CONFIGURATIONS: dict[str, Callable[[], GRPO]] = {
    "defaults": lambda: GRPO("MlpPolicy", host("CartPole-v1", 4), **GROUPS_OF_8, seed=0, device="cpu").learn(4096),
    "outcome": lambda: train(host("CartPole-v1"), 512, advantage="outcome"),
    "outcome_leave_one_out": lambda: train(
        host("CartPole-v1"), 512, advantage="outcome", advantage_kwargs=dict(baseline="leave_one_out")
    ),
    "process": lambda: train(host("Pendulum-v1"), 800, advantage="process", n_steps=None, n_groups=1),
    "step": lambda: train(host("CartPole-v1"), 512, advantage="step", group_size=4),
    "step_drop": lambda: train(
        host("CartPole-v1"), 512, advantage="step", advantage_kwargs=dict(ended_members="drop", baseline="median")
    ),
    "function": lambda: train(host("CartPole-v1"), 512, advantage=double_outcome, normalize_advantage=False),
    "state_n_groups": lambda: train(host("CartPole-v1"), 512, n_steps=None, n_groups=4),
    "state_grouped_by_length": lambda: train(host("CartPole-v1"), 512, multitask=dict(grouping="length")),
    "state_options": lambda: train(
        host("Pendulum-v1"),
        1024,
        advantage_kwargs=dict(memory=0.5, follow_level=True, fit_rows=100, n_features=32, folds=2),
    ),
    "small_rollouts_together": lambda: train(host("CartPole-v1"), 1536, advantage_kwargs=dict(least_rows=256)),
    "horizons": lambda: train(host("CartPole-v1"), 1024, advantage_kwargs=dict(horizons=True)),
    "kl_reference": lambda: train(
        host("CartPole-v1"), 768, kl_coef=0.3, loss_kwargs=dict(ref_sync_interval=2), ent_coef=0.01, target_kl=0.02
    ),
    "cispo_constant": lambda: train(
        host("CartPole-v1"), 512, loss="cispo", loss_kwargs=dict(aggregation="constant", clip_range_high=0.3), advantage="step"
    ),
    "sequence_ratio": lambda: train(
        host("CartPole-v1"),
        512,
        loss_kwargs=dict(importance_level="episode", aggregation="episode", ratio_cap=3.0),
        advantage="outcome",
    ),
    "scaled_rewards_in_micro_batches": lambda: train(
        host("Pendulum-v1"),
        512,
        rewards=dict(scaling="tanh", clip=5.0),
        update_kwargs=dict(micro_batch_size=24, autocast=True),
    ),
    "normalize_obs": lambda: train(host("Pendulum-v1"), 512, policy_kwargs=dict(net_arch=[8], normalize_obs=True)),
    "gsde": lambda: train(host("Pendulum-v1"), 768, use_sde=True, sde_sample_freq=8),
    "images": lambda: train(
        of_spaces(image), 256, policy="CnnPolicy", policy_kwargs=dict(features_extractor_kwargs=dict(features_dim=16))
    ),
    "dict_observations": lambda: train(of_spaces(mixed), 384, policy="MultiInputPolicy"),
    "vec_normalize": lambda: train(VecNormalize(host("CartPole-v1")), 512),
    "subprocesses": subprocesses,
    "loaded_and_continued": loaded_and_continued,
    "tasks": lambda: train(
        host("CartPoleTasks-v0", 4), 1024, multitask=dict(tasks=4, grouping="task", weights="balanced", surgery=True)
    ),
    "tasks_hierarchical": lambda: train(
        host("CartPoleTasks-v0", 4),
        1024,
        multitask=dict(tasks=4, grouping="hierarchical", weights="performance"),
        advantage="outcome",
    ),
    "objectives_sum": lambda: train(goals(dict), 512, rewards=dict(objectives=GOALS), advantage="outcome"),
    "objectives_each": lambda: train(goals(list), 512, rewards=dict(objectives=GOALS, normalization="each")),
    "rnd_bonus": lambda: train(host("CartPole-v1"), 512, rewards=dict(bonus=RNDBonus())),
    "count_bonus": lambda: train(host("CartPole-v1"), 512, rewards=dict(bonus=CountBonus()), advantage="outcome"),
    "gamma_callback": lambda: train(host("CartPole-v1"), 512, callback=GammaCallback(0.5)),
    "causal": lambda: train(
        host("CausalIntervention-v0", env_kwargs=dict(n_variables=3)), 256, policy=InterventionPolicy, policy_kwargs=None
    ),
    "tensor": lambda: train(make_tensor_env("CartPole-v1", 4), 1024),
    "tensor_defaults": lambda: GRPO(
        "MlpPolicy", make_tensor_env("CartPole-v1", 16), **GROUPS_OF_8, seed=0, device="cpu"
    ).learn(4096),
    "tensor_step": lambda: train(make_tensor_env("CartPole-v1", 4), 1024, advantage="step"),
    "tensor_gsde": lambda: train(make_tensor_env("Pendulum-v1", 4), 1024, use_sde=True),
    "tensor_tasks": lambda: train(
        make_tensor_env("CartPoleTasks-v0", 4),
        1024,
        multitask=dict(tasks=4, grouping="task", weights="adaptive", surgery=True),
    ),
    "tensor_objectives": lambda: train(TensorGoals(4), 768, rewards=dict(objectives=GOALS, normalization="each")),
    "tensor_rnd_bonus": lambda: train(make_tensor_env("CartPole-v1", 4), 768, rewards=dict(bonus=RNDBonus())),
    "tensor_copied_states": lambda: train(Unseeded(4), 1024),
    "tensor_synchronous": lambda: train(Together(4), 1024, advantage="outcome"),
    "tensor_curriculum": lambda: train(
        TensorGoalCar(4), 2048, callback=CurriculumCallback([0.0, 0.5], success="terminated", window=2, promote_above=0.0)
    ),
    "captured": lambda: train(make_tensor_env("CartPole-v1", 4), 744, n_steps=62, batch_size=62, compile=True),
    "captured_kl_tasks": lambda: train(
        make_tensor_env("CartPoleTasks-v0", 4),
        732,
        multitask=dict(tasks=4, grouping="hierarchical"),
        kl_coef=0.1,
        n_steps=61,
        compile=True,
    ),
    "captured_update_of_host_envs": lambda: train(host("CartPole-v1"), 512, compile=True, advantage="outcome"),
}
#: These compile for tens of seconds. A graph holds the largest number of steps up to 8 that divides ``n_steps``: here 2 and 1.
SLOW = ("captured", "captured_kl_tasks", "captured_update_of_host_envs")


def learnt(model: GRPO) -> dict[str, list[th.Tensor]]:
    """Everything that a model has learnt, by part: tensors in the order in which their modules hold them."""
    parts = {name: getattr(model, name) for name in ("policy", "ref_policy", "bonus", "group_weighting")}
    parts["state_baseline"] = model.estimator
    return {name: tensors(part.state_dict()) for name, part in parts.items() if isinstance(part, th.nn.Module)}


def tensors(state: dict[str, Any]) -> list[th.Tensor]:
    return [value for value in state.values() if isinstance(value, th.Tensor)]


def logged(model: GRPO) -> Iterable[str]:
    """Keys of what the last rollout and the update after it logged."""
    return model.last_metrics
