"""Third-party tasks with seeded noise, wrapped for SB3 and registered as strings.

The packages come with the extra ``[input_driven]``; they are imported when an env is made. Importing ``sb_grpo`` registers the
ids of :data:`INVENTORY` and :data:`MOTORS`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from sb_grpo.types import Info, Kwargs, Obs


class Inventory(NamedTuple):
    """A task of or-gym-inventory."""

    module: str  #: of the package
    name: str  #: class there
    periods: int  #: of an episode, by default
    backlog: bool | None = None  #: argument of the constructor, if it has one


#: or-gym-inventory, by our id. Its network keeps a backlog (1.0.0) unless the constructor gets False.
INVENTORY: dict[str, Inventory] = {
    "OrNewsvendor-v0": Inventory("newsvendor", "NewsvendorEnv", 40),
    "OrInventoryBacklog-v0": Inventory("inventory_management", "InvManagementBacklogEnv", 30),
    "OrInventoryLostSales-v0": Inventory("inventory_management", "InvManagementLostSalesEnv", 30),
    "OrNetworkBacklog-v0": Inventory("network_management", "NetInvMgmtBacklogEnv", 30),
    "OrNetworkLostSales-v0": Inventory("network_management", "NetInvMgmtLostSalesEnv", 30, backlog=False),
}
#: gym-electric-motor: id, and the id there.
MOTORS: dict[str, str] = {"MotorSpeed-v0": "Cont-SC-SeriesDc-v0", "MotorTorque-v0": "Cont-TC-SeriesDc-v0"}
#: Control cycles of an episode; the package sets no limit.
MOTOR_STEPS = 500


class UnitBoxes(gym.Wrapper):
    """Flatten observations to float32, and scale actions from [-1, 1] to the env's range.

    :param env: Box actions with bounds; integer ones are rounded. Observations may exceed their declared bounds (outstanding
        orders do), so none are declared here
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        box: Any = env.action_space
        self._low = box.low.astype(np.float64)
        self._high = box.high.astype(np.float64)
        self._inner = box.dtype
        self.action_space = spaces.Box(-1.0, 1.0, box.shape, np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (spaces.flatdim(env.observation_space),), np.float32)

    def _flat(self, obs: Obs) -> np.ndarray:
        return np.asarray(spaces.flatten(self.env.observation_space, obs), dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[np.ndarray, Info]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._flat(obs), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        inner = self._low + (np.clip(action, -1.0, 1.0) + 1.0) / 2.0 * (self._high - self._low)
        if np.issubdtype(self._inner, np.integer):
            inner = np.rint(inner)
        obs, reward, terminated, truncated, info = self.env.step(inner.astype(self._inner))
        return self._flat(obs), float(reward), bool(terminated), bool(truncated), info


class ContinuedSeeds(gym.Wrapper):
    """Seed every reset of an env that would otherwise use a random seed of the operating system.

    Resets without a seed continue from the previous seed, as in Gymnasium's envs.
    """

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[Obs, Info]:
        if seed is not None:
            self.unwrapped.np_random = seeding.np_random(seed)[0]
        return self.env.reset(seed=int(self.np_random.integers(2**31)), options=options)


def _package(name: str, module: str) -> ModuleType:
    """Import a module of an optional package.

    :raises ValueError: with the line that installs the package, if it is missing
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f'This env needs {name} ({error}): pip install "sb_grpo[input_driven]"') from error


def make_inventory(task: str, **kwargs: Any) -> gym.Env:
    """Make a task of or-gym-inventory. Each step draws its demand from ``np_random`` once, whatever the orders.

    :param task: key of :data:`INVENTORY`
    :param kwargs: of the package's class; if they change the number of periods, also pass ``max_episode_steps`` to
        ``gym.make``
    """
    source = INVENTORY[task]
    options = {} if source.backlog is None else {"backlog": source.backlog}
    module = _package("or-gym-inventory", f"or_gym_inventory.{source.module}")
    return UnitBoxes(getattr(module, source.name)(**options, **kwargs))


def make_motor(task: str, **kwargs: Any) -> gym.Env:
    """Make a drive of gym-electric-motor that follows a random reference, drawn at reset and again when it ends.

    :param task: key of :data:`MOTORS`
    :param kwargs: of the package's env
    """
    env: gym.Env = _package("gym-electric-motor", "gym_electric_motor").make(MOTORS[task], **kwargs)
    return UnitBoxes(ContinuedSeeds(env.unwrapped))


def register_third_party() -> None:
    """Register the ids with Gymnasium; safe to call twice."""
    for task, source in INVENTORY.items():
        _register(task, "make_inventory", source.periods)
    for task in MOTORS:
        _register(task, "make_motor", MOTOR_STEPS)


def _register(task: str, maker: str, max_episode_steps: int) -> None:
    if task not in gym.registry:
        entry_point = f"sb_grpo.tasks.third_party:{maker}"
        gym.register(task, entry_point=entry_point, max_episode_steps=max_episode_steps, kwargs={"task": task})
