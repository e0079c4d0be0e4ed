"""TensorVecEnv from three pure functions of tensors: initial state, transition, observation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.envs.tensor_env import TensorStep, TensorVecEnv
from sb_grpo.types import SavedState, State


class Snapshot(NamedTuple):
    """State of chosen envs, which any envs can continue from."""

    state: th.Tensor  #: [n, state_dim]
    elapsed: th.Tensor  #: [n] steps since the reset


class FunctionalTensorEnv(TensorVecEnv):
    """Base of envs whose physics are tensor arithmetic.

    The initial state depends only on the seed, on any device, env and batch size. The tensor interface never leaves the device
    and never waits for it, so GRPO can compile many steps into one graph (``compile=``).

    :param num_envs: number of envs
    :param observation_space: of one env
    :param action_space: of one env
    :param max_episode_steps: time limit
    :param device: torch device
    :param dtype: floating point type of state and physics; observations are float32
    :raises ValueError: for no envs or an unavailable device
    """

    capturable = True
    max_episode_steps: int

    def __init__(
        self,
        num_envs: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        max_episode_steps: int,
        device: th.device | str = "cpu",
        dtype: th.dtype = th.float32,
    ) -> None:
        super().__init__(num_envs, observation_space, action_space, max_episode_steps, device)
        self.dtype = dtype
        self.constants(lambda values: th.as_tensor(np.asarray(values), dtype=dtype, device=self.device))
        self.elapsed = th.zeros(num_envs, dtype=th.int64, device=self.device)
        self.state = self._first_state()

    def _first_state(self) -> th.Tensor:
        return self.initial_state(self.elapsed)

    def constants(self, tensor: Callable[[object], th.Tensor]) -> None:
        """Put the constants of the physics on the device once, so that steps need not wait for a transfer.

        :param tensor: makes a tensor of numbers, of the env's dtype and device
        """

    @abstractmethod
    def initial_state(self, seeds: th.Tensor) -> th.Tensor:
        """Compute initial states, a pure function of the seeds (see ``sb_grpo.envs.random.uniform``).

        :param seeds: ``[n]`` int64
        :return: ``[n, state_dim]``
        """

    @abstractmethod
    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Advance the physics by one step.

        :param state: ``[n, state_dim]``
        :param actions: ``[n]`` int64 or ``[n, k]`` float, within the action space
        :return: next state ``[n, state_dim]``, reward ``[n]``, terminated ``[n]`` bool
        """

    def observe(self, state: th.Tensor) -> th.Tensor:
        """Observations of states, ``[n, ...]`` float32; the state itself unless overridden."""
        return state.float()

    def time_limits(self) -> int | th.Tensor:
        """Time limits in steps: one number, or ``[num_envs]``, at most ``max_episode_steps``."""
        return self.max_episode_steps

    @property
    def observations(self) -> th.Tensor:
        return self.observe(self.state)

    def reset_envs(self, mask: th.Tensor, seeds: th.Tensor) -> None:
        self.state = th.where(mask.unsqueeze(1), self.initial_state(seeds), self.state)
        self.elapsed = th.where(mask, 0, self.elapsed)

    def set_states(self, mask: th.Tensor, states: th.Tensor) -> None:
        """Begin episodes in given states, right after their reset (``group_kwargs=dict(starts=...)``).

        :param mask: ``[num_envs]`` bool
        :param states: ``[num_envs, state_dim]``; ignored outside the mask
        """
        self.state = th.where(mask.unsqueeze(1), states, self.state)

    def step_tensor(self, actions: th.Tensor) -> TensorStep:
        self.state, rewards, terminated = self.transition(self.state, actions)
        self.elapsed = self.elapsed + 1
        truncated = (self.elapsed >= self.time_limits()) & ~terminated
        return TensorStep(self.observations, rewards.float(), terminated, truncated)

    def snapshot(self, env_indices: th.Tensor) -> Snapshot:
        return Snapshot(self.state[env_indices], self.elapsed[env_indices])

    def restore(self, env_indices: th.Tensor, snapshot: Snapshot) -> None:
        self.state = self.state.index_copy(0, env_indices, snapshot.state)
        self.elapsed = self.elapsed.index_copy(0, env_indices, snapshot.elapsed)

    def state_dict(self) -> State:
        """State of the env, including all tensors among its attributes."""
        return {**super().state_dict(), "tensors": self._tensors()}

    def load_state_dict(self, state: SavedState) -> None:
        super().load_state_dict(state)
        for name, tensor in state["tensors"].items():
            there = getattr(self, name, None)
            if isinstance(there, th.Tensor) and there.shape == tensor.shape:
                there.copy_(tensor)  # in place: a compiled graph may hold it
            else:
                setattr(self, name, tensor)

    def _tensors(self) -> dict[str, th.Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, th.Tensor) and name != "_actions"}
