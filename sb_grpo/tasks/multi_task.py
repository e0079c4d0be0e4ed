"""Multi-task suites: tasks of one env with different physics, goals, reward scales and episode lengths.

Every episode has one task, drawn in ``reset`` from its seed, so members of a group share it. The observation ends with a
one-hot of the task, and ``info["task"]`` is its number. Importing ``sb_grpo`` registers the ids of :data:`SUITES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb_grpo.types import Action, Info, Kwargs

#: Function from (state before, observation after, action, the base env's reward) to the reward of a step.
Goal = Callable[[tuple[float, ...], np.ndarray, Action, float], float]


def as_rewarded(before: tuple[float, ...], after: np.ndarray, action: Action, reward: float) -> float:
    """Reward of the base env."""
    return reward


def hold_right(before: tuple[float, ...], after: np.ndarray, action: Action, reward: float) -> float:
    """CartPole: balance, and hold the cart at x = 1; 1 there and less with the distance."""
    return float(np.exp(-4.0 * (after[0] - 1.0) ** 2))


def hang_down(before: tuple[float, ...], after: np.ndarray, action: Action, reward: float) -> float:
    """Pendulum: Gymnasium's cost with the angle measured from the lowest point."""
    angle, speed = before
    from_bottom = angle % (2.0 * np.pi) - np.pi
    return -float(from_bottom**2 + 0.1 * speed**2 + 0.001 * np.clip(np.ravel(action)[0], -2.0, 2.0) ** 2)


def hover(before: tuple[float, ...], after: np.ndarray, action: Action, reward: float) -> float:
    """LunarLander: stay at half the starting height; 1 there and less with the distance."""
    return float(np.exp(-4.0 * (after[0] ** 2 + (after[1] - 0.7) ** 2)))


class Task(NamedTuple):
    """One member of a family."""

    name: str
    max_steps: int  #: time limit
    scale: float = 1.0  #: factor of the reward
    physics: Mapping[str, Any] = {}  #: attributes of the base env that differ from its own
    goal: Goal = as_rewarded


class Suite(NamedTuple):
    """A family of tasks under one Gymnasium id."""

    base_id: str
    tasks: tuple[Task, ...]


SUITES: dict[str, Suite] = {
    "CartPoleTasks-v0": Suite(
        "CartPole-v1",
        (
            Task("balance", 500),
            Task("mirrored", 500, scale=100.0, physics={"force_mag": -10.0}),
            Task("heavy", 200, scale=0.01, physics={"masspole": 0.5, "length": 1.0}),
            Task("right", 300, scale=0.1, goal=hold_right),
        ),
    ),
    "PendulumTasks-v0": Suite(
        "Pendulum-v1",
        (
            Task("up", 200),
            Task("moon", 200, scale=100.0, physics={"g": 1.6}),
            Task("light", 150, scale=0.1, physics={"m": 0.5}),
            Task("down", 100, scale=0.01, goal=hang_down),
        ),
    ),
    "LunarLanderTasks-v0": Suite(
        "LunarLander-v3",
        (
            Task("land", 600),
            Task("low_gravity", 600, scale=0.01, physics={"gravity": -5.0}),
            Task("windy", 600, scale=10.0, physics={"enable_wind": True, "wind_power": 10.0, "turbulence_power": 1.0}),
            Task("hover", 300, scale=0.1, goal=hover),
        ),
    ),
}


class MultiTaskEnv(gym.Env[np.ndarray, Action]):
    """Env of a suite.

    :param env_id: key of :data:`SUITES`
    :param task: number or name of the task of every episode; None: each reset draws one uniformly
    :param render_mode: of the base env
    :raises ValueError: for a suite or task that does not exist
    """

    metadata: Kwargs = {"render_modes": ["human", "rgb_array"], "render_fps": 50}  # noqa: RUF012

    def __init__(self, env_id: str, task: int | str | None = None, render_mode: str | None = None) -> None:
        suite = SUITES[env_id]
        self.tasks = suite.tasks
        self.task_names = tuple(t.name for t in self.tasks)
        self.fixed_task = None if task is None else find_task(self.task_names, task)
        base: Any = gym.make(suite.base_id, render_mode=render_mode).unwrapped
        self.base = base
        self.metadata = self.base.metadata
        self.render_mode = render_mode
        self._own_physics = {name: getattr(self.base, name) for t in self.tasks for name in t.physics}
        space = base.observation_space
        n = len(self.tasks)
        low = np.append(space.low, np.zeros(n))
        high = np.append(space.high, np.ones(n))
        self.observation_space = spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
        self.action_space = self.base.action_space
        self.task = 0
        self.elapsed = 0

    def _observation(self, obs: np.ndarray) -> np.ndarray:
        one_hot = np.zeros(len(self.tasks), dtype=np.float32)
        one_hot[self.task] = 1.0
        return np.append(np.asarray(obs, dtype=np.float32), one_hot)

    def _set_physics(self, task: Task) -> None:
        for name, value in {**self._own_physics, **task.physics}.items():
            setattr(self.base, name, value)
        if hasattr(self.base, "polemass_length"):  # CartPole stores products of masses and length
            self.base.total_mass = self.base.masspole + self.base.masscart
            self.base.polemass_length = self.base.masspole * self.base.length

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[np.ndarray, Info]:
        """Start an episode.

        :param options: ``{"task": number or name}`` chooses the task of this episode
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(self.tasks)))
        chosen = (options or {}).get("task", self.fixed_task)
        self.task = drawn if chosen is None else find_task(self.task_names, chosen)
        self.elapsed = 0
        self._set_physics(self.tasks[self.task])
        self.base.np_random = self.np_random
        obs, _ = self.base.reset()
        return self._observation(obs), {"task": self.task}

    def step(self, action: Action) -> tuple[np.ndarray, float, bool, bool, Info]:
        task = self.tasks[self.task]
        self.base.np_random = self.np_random  # this env may have got another generator
        before = () if (state := getattr(self.base, "state", None)) is None else tuple(state)
        obs, reward, terminated, _, _ = self.base.step(action)
        self.elapsed += 1
        reward = task.scale * task.goal(before, obs, action, float(reward))
        truncated = self.elapsed >= task.max_steps and not terminated
        return self._observation(obs), reward, bool(terminated), truncated, {"task": self.task}

    def render(self) -> Any:
        return self.base.render()

    def close(self) -> None:
        self.base.close()


def find_task(names: Sequence[str], task: int | str) -> int:
    """Number of a task.

    :param names: of the tasks
    :param task: number or name
    :raises ValueError: if there is none such
    """
    if isinstance(task, str) and task in names:
        return list(names).index(task)
    if isinstance(task, int | np.integer) and 0 <= task < len(names):
        return int(task)
    raise ValueError(f"task={task!r} is unknown: there are {list(names)}, by name or by number from 0 to {len(names) - 1}.")


def register_suites() -> None:
    """Register the ids of :data:`SUITES` with Gymnasium; safe to call twice."""
    for env_id, suite in SUITES.items():
        if env_id not in gym.registry:
            gym.register(
                env_id,
                entry_point="sb_grpo.tasks.multi_task:MultiTaskEnv",
                max_episode_steps=max(task.max_steps for task in suite.tasks),
                kwargs={"env_id": env_id},
            )
