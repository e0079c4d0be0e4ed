"""Host version of the scheduling, routing and packing problems; envs of other packages, by instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Generic, TypeAlias, TypeVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.envs.registration import load_env_creator

from sb_grpo.envs.instance_env import HostInstance, Item
from sb_grpo.tasks.scheduling import JobShop
from sb_grpo.tasks.uncertain import CVRP, Knapsack
from sb_grpo.types import Info, Kwargs, Obs

#: Argument that makes an env of one instance, such as a path.
GivenT = TypeVar("GivenT")
Problem: TypeAlias = JobShop | CVRP | Knapsack


class HostProblem(HostInstance):
    """Host env of a problem, run by its tensor env, with ``action_masks()``, chosen instances, and noise of its own.

    A generator that is put into the env between ``reset`` and the first step, as by GRPO with ``shared_noise=False``, draws
    the noise anew, and the instance stays. After the last step ``info["cost"]`` is the makespan, the length or minus the
    value.

    :param problem: entry point of the tensor env
    :param kwargs: of the tensor env
    """

    tensor_env: Problem

    def __init__(self, problem: str, **kwargs: object) -> None:
        make: Callable[..., Problem] = load_env_creator(problem)  # type: ignore[assignment]  # of a tensor env
        super().__init__(make(1, **kwargs))

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[np.ndarray, Info]:
        """Reset to the instance of a seed.

        :param seed: of instance and noise
        :param options: ``{"instance": k}`` takes the k-th of the env's ``instances``; the seed then draws its noise alone
        :raises ValueError: for a number without an instance
        """
        env = self.tensor_env
        super(HostInstance, self).reset(seed=seed)
        chosen = int(self.np_random.integers(2**31)) if seed is None else seed
        number = (options or {}).get("instance")
        if number is not None:
            n = env.n_given
            if not 0 <= number < n:
                raise ValueError(
                    f"options={options}: the env has {n} instances, numbered from 0. Make it with instances=[...]."
                )
            chosen += number - chosen % n
        env.reset_all(th.tensor([chosen]))
        self._generator = self.np_random
        return self._observation(), {}

    def step(self, action: Item) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Take a valid action.

        :raises ValueError: for an action outside the mask
        """
        env = self.tensor_env
        if self.np_random is not self._generator:
            self._generator = self.np_random
            seeds = th.tensor([int(self.np_random.integers(2**31))])
            env.instances = env.with_noise(env.instances, seeds)
            env.state = env.initial_state(env.instances, th.arange(1)).flatten(0, 1)
        mask = self.action_masks()
        if not (0 <= int(action) < len(mask) and mask[int(action)]):
            raise ValueError(f"Action {action} is not valid: action_masks() allows {np.flatnonzero(mask).tolist()}.")
        found = super().step(action)
        if found[2]:
            found[4]["cost"] = float(env.cost(env.instances, env.state.unsqueeze(0)))
        return found


class ByInstance(gym.Env[Obs, object], Generic[GivenT]):
    """Env of another package whose constructor takes the instance, as one env whose ``reset`` chooses among instances.

    For JSSEnv, job-shop-lib, graph-jsp-env and others that do not reset by seed. The members of a group then get the same
    instance: that of their seed, or of the reset option ``{"instance": k}``. An env is made once per instance, and kept.

    :param make: makes the package's env of one instance
    :param instances: arguments of ``make``, such as paths
    :raises ValueError: for no instances, or instances of different sizes
    """

    def __init__(self, make: Callable[[GivenT], gym.Env[Obs, object]], instances: Sequence[GivenT]) -> None:
        if not instances:
            raise ValueError("instances is empty: give at least one.")
        self.make = make
        self.instances = list(instances)
        self.made: dict[int, gym.Env[Obs, object]] = {}
        self.current = self._env(0)
        self.observation_space = self.current.observation_space
        self.action_space = self.current.action_space

    def _env(self, number: int) -> gym.Env[Obs, object]:
        if not 0 <= number < len(self.instances):
            raise ValueError(f"There is no instance {number!r}: there are {len(self.instances)}, numbered from 0.")
        if number not in self.made:
            env = self.made[number] = self.make(self.instances[number])
            first = self.made[0]
            if (env.observation_space, env.action_space) != (first.observation_space, first.action_space):
                raise ValueError(
                    f"Instance {number} has {env.action_space} and {env.observation_space}, instance 0 {first.action_space} "
                    f"and {first.observation_space}: use instances of one size, or pad them."
                )
        return self.made[number]

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31)) if seed is None else seed
        number = (options or {}).get("instance")
        self.current = self._env(drawn % len(self.instances) if number is None else number)
        takes_seed = "seed" in signature(self.current.reset).parameters
        found: tuple[Obs, Info] | Obs = self.current.reset(seed=drawn) if takes_seed else self.current.reset()
        return found if isinstance(found, tuple) else (found, {})

    def step(self, action: object) -> tuple[Obs, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = self.current.step(action)
        return obs, float(reward), bool(terminated), bool(truncated), info
