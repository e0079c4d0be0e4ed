"""The default discount: a horizon that fits into the env's episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from stable_baselines3.common.atari_wrappers import MaxAndSkipEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv

from sb_grpo import GRPO, SeededResetWrapper
from sb_grpo.collect import plan
from sb_grpo.envs.gymnasium_vector import GymnasiumVectorEnv
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.envs.time_limits import limit_of
from sb_grpo.maths.discount import discount_for


@pytest.mark.parametrize(
    ("limit", "gamma"),
    [(None, 0.995), (1000, 0.995), (200, 0.995), (150, 1 - 1 / 112.5), (100, 0.98), (50, 0.95), (10, 0.95), (1, 0.95)],
)
def test_the_horizon_is_200_steps_or_less_where_episodes_are_shorter(limit: int | None, gamma: float) -> None:
    assert discount_for(limit) == pytest.approx(gamma)


def test_the_share_beyond_the_limit_is_what_the_docstring_says() -> None:
    """Of the discounted steps that follow each step of an episode, the share that lies after its end."""
    limit, horizon = 10_000, 4_000
    left = np.arange(limit, 0, -1)
    assert np.mean((1 - 1 / horizon) ** left) == pytest.approx(0.4 * (1 - np.exp(-2.5)), abs=1e-3)


@pytest.mark.parametrize(
    ("env_id", "limit", "gamma"),
    [("CartPole-v1", None, 0.995), ("Pendulum-v1", None, 0.995), ("CartPole-v1", 100, 0.98), ("Pendulum-v1", 50, 0.95)],
)
def test_gamma_none_asks_the_env(env_id: str, limit: int | None, gamma: float) -> None:
    env = make_vec_env(env_id, 2, env_kwargs=None if limit is None else {"max_episode_steps": limit})
    assert GRPO("MlpPolicy", env, device="cpu").gamma == pytest.approx(gamma)


def unregistered(**attributes: int) -> gym.Env:
    env = gym.make("Pendulum-v1").unwrapped
    env.spec = None
    for name, value in attributes.items():
        setattr(env, name, value)
    return env


class Cutting(PendulumEnv):
    """Cuts its own episodes, as MiniGrid's envs do."""

    def __init__(self, max_steps: int) -> None:
        super().__init__()
        self.max_steps, self.n_steps = max_steps, 0

    def step(self, action: np.ndarray) -> Any:
        self.n_steps += 1
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, self.n_steps >= self.max_steps, info


class Solver(gym.Wrapper):
    """Something else is called ``max_steps``, and nobody cuts an episode by it."""

    max_steps = 4


class CutBySolver(Solver):
    def step(self, action: np.ndarray) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, any([truncated for _ in range(self.max_steps)]), info


class Twice(gym.Wrapper):
    """Takes every action two times."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.frame_skip = 2

    def step(self, action: np.ndarray) -> Any:
        for _ in range(self.frame_skip):
            *result, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                break
        return (*result, terminated, truncated, info)


class Labelled(gym.Wrapper):
    """Has a number of that name that has nothing to do with its steps."""

    frame_skip = 5

    def render(self) -> Any:
        return self.frame_skip


def further_in() -> gym.Env:
    return gym.wrappers.RescaleAction(gym.wrappers.TimeLimit(gym.make("Pendulum-v1", max_episode_steps=300), 50), -1.0, 1.0)


LIMITS: dict[str, tuple[Callable[[], gym.Env], float]] = {
    "none": (unregistered, 0.995),
    "wrapper": (lambda: gym.wrappers.TimeLimit(unregistered(), 50), 0.95),
    "further in": (further_in, 0.95),
    "the shorter of two": (lambda: gym.wrappers.TimeLimit(gym.wrappers.TimeLimit(unregistered(), 50), 200), 0.95),
    "in Monitor": (lambda: Monitor(gym.wrappers.TimeLimit(unregistered(), 100)), 0.98),
    "the env's own": (lambda: Cutting(100), 0.98),
    "the env's own, in wrappers": (lambda: Monitor(gym.wrappers.RescaleAction(Cutting(100), -1.0, 1.0)), 0.98),
    "the env's own, read by a wrapper": (lambda: CutBySolver(unregistered()), 0.95),
    "the env's own, as simulators call it": (lambda: unregistered(max_episode_steps=np.int64(100)), 0.98),
    "no number of steps": (lambda: unregistered(max_steps=True), 0.995),
    "a name of another meaning": (lambda: unregistered(max_steps=4), 0.995),
    "a wrapper's name of another meaning": (lambda: Solver(unregistered()), 0.995),
    "beside a registered one": (lambda: CutBySolver(gym.make("Pendulum-v1")), 0.995),
    "beside a TimeLimit": (lambda: gym.wrappers.TimeLimit(CutBySolver(unregistered(max_episode_steps=7)), 100), 0.98),
    "within a frame skip": (lambda: MaxAndSkipEnv(gym.wrappers.TimeLimit(unregistered(), 400), skip=4), 0.98),
    "within Gymnasium's": (lambda: gym.wrappers.RepeatAction(gym.wrappers.TimeLimit(unregistered(), 400), 4), 0.98),
    "within two frame skips": (lambda: Twice(Monitor(Twice(gym.make("Pendulum-v1", max_episode_steps=399)))), 0.98),
    "around a frame skip": (lambda: gym.wrappers.TimeLimit(Twice(unregistered()), 100), 0.98),
    "the env's own, within a frame skip": (lambda: Twice(Cutting(200)), 0.98),
    "within what is called like a frame skip": (lambda: Labelled(gym.wrappers.TimeLimit(unregistered(), 100)), 0.98),
    "the clearer of two names": (lambda: CutBySolver(unregistered(max_episode_steps=100)), 0.98),
}


@pytest.mark.parametrize(("make", "gamma"), LIMITS.values(), ids=LIMITS)
def test_a_limit_is_found_wherever_it_was_set(make: Callable[[], gym.Env], gamma: float) -> None:
    model = GRPO("MlpPolicy", make(), device="cpu")
    assert model.gamma == pytest.approx(gamma)
    limit = limit_of(make())
    assert model.gamma == pytest.approx(discount_for(limit))
    assert limit is None or gamma == pytest.approx(discount_for(limit))


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_the_adapter_of_vector_envs_finds_it_too(kind: type[VectorEnv]) -> None:
    vec_env = kind([further_in, further_in])
    env = GymnasiumVectorEnv(vec_env)
    assert env.max_episode_steps == 50
    vec_env.close()


def test_whole_episode_estimators_know_a_limit_that_no_spec_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "ENDLESS", 30)
    known = gym.wrappers.TimeLimit(unregistered(), 50)
    kwargs = dict(advantage="outcome", n_steps=64, n_epochs=1, group_size=2, batch_size=32, device="cpu")
    model = GRPO("MlpPolicy", known, **kwargs).learn(100)
    assert model.num_timesteps == 100
    with pytest.raises(ValueError, match="No end after 30 steps"):
        GRPO("MlpPolicy", unregistered(), **kwargs).learn(100)
    promised = gym.make("Pendulum-v1", max_episode_steps=40).unwrapped  # registered, and not kept
    with pytest.raises(ValueError, match="No end after"):
        GRPO("MlpPolicy", promised, **kwargs).learn(100)


def test_a_memory_is_not_refused_for_a_name_of_another_meaning() -> None:
    kwargs = dict(policy_kwargs=dict(memory="gru"), update_kwargs=dict(sequence_length=16), device="cpu")
    GRPO("MlpPolicy", unregistered(max_steps=4), **kwargs)
    with pytest.raises(ValueError, match="sequence_length=16 is longer"):
        GRPO("MlpPolicy", Cutting(4), **kwargs)


def solver_in_a_process() -> gym.Env:
    return Solver(SeededResetWrapper(gym.make("Pendulum-v1")))


def limited_in_a_process() -> gym.Env:
    return gym.wrappers.TimeLimit(SeededResetWrapper(gym.make("Pendulum-v1")), 100)


@pytest.mark.parametrize(("make", "gamma"), [(solver_in_a_process, 0.995), (limited_in_a_process, 0.98)])
def test_wrappers_around_seeded_resets_in_processes(make: Callable[[], gym.Env], gamma: float) -> None:
    env = SubprocVecEnv([make])
    assert GRPO("MlpPolicy", env, device="cpu").gamma == pytest.approx(gamma)
    env.close()


def test_envs_in_processes_and_on_the_device_are_asked_too() -> None:
    kwargs = {"max_episode_steps": 100}
    env = make_vec_env("Pendulum-v1", 2, env_kwargs=kwargs, vec_env_cls=SubprocVecEnv, wrapper_class=SeededResetWrapper)
    assert GRPO("MlpPolicy", env, device="cpu").gamma == pytest.approx(0.98)
    env.close()
    on_device = make_tensor_env("Pendulum-v1", num_envs=2, device="cpu")
    on_device.max_episode_steps = 100
    assert GRPO("MlpPolicy", on_device, device="cpu").gamma == pytest.approx(0.98)


@pytest.mark.parametrize("advantage", ["outcome", "process", "step"])
def test_estimators_that_never_look_beyond_an_episode_keep_the_long_horizon(advantage: str) -> None:
    env = make_vec_env("Pendulum-v1", 1, env_kwargs={"max_episode_steps": 50})
    assert GRPO("MlpPolicy", env, advantage=advantage, device="cpu").gamma == 0.995


def test_a_given_gamma_is_kept_and_a_saved_one_too(tmp_path: Path) -> None:
    short = make_vec_env("Pendulum-v1", 1, env_kwargs={"max_episode_steps": 50})
    assert GRPO("MlpPolicy", short, gamma=0.9, device="cpu").gamma == 0.9
    GRPO("MlpPolicy", short, device="cpu").save(tmp_path / "model")
    assert GRPO.load(tmp_path / "model", env=make_vec_env("Pendulum-v1", 1), device="cpu").gamma == 0.95
    assert GRPO.load(tmp_path / "model", device="cpu").gamma == 0.95
