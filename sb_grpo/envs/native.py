"""Classic-control envs of Gymnasium as tensor arithmetic. Physics and constants are Gymnasium's, checked in a test."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch as th
from gymnasium.envs.registration import load_env_creator

from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.random import uniform
from sb_grpo.envs.tensor_env import TensorVecEnv


class _ClassicControl(FunctionalTensorEnv):
    """Base that takes spaces and time limit from Gymnasium's registration."""

    #: Bounds of the uniform start state, one pair per component.
    start_range: tuple[tuple[float, float], ...]

    def __init__(self, num_envs: int = 1, device: th.device | str = "cpu", dtype: th.dtype = th.float32) -> None:
        reference = gym.make(self.env_id)
        limit = reference.spec.max_episode_steps if reference.spec else None
        assert limit is not None
        super().__init__(num_envs, reference.observation_space, reference.action_space, limit, device, dtype)
        reference.close()

    low: th.Tensor
    high: th.Tensor

    def constants(self, tensor: Callable[[object], th.Tensor]) -> None:
        self.low, self.high = tensor(self.start_range).unbind(1)

    def initial_state(self, seeds: th.Tensor) -> th.Tensor:
        return self.low + (self.high - self.low) * uniform(seeds, len(self.start_range), self.dtype)


class CartPole(_ClassicControl):
    """State x, x', theta, theta'; Euler steps of 0.02 s (Barto, Sutton & Anderson, 1983)."""

    env_id = "CartPole-v1"
    start_range = ((-0.05, 0.05),) * 4

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        x, x_dot, theta, theta_dot = state.unbind(1)
        force = 20.0 * actions.to(state.dtype) - 10.0
        cos = theta.cos()
        sin = theta.sin()
        temp = (force + 0.05 * theta_dot.square() * sin) / 1.1
        theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos.square() / 1.1))
        x_acc = temp - 0.05 * theta_acc * cos / 1.1
        after = th.stack([x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc], 1)
        terminated = (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > 12 * 2 * math.pi / 360)
        return after, th.ones_like(x), terminated


class Pendulum(_ClassicControl):
    """State theta, theta'; never terminates."""

    env_id = "Pendulum-v1"
    start_range = ((-math.pi, math.pi), (-1.0, 1.0))

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        after, reward = swing(state, actions)
        return after, reward, th.zeros_like(reward, dtype=th.bool)

    def observe(self, state: th.Tensor) -> th.Tensor:
        return seen_of_pole(state)


def swing(state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """Advance the pendulum by one step: ``[n, 2]`` angle and speed after it, reward ``[n]``."""
    theta, theta_dot = state.unbind(1)
    torque = actions[:, 0].to(state.dtype).clamp(-2.0, 2.0)
    angle = th.remainder(theta + math.pi, 2.0 * math.pi) - math.pi
    cost = angle.square() + 0.1 * theta_dot.square() + 0.001 * torque.square()
    theta_dot = (theta_dot + (15.0 * theta.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
    return th.stack([theta + theta_dot * 0.05, theta_dot], 1), -cost


def seen_of_pole(state: th.Tensor) -> th.Tensor:
    """Observation of the pendulum: cosine, sine, speed."""
    theta, theta_dot = state.unbind(1)
    return th.stack([theta.cos(), theta.sin(), theta_dot], 1).float()


class Acrobot(_ClassicControl):
    """State theta1, theta2, theta1', theta2'; one Runge-Kutta step of 0.2 s (Sutton & Barto's book dynamics)."""

    env_id = "Acrobot-v1"
    start_range = ((-0.1, 0.1),) * 4

    @staticmethod
    def _derivative(state: th.Tensor, torque: th.Tensor) -> th.Tensor:
        theta1, theta2, omega1, omega2 = state.unbind(1)
        cos2 = theta2.cos()
        sin2 = theta2.sin()
        d1 = 3.5 + cos2
        d2 = 1.25 + 0.5 * cos2
        phi2 = 4.9 * (theta1 + theta2 - math.pi / 2).cos()
        phi1 = -0.5 * omega2.square() * sin2 - omega2 * omega1 * sin2 + 14.7 * (theta1 - math.pi / 2).cos() + phi2
        alpha2 = (torque + d2 / d1 * phi1 - 0.5 * omega1.square() * sin2 - phi2) / (1.25 - d2.square() / d1)
        alpha1 = -(d2 * alpha2 + phi1) / d1
        return th.stack([omega1, omega2, alpha1, alpha2], 1)

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        torque = actions.to(state.dtype) - 1.0
        k1 = self._derivative(state, torque)
        k2 = self._derivative(state + 0.1 * k1, torque)
        k3 = self._derivative(state + 0.1 * k2, torque)
        k4 = self._derivative(state + 0.2 * k3, torque)
        theta1, theta2, omega1, omega2 = (state + (0.2 / 6.0) * (k1 + 2 * k2 + 2 * k3 + k4)).unbind(1)
        theta1, theta2 = (th.remainder(a + math.pi, 2 * math.pi) - math.pi for a in (theta1, theta2))
        omega1 = omega1.clamp(-4 * math.pi, 4 * math.pi)
        omega2 = omega2.clamp(-9 * math.pi, 9 * math.pi)
        terminated = -theta1.cos() - (theta1 + theta2).cos() > 1.0
        return th.stack([theta1, theta2, omega1, omega2], 1), terminated.to(state.dtype) - 1.0, terminated

    def observe(self, state: th.Tensor) -> th.Tensor:
        theta1, theta2, omega1, omega2 = state.unbind(1)
        return th.stack([theta1.cos(), theta1.sin(), theta2.cos(), theta2.sin(), omega1, omega2], 1).float()


class MountainCar(_ClassicControl):
    """State position, velocity; three actions (Moore, 1990)."""

    env_id = "MountainCar-v0"
    start_range = ((-0.6, -0.4), (0.0, 0.0))

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        after = _car(state, (actions.to(state.dtype) - 1.0) * 0.001)
        terminated = (after[:, 0] >= 0.5) & (after[:, 1] >= 0.0)
        return after, -th.ones_like(after[:, 0]), terminated


class MountainCarContinuous(_ClassicControl):
    """MountainCar with a force in [-1, 1] that costs its square."""

    env_id = "MountainCarContinuous-v0"
    start_range = ((-0.6, -0.4), (0.0, 0.0))

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        force = actions[:, 0].to(state.dtype)
        after = _car(state, force.clamp(-1.0, 1.0) * 0.0015)
        terminated = (after[:, 0] >= 0.45) & (after[:, 1] >= 0.0)
        return after, 100.0 * terminated.to(state.dtype) - 0.1 * force.square(), terminated


def _car(state: th.Tensor, push: th.Tensor) -> th.Tensor:
    """Advance the car in the valley by one step: ``[n, 2]`` position and velocity."""
    position, velocity = state.unbind(1)
    velocity = (velocity + push - 0.0025 * (3.0 * position).cos()).clamp(-0.07, 0.07)
    position = (position + velocity).clamp(-1.2, 0.6)
    velocity = th.where((position <= -1.2) & (velocity < 0), th.zeros_like(velocity), velocity)
    return th.stack([position, velocity], 1)


NATIVE: dict[str, type[_ClassicControl]] = {
    env.env_id: env for env in (CartPole, Pendulum, Acrobot, MountainCar, MountainCarContinuous)
}
#: Tensor versions by Gymnasium id: a class, or its entry point as text. ``sb_grpo.tasks`` adds its own.
TENSOR_VERSIONS: dict[str, type[FunctionalTensorEnv] | str] = {**NATIVE}


def make_tensor_env(env_id: str, num_envs: int, device: th.device | str = "cpu", **kwargs: Any) -> TensorVecEnv:
    """Make a native env by its Gymnasium id.

    :param env_id: one of :data:`TENSOR_VERSIONS`
    :param num_envs: number of envs
    :param device: torch device
    :param kwargs: of the env's class (``dtype``; multi-task: ``task``)
    :raises ValueError: for an id without a native version, or an unavailable device
    """
    if env_id not in TENSOR_VERSIONS:
        near = difflib.get_close_matches(env_id, TENSOR_VERSIONS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"There is no native tensor env {env_id!r}.{hint} There are: {', '.join(sorted(TENSOR_VERSIONS))}.")
    entry = TENSOR_VERSIONS[env_id]
    make: Any = load_env_creator(entry) if isinstance(entry, str) else entry
    env: TensorVecEnv = make(num_envs, device=device, **kwargs)
    return env
