"""InstanceEnv: tensor envs of problem instances, each of which the members of a group solve."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.tensor_env import TensorStep
from sb_grpo.policies.observations import ONE, InstanceSpace
from sb_grpo.types import Info, Kwargs, SavedState, State, TensorOrDict, map_obs

#: Instances of an env: a tensor ``[b, ...]``, or a dict of such.
InstanceT = TypeVar("InstanceT", bound=TensorOrDict)
#: Number of an item, as policies and users give it.
Item: TypeAlias = int | np.integer


class InstanceSnapshot(NamedTuple):
    """State of chosen envs."""

    seeds: th.Tensor  #: [n] of their instances
    state: th.Tensor  #: [n, s]
    elapsed: th.Tensor  #: [n] steps since the reset
    idle: th.Tensor  #: [n] bool, ended


class InstanceEnv(FunctionalTensorEnv, Generic[InstanceT]):
    """Base of tensor envs whose episodes solve a problem instance: a route, a schedule, a packing.

    A reset seed is an instance, and the members of a group are attempts at the same one. Subclasses implement
    :meth:`instance`, :meth:`initial_state`, :meth:`transition` and :meth:`valid`, and set what these need before they call
    this constructor, which finds the spaces with an instance of its own. Tensors have the axes b (instances), g (members per
    instance), and their own. Below GRPO g is ``group_size``; otherwise every env has an instance of its own, and g is 1.

    An observation is one row: the visible parts of the instance, then what :meth:`observe` shows of the state
    (:class:`InstanceSpace`). An :class:`~sb_grpo.policies.encoding.EncodingPolicy` gets them apart, the instance once per
    group. Actions are the items of :meth:`valid`.

    :param num_envs: number of envs; GRPO needs a multiple of ``group_size``
    :param max_episode_steps: time limit
    :param device: torch device
    :param dtype: floating point type of the constants; the policy sees float32
    :raises ValueError: for no envs, an unavailable device, or functions whose results have other shapes
    """

    grouping = "instances"
    #: Keys of the instance that the policy does not see, such as durations that are known only afterwards.
    hidden: ClassVar[Sequence[str]] = ()
    #: Entries at the beginning of what :meth:`observe` returns that are numbers of items, as a current place is.
    pointers: ClassVar[int] = 0
    #: Blocks at its end that have one entry for each item, as flags of the visited ones are.
    per_item: ClassVar[int] = 0
    #: Whether members start unequally because :meth:`initial_state` looks at their numbers.
    unequal_starts: bool = False
    observation_space: InstanceSpace

    def __init__(
        self, num_envs: int, max_episode_steps: int, device: th.device | str = "cpu", dtype: th.dtype = th.float32
    ) -> None:
        self.group_size = 1
        self.apart = False  #: steps return states alone, because the policy has the instances
        found_below = spaces.Box(-np.inf, np.inf, (1,)), spaces.Discrete(1)
        super().__init__(num_envs, *found_below, max_episode_steps, device, dtype)

    # ------------------------------------------------------------ the problem

    @abstractmethod
    def instance(self, seeds: th.Tensor) -> InstanceT:
        """Compute instances, a pure function of the seeds (see ``sb_grpo.envs.random.uniform``).

        :param seeds: ``[b]`` int64
        :return: a tensor ``[b, ...]`` or a dict of such; noise that the policy must not see under keys of :attr:`hidden`
        """

    @abstractmethod
    def initial_state(self, instance: InstanceT, member: th.Tensor) -> th.Tensor:  # type: ignore[override]
        """Compute the states in which members begin.

        :param instance: ``[b, ...]``
        :param member: ``[g]`` int64 numbers of the members within their group, from 0 (for POMO's starts)
        :return: ``[b, g, s]``
        """

    @abstractmethod
    def transition(  # type: ignore[override]
        self, instance: InstanceT, state: th.Tensor, actions: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Advance every member by one step. Members whose episodes have ended are passed too; their results are not used.

        :param instance: ``[b, ...]``
        :param state: ``[b, g, s]``
        :param actions: ``[b, g]`` int64
        :return: next state ``[b, g, s]``, reward ``[b, g]``, terminated ``[b, g]`` bool
        """

    @abstractmethod
    def valid(self, instance: InstanceT, state: th.Tensor) -> th.Tensor:
        """Find the valid actions.

        :param instance: ``[b, ...]``
        :param state: ``[b, g, s]``
        :return: ``[b, g, n]`` bool
        """

    def observe(self, instance: InstanceT, state: th.Tensor) -> th.Tensor:  # type: ignore[override]
        """Compute what the policy sees of states; the states themselves unless overridden.

        :param instance: ``[b, ...]``, hidden parts included
        :param state: ``[b, g, s]``
        :return: ``[b, g, d]``; small integers (``torch.uint8``) make a rollout small
        """
        return state

    def visible(self, instance: InstanceT) -> TensorOrDict:
        """Parts of instances that the policy sees, as float32."""
        if not isinstance(instance, dict):
            return instance.float()
        return {name: part.float() for name, part in instance.items() if name not in self.hidden}

    # ------------------------------------------------------------ tensors

    def _first_state(self) -> th.Tensor:
        self.seeds = th.zeros_like(self.elapsed)  #: [N] of the envs' instances
        self._find_instances()
        state = self.initial_state(self.instances, self._members)
        self._check_shape("initial_state", state, 3)
        seen = self.observe(self.instances, state)
        self._check_shape("observe", seen, 3)
        valid = self.valid(self.instances, state)
        self._check_shape("valid", valid, 3)
        if valid.dtype != th.bool:
            raise ValueError(f"valid() of {type(self).__name__} returns {valid.dtype} and must return torch.bool.")
        visible = self.visible(self.instances)
        parts = visible if isinstance(visible, dict) else {ONE: visible}
        shapes = {name: part.shape[1:] for name, part in parts.items()}
        dtype = seen[:0].cpu().numpy().dtype
        self.observation_space = InstanceSpace(shapes, seen.shape[2], dtype, self.pointers, self.per_item)
        self.action_space = spaces.Discrete(valid.shape[2])
        return state.flatten(0, 1)

    def _check_shape(self, name: str, found: th.Tensor, dims: int) -> None:
        front = (self.num_envs // self.group_size, self.group_size)
        if found.dim() != dims or tuple(found.shape[:2]) != front:
            raise ValueError(
                f"{name}() of {type(self).__name__} returns the shape {tuple(found.shape)} and must return "
                f"({front[0]}, {front[1]}, n): instances, members, and one axis of its own."
            )

    def arrange(self, group_size: int) -> None:
        """Let neighbouring envs share an instance; ``reset_all`` must follow.

        :param group_size: envs per instance; env i is member ``i % group_size``
        :raises ValueError: if it does not divide the number of envs
        """
        if self.num_envs % group_size:
            raise ValueError(
                f"group_size={group_size} must divide num_envs={self.num_envs}, because the envs of a group share an "
                f"instance: make the env with num_envs={-(-self.num_envs // group_size) * group_size}."
            )
        self.group_size = group_size
        self.apart = False

    @property
    def _members(self) -> th.Tensor:
        return th.arange(self.group_size, device=self.device)

    def _find_instances(self) -> None:
        self.instances = self.instance(self.seeds.view(-1, self.group_size)[:, 0])  #: [b, ...], hidden parts included

    def _grouped(self, rows: th.Tensor) -> th.Tensor:
        return rows.view(-1, self.group_size, *rows.shape[1:])

    @property
    def visible_instances(self) -> TensorOrDict:
        """``[b, ...]`` instances that the envs work on, as the policy sees them."""
        return self.visible(self.instances)

    @property
    def seen_states(self) -> th.Tensor:
        """``[N, d]`` states as the policy sees them."""
        return self.observe(self.instances, self._grouped(self.state)).flatten(0, 1)

    @property
    def observations(self) -> th.Tensor:
        each = map_obs(lambda x: x.repeat_interleave(self.group_size, dim=0), self.visible_instances)
        return self.observation_space.join(each, self.seen_states)

    @property
    def action_masks(self) -> th.Tensor:
        return self.valid(self.instances, self._grouped(self.state)).flatten(0, 1)

    def reset_envs(self, mask: th.Tensor, seeds: th.Tensor) -> None:
        if mask.device.type == "cpu" and not mask.any():  # instances cost more than a look
            return
        self.seeds = th.where(mask, seeds, self.seeds)
        self._find_instances()
        first = self.initial_state(self.instances, self._members).flatten(0, 1)
        self.state = th.where(mask.unsqueeze(1), first, self.state)
        self.elapsed = th.where(mask, 0, self.elapsed)
        self.idle = self.idle & ~mask

    def step_tensor(self, actions: th.Tensor) -> TensorStep:
        state, rewards, terminated = self.transition(self.instances, self._grouped(self.state), self._grouped(actions))
        idle = self.idle
        self.state = th.where(idle.unsqueeze(1), self.state, state.flatten(0, 1))
        self.elapsed = self.elapsed + 1
        terminated = terminated.flatten() & ~idle
        truncated = (self.elapsed >= self.time_limits()) & ~terminated & ~idle
        self.idle = idle | terminated | truncated
        observations = self.seen_states if self.apart else self.observations
        return TensorStep(observations, rewards.flatten().float().masked_fill(idle, 0.0), terminated, truncated)

    def snapshot(self, env_indices: th.Tensor) -> InstanceSnapshot:  # type: ignore[override]
        return InstanceSnapshot(
            self.seeds[env_indices], self.state[env_indices], self.elapsed[env_indices], self.idle[env_indices]
        )

    def restore(self, env_indices: th.Tensor, snapshot: InstanceSnapshot) -> None:  # type: ignore[override]
        self.seeds = self.seeds.index_copy(0, env_indices, snapshot.seeds)
        self._find_instances()
        self.state = self.state.index_copy(0, env_indices, snapshot.state)
        self.elapsed = self.elapsed.index_copy(0, env_indices, snapshot.elapsed)
        self.idle = self.idle.index_copy(0, env_indices, snapshot.idle)

    def state_dict(self) -> State:
        return {**super().state_dict(), "group_size": self.group_size}

    def load_state_dict(self, state: SavedState) -> None:
        self.arrange(state["group_size"])
        super().load_state_dict(state)
        self._find_instances()

    def _tensors(self) -> dict[str, th.Tensor]:
        return {name: value for name, value in super()._tensors().items() if name != "instances"}

    # ------------------------------------------------------------ SB3's VecEnv

    def reset(self) -> np.ndarray:
        self.arrange(1)
        return super().reset()

    def step_async(self, actions: np.ndarray) -> None:
        if self.group_size > 1:
            raise ValueError(f"The envs run the groups of a training (group_size={self.group_size}): call reset() first.")
        super().step_async(actions)

    def env_method(
        self, method_name: str, *args: object, indices: int | Iterable[int] | None = None, **kwargs: object
    ) -> list[Any]:
        if method_name == "action_masks":  # sb3-contrib calls it
            return list(self.action_masks.cpu().numpy())
        return super().env_method(method_name, *args, indices=indices, **kwargs)


class HostInstance(gym.Env[np.ndarray, Item]):
    """One env of an :class:`InstanceEnv` as a Gymnasium env, with ``action_masks()`` for sb3-contrib's MaskablePPO.

    :param env: with ``num_envs=1``
    :raises ValueError: for another number of envs
    """

    def __init__(self, env: InstanceEnv) -> None:
        if env.num_envs != 1:
            raise ValueError(
                f"num_envs={env.num_envs} must be 1: a host env is a single env. Make {type(env).__name__}(1, ...)."
            )
        self.tensor_env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        self.tensor_env.reset_all(th.tensor([seed], device=self.tensor_env.device))
        return self._observation(), {}

    def step(self, action: Item) -> tuple[np.ndarray, float, bool, bool, Info]:
        found = self.tensor_env.step_tensor(th.tensor([int(action)], device=self.tensor_env.device))
        return self._observation(), float(found.rewards), bool(found.terminated), bool(found.truncated), {}

    def action_masks(self) -> np.ndarray:
        """``[n]`` bool valid actions, as sb3-contrib asks for them."""
        masks: np.ndarray = self.tensor_env.action_masks[0].cpu().numpy()
        return masks

    def _observation(self) -> np.ndarray:
        observation: np.ndarray = self.tensor_env.observations[0].cpu().numpy()
        return observation
