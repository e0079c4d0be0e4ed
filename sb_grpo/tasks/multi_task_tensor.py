"""Multi-task suites of CartPole and Pendulum as tensor arithmetic; each env may run another task."""

from __future__ import annotations

import math
from collections.abc import Callable

import gymnasium as gym
import torch as th

from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.random import uniform
from sb_grpo.tasks.multi_task import SUITES, as_rewarded, find_task


class _Tasks(FunctionalTensorEnv):
    """Base of the suites. The state is that of the base env and, last, the number of the task.

    :param num_envs: number of envs
    :param device: torch device
    :param dtype: of state and physics
    :param task: number or name of the task of every episode; None: drawn from the reset seed
    """

    #: Attributes of the base env that tasks change, and their values there.
    physics: dict[str, float]
    start_range: tuple[tuple[float, float], ...]

    def __init__(
        self, num_envs: int = 1, device: th.device | str = "cpu", dtype: th.dtype = th.float32, task: int | str | None = None
    ) -> None:
        self.suite = SUITES[self.env_id].tasks
        self.task_names = tuple(t.name for t in self.suite)
        self.fixed_task = None if task is None else find_task(self.task_names, task)
        reference = gym.make(self.env_id)
        limit = max(t.max_steps for t in self.suite)
        super().__init__(num_envs, reference.observation_space, reference.action_space, limit, device, dtype)
        reference.close()

    low: th.Tensor
    high: th.Tensor
    limits: th.Tensor

    def constants(self, tensor: Callable[[object], th.Tensor]) -> None:
        self.low, self.high = tensor(self.start_range).unbind(1)
        self.parameters = {name: tensor([t.physics.get(name, own) for t in self.suite]) for name, own in self.physics.items()}
        self.scale = tensor([t.scale for t in self.suite])
        self.other_goal = tensor([t.goal is not as_rewarded for t in self.suite]).bool()
        self.limits = tensor([t.max_steps for t in self.suite]).long()

    @property
    def tasks(self) -> th.Tensor:
        return self.state[:, -1].long()

    def initial_state(self, seeds: th.Tensor) -> th.Tensor:
        drawn = uniform(seeds, len(self.low) + 1, self.dtype)
        task = (drawn[:, -1:] * len(self.suite)).floor()
        if self.fixed_task is not None:
            task = th.full_like(task, self.fixed_task)
        return th.cat([self.low + (self.high - self.low) * drawn[:, :-1], task], 1)

    def time_limits(self) -> th.Tensor:
        return self.limits[self.tasks]

    def one_hot(self, state: th.Tensor) -> th.Tensor:
        """One-hot of the task, ``[n, T]``."""
        return (state[:, -1:] == th.arange(len(self.suite), device=state.device)).to(state.dtype)


class CartPoleTasks(_Tasks):
    """CartPole with other poles, a reversed motor, and another goal."""

    env_id = "CartPoleTasks-v0"
    physics: dict[str, float] = {"force_mag": 10.0, "masspole": 0.1, "length": 0.5}  # noqa: RUF012
    start_range = ((-0.05, 0.05),) * 4

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        x, x_dot, theta, theta_dot, number = state.unbind(1)
        task = number.long()
        force_mag, mass, length = (self.parameters[name][task] for name in ("force_mag", "masspole", "length"))
        force = force_mag * (2.0 * actions.to(state.dtype) - 1.0)
        cos = theta.cos()
        sin = theta.sin()
        total = mass + 1.0
        temp = (force + mass * length * theta_dot.square() * sin) / total
        theta_acc = (9.8 * sin - cos * temp) / (length * (4.0 / 3.0 - mass * cos.square() / total))
        x_acc = temp - mass * length * theta_acc * cos / total
        x = x + 0.02 * x_dot
        x_dot = x_dot + 0.02 * x_acc
        theta = theta + 0.02 * theta_dot
        theta_dot = theta_dot + 0.02 * theta_acc
        terminated = (x.abs() > 2.4) | (theta.abs() > 12 * 2 * math.pi / 360)
        reward = th.where(self.other_goal[task], (-4.0 * (x - 1.0).square()).exp(), th.ones_like(x))
        return th.stack([x, x_dot, theta, theta_dot, number], 1), self.scale[task] * reward, terminated

    def observe(self, state: th.Tensor) -> th.Tensor:
        return th.cat([state[:, :4], self.one_hot(state)], 1).float()


class PendulumTasks(_Tasks):
    """Pendulum with other gravity, another mass, and another goal."""

    env_id = "PendulumTasks-v0"
    physics: dict[str, float] = {"g": 10.0, "m": 1.0}  # noqa: RUF012
    start_range = ((-math.pi, math.pi), (-1.0, 1.0))

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        theta, theta_dot, number = state.unbind(1)
        task = number.long()
        gravity, mass = (self.parameters[name][task] for name in ("g", "m"))
        torque = actions[:, 0].to(state.dtype).clamp(-2.0, 2.0)
        wanted = th.where(self.other_goal[task], math.pi, 0.0).to(state.dtype)
        angle = th.remainder(theta - wanted + math.pi, 2.0 * math.pi) - math.pi
        cost = angle.square() + 0.1 * theta_dot.square() + 0.001 * torque.square()
        theta_dot = (theta_dot + (1.5 * gravity * theta.sin() + 3.0 / mass * torque) * 0.05).clamp(-8.0, 8.0)
        after = th.stack([theta + theta_dot * 0.05, theta_dot, number], 1)
        return after, -self.scale[task] * cost, th.zeros_like(theta, dtype=th.bool)

    def observe(self, state: th.Tensor) -> th.Tensor:
        theta = state[:, 0]
        theta_dot = state[:, 1]
        return th.cat([th.stack([theta.cos(), theta.sin(), theta_dot], 1), self.one_hot(state)], 1).float()


NATIVE_TASKS: dict[str, type[_Tasks]] = {env.env_id: env for env in (CartPoleTasks, PendulumTasks)}
