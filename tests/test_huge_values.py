"""One finite but huge number from an env: an error where it appears, and nothing that learns or is averaged is spoilt."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb_grpo import GRPO, CountBonus, RNDBonus
from sb_grpo.callbacks import HealthCallback, HealthWarning
from sb_grpo.envs import make_tensor_env
from sb_grpo.learn.last_good import unharmed
from sb_grpo.maths.normalizer import RunningNormalizer

SIZES = (
    pytest.param(1e20, marks=pytest.mark.slow),
    pytest.param(1e25, marks=pytest.mark.slow),
    1e30,
    pytest.param(3e38, marks=pytest.mark.slow),
)
SETTINGS: dict[str, dict[str, Any]] = {
    "state": {},
    "horizons": dict(advantage_kwargs=dict(horizons=True)),
    "paired": dict(advantage_kwargs=dict(paired=True)),
    "normalize_obs": dict(policy_kwargs=dict(normalize_obs=True), advantage="step", normalize_advantage="batch"),
    "rnd": dict(rewards=dict(bonus=RNDBonus())),
    "counts": dict(rewards=dict(bonus=CountBonus())),
    "clusters": dict(
        multitask=dict(grouping="auto", grouping_kwargs=dict(n_clusters=2, window=20)), normalize_advantage="group"
    ),
    "adaptive": dict(multitask=dict(grouping="length", weights="adaptive"), normalize_advantage="group"),
    "performance": dict(multitask=dict(grouping="length", weights="performance"), normalize_advantage="group"),
}
USUAL: dict[str, Any] = dict(n_steps=64, batch_size=64, n_epochs=1, group_size=2, seed=0, device="cpu")


class Spike(gym.Wrapper):
    """At one step, a huge number; CartPole else."""

    def __init__(self, env: gym.Env, size: float, where: str, at: int = 100) -> None:
        super().__init__(env)
        self.size, self.where, self.at, self.n = size, where, at, 0

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.n += 1
        if self.n == self.at and self.where == "reward":
            reward = self.size
        elif self.n == self.at:
            obs, terminated = obs + np.array([0, self.size, 0, 0], dtype=np.float32), False
        return obs, reward, terminated, truncated, info


def host_env(size: float, where: str) -> VecEnv:
    return make_vec_env("CartPole-v1", 2, seed=0, wrapper_class=Spike, wrapper_kwargs=dict(size=size, where=where))


def tensor_env(size: float, where: str) -> Any:
    """CartPole on the device; slot 1 has the huge number at step 36 of the second rollout."""
    env = make_tensor_env("CartPole-v1", num_envs=4, device="cpu")
    original, n = env.step_tensor, [0]

    def step_tensor(actions: th.Tensor) -> Any:
        step = original(actions)
        n[0] += 1
        name = "rewards" if where == "reward" else "observations"
        values = getattr(step, name)
        if n[0] == 101:
            values = values.clone()
            values[(1,) if where == "reward" else (1, 2)] = size
        return step._replace(**{name: values})

    env.step_tensor = step_tensor
    return env


def learnt(model: GRPO) -> dict[str, Any]:
    """All that learns or is averaged, with what is no buffer."""
    parts = {name: getattr(model, name) for name in ("policy", "estimator", "grouper", "group_weighting", "bonus")}
    found: dict[str, Any] = {}
    for part, top in parts.items():
        for where, module in top.named_modules() if isinstance(top, th.nn.Module) else ():
            own = {k: v for k, v in vars(module).items() if k in ("_moments", "_met", "_waiting")}
            tensors = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
            found |= {f"{part}.{where}.{name}": copy.deepcopy(value) for name, value in {**own, **tensors}.items()}
    return found


def same(a: Any, b: Any) -> bool:
    if isinstance(a, th.Tensor):
        return th.equal(a, b) and bool(a.isfinite().all())
    if isinstance(a, tuple | list) or hasattr(a, "popleft"):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("where", ["reward", "observation"])
@pytest.mark.parametrize("path", ["host", "tensor"])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_huge_number_is_refused_where_it_appears_and_spoils_nothing(name, path, where, size, tmp_path):
    if name == "clusters":
        pytest.importorskip("sklearn")
    env = host_env(size, where) if path == "host" else tensor_env(size, where)
    model = GRPO("MlpPolicy", env, **{**USUAL, **SETTINGS[name]})
    model.learn(64 * env.num_envs)
    before = learnt(model)
    says = r"env 0 \(of 2\)" if path == "host" else "slot 1"
    step = "vector step 100 " if path == "host" else "step 36 of this rollout"
    with pytest.raises(ValueError, match=rf"{where} of {says} is beyond .* at {step}"):
        model.learn(1000, reset_num_timesteps=False)
    after = learnt(model)  # the second rollout has moved nothing but the view of the observations, with the first
    changed = [key for key in before if not same(before[key], after[key])]
    assert [key for key in changed if "obs_normalizer" not in key] == []
    weights = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(2 * 64 * env.num_envs, reset_num_timesteps=False)  # and goes on
    moved = max(float((a - b).abs().max()) for a, b in zip(weights, model.policy.parameters(), strict=True))
    assert 1e-6 < moved < 1.0
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", device="cpu")
    assert all(bool(p.isfinite().all()) for p in loaded.get_parameters()["policy"].values())


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_vec_normalize_is_what_it_was(where):
    env = VecNormalize(host_env(1e30, where))
    model = GRPO("MlpPolicy", env, **USUAL)
    with pytest.raises(ValueError, match=rf"{where} of env 0"):
        model.learn(1000)
    assert env.obs_rms.var.max() < 100 and env.ret_rms.var < 1e4


def test_what_bounds_rewards_takes_any():
    """The remedy that the message names; what was learnt with it is what a reward of the bound would have taught."""
    found = []
    for size in (10.0, 1e30):
        model = GRPO("MlpPolicy", host_env(size, "reward"), rewards=dict(scaling="clip"), **USUAL).learn(384)
        found.append(th.cat([p.detach().flatten() for p in model.policy.parameters()]))
    assert th.equal(*found)


def test_bonuses_and_weights_of_objectives_are_looked_at():
    model = GRPO("MlpPolicy", "CartPole-v1", rewards=dict(bonus=lambda rollout: rollout.rewards * 1e20), **USUAL)
    with pytest.raises(ValueError, match=r"objectives and bonus included, is beyond .*: 1e\+20"):
        model.learn(64)


class Fragile(th.nn.Module):
    """Keeps a mean, a tuple of tensors, a counter, and an optimiser."""

    def __init__(self) -> None:
        super().__init__()
        self.normalizer = RunningNormalizer(1, clip=5.0)
        self.weight = th.nn.Parameter(th.ones(1))
        self.optimizer = th.optim.Adam([self.weight])
        self.memory, self.n = (th.zeros(1), th.zeros(1)), 0

    def see(self, x: float) -> None:
        self.normalizer.update(th.tensor([[x]]))
        self.weight.square().sum().backward()
        self.optimizer.step()
        self.memory, self.n = (th.full((1,), x), th.full((1,), x).square()), self.n + 1


def test_whatever_is_not_finite_is_named_and_put_back():
    module = Fragile()
    with unharmed([module, None, len], "It is a test."):
        module.see(2.0)
    before = copy.deepcopy((module.state_dict(), module.memory, module.n, module.optimizer.state_dict()))
    with (
        pytest.raises(ValueError, match=r"memory of the Fragile was not finite .* It is a test\."),
        unharmed([module], "It is a test."),
    ):
        module.see(1e30)  # its square is no float32
    assert str((module.state_dict(), module.memory, module.n, module.optimizer.state_dict())) == str(before)
    with pytest.raises(KeyError), unharmed([module], ""):
        module.see(3.0)
        raise KeyError("of the estimator's own")
    assert module.n == 1 and float(module.normalizer.mean) == 2.0


def test_health_names_an_outlier_that_is_small_enough_to_pass():
    health = HealthCallback(verbose=0)
    with pytest.warns(HealthWarning, match=r"reward_outlier: A reward of size 1e\+09 .* rewards=dict\(scaling='clip'\)"):
        GRPO("MlpPolicy", host_env(1e9, "reward"), **USUAL).learn(384, health)
