"""Soft modularization: the paper's equations term by term, what the task can and cannot reach, and tasks that contradict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from sb_grpo import GRPO
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.policies.routing import RoutedNet
from tests.helpers import SpaceEnv

TASKS = ["balance", "mirrored", "heavy", "right"]
TOGETHER: dict[str, Any] = dict(
    multitask=dict(tasks=TASKS, grouping="task"), policy_kwargs=dict(n_tasks=4), seed=0, device="cpu"
)


class Contrary(gym.Env):
    """Steps of one bit: of three tasks the first wants the bit as the action, the others its opposite."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2)

    def _obs(self) -> np.ndarray:
        self.bit = int(self.np_random.integers(2))
        return np.array([2 * self.bit - 1, *np.eye(3)[self.task]], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.task, self.t = int(self.np_random.integers(3)), 0
        return self._obs(), {"task": self.task}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        right = (int(action) == self.bit) == (self.task == 0)
        return self._obs(), float(right), self.t == 4, False, {"task": self.task}


def test_the_papers_equations_one_module_at_a_time() -> None:
    th.manual_seed(0)
    net = RoutedNet(6, slice(4, 6), [5, 3, 7], n_modules=2, activation_fn=nn.ReLU)
    x = th.randn(1, 6)
    code = net.encode(x[0, :4]).relu()
    wanted = code * net.embed(x[0, 4:])
    first = net.route[0](wanted.relu())
    second = net.route[1]((net.carry[0](first) * wanted).relu())
    at = [code, code]
    for logits, bank in ((first, net.banks[0]), (second, net.banks[1])):
        made = [(at[j] @ bank.weight[j] + bank.bias[j, 0]).relu() for j in range(2)]  # type: ignore[operator, index]
        share = [logits[2 * i : 2 * i + 2].softmax(0) for i in range(2)]
        at = [share[i][0] * made[0] + share[i][1] * made[1] for i in range(2)]
    th.testing.assert_close(net(x)[0], th.cat(at))
    for shares in net.shares(th.randn(9, 6)):
        th.testing.assert_close(shares.sum(2), th.ones(9, 2))


@pytest.mark.parametrize(("n_modules", "differs"), [(1, False), (2, True)])
def test_the_task_chooses_among_modules_and_does_nothing_else(n_modules: int, differs: bool) -> None:
    """With one module there is nothing to choose."""
    th.manual_seed(0)
    net = RoutedNet(5, slice(2, 4), [8, 8], n_modules)  # one more feature after the task, as a memory would add
    state = th.randn(3, 5)
    one, other = (state.index_copy(1, th.tensor([2, 3]), th.eye(2)[task].expand(3, 2)) for task in range(2))
    assert bool((net(one) - net(other)).abs().max() > 1e-3) is differs


def test_tasks_that_want_opposite_actions_are_learnt_by_one_policy() -> None:
    model = GRPO(
        "RoutedPolicy", make_vec_env(Contrary, 4), multitask=dict(tasks=3, grouping="task"), seed=0, device="cpu",
        policy_kwargs=dict(n_tasks=3, n_modules=2, net_arch=[16, 16]), n_steps=128, learning_rate=3e-3, group_size=2,
    ).learn(6_000)  # fmt: skip
    for task, bit in np.ndindex(3, 2):
        obs = np.array([2 * bit - 1, *np.eye(3)[task]], dtype=np.float32)
        assert int(model.predict(obs, deterministic=True)[0]) == (bit if task == 0 else 1 - bit), (task, bit)


@pytest.mark.parametrize(
    "kwargs",
    [
        pytest.param({}, id="plain", marks=pytest.mark.slow),
        pytest.param({"memory": "gru", "memory_size": 4}, id="memory"),
        pytest.param({"normalize_obs": True, "net_arch": [8, 8, 4]}, id="normalised", marks=pytest.mark.slow),
    ],
)
def test_host_envs_saving_and_export(kwargs: dict[str, Any], tmp_path: Path) -> None:
    settings = {**TOGETHER, "policy_kwargs": {"n_tasks": 4, **kwargs}}
    model = GRPO("RoutedPolicy", "CartPoleTasks-v0", n_steps=128, **settings).learn(300)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=model.env, device="cpu")
    obs = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    loaded.learn(128)
    model.export(tmp_path / "policy.onnx")  # which compares the two itself
    model.policy.save(tmp_path / "policy")
    again = type(model.policy).load(tmp_path / "policy")
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], again.predict(obs, deterministic=True)[0])


def test_tensor_envs_with_surgery() -> None:
    env = make_tensor_env("CartPoleTasks-v0", 16)
    surgery = {**TOGETHER, "multitask": {**TOGETHER["multitask"], "surgery": True}}
    model = GRPO("RoutedPolicy", env, n_steps=32, **surgery)
    before = [p.clone() for p in model.policy.parameters()]
    model.learn(1_024)
    assert all(bool((p != q).any()) for p, q in zip(model.policy.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({}, "n_tasks=None, but RoutedPolicy must know how many of the 8"),
        ({"n_tasks": 1}, "n_tasks=1 must be an integer, at least 2"),
        ({"n_tasks": 3}, "declares 4: pass n_tasks=4"),
        ({"n_tasks": 4, "n_modules": 0}, "n_modules=0 must be an integer, at least 1"),
        ({"n_tasks": 4, "net_arch": [64]}, "two sizes or more"),
    ],
)
def test_what_does_not_go_together_is_named(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        GRPO("RoutedPolicy", "CartPoleTasks-v0", **{**TOGETHER, "policy_kwargs": kwargs})


def test_observations_without_a_one_hot_are_refused() -> None:
    images = SpaceEnv(spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.Discrete(2))
    for env, says in ((images, "flat observations"), ("CartPole-v1", "pass 2 to 3")):
        with pytest.raises(ValueError, match=says):
            GRPO("RoutedPolicy", env, policy_kwargs={"n_tasks": 4})


class Masked(Contrary):
    """Allows the right action only."""

    def action_masks(self) -> np.ndarray:
        return np.arange(2) == (self.bit if self.task == 0 else 1 - self.bit)


def test_gsde_masks_and_low_precision_go_with_it() -> None:
    small: dict[str, Any] = dict(policy_kwargs=dict(n_tasks=3, net_arch=[8, 8]), n_steps=32, seed=0, device="cpu")
    model = GRPO("RoutedPolicy", make_vec_env(Masked, 2), update_kwargs=dict(autocast=True), **small).learn(64)
    rollout = model.collect()
    assert rollout is not None and bool((rollout.rewards == 1.0).all())  # what is masked is never done
    small["policy_kwargs"] = dict(n_tasks=4, net_arch=[8, 8])
    GRPO("RoutedPolicy", "PendulumTasks-v0", use_sde=True, **small).learn(64)
