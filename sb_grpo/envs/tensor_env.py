"""TensorVecEnv: an SB3 VecEnv with its state in torch tensors and resets of single envs."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.envs.random import mix
from sb_grpo.state import attributes, put_attributes
from sb_grpo.types import Info, SavedState, State

#: Means of a simulator to give the members of a group equal initial states; see :attr:`TensorVecEnv.grouping`.
GROUPINGS = ("seeds", "state", "streams", "synchronous", "instances")

#: Spaces whose observations are one tensor.
_OBSERVATIONS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class TensorStep(NamedTuple):
    """One step of every env. Ended envs are not reset; this is the caller's task."""

    observations: th.Tensor  #: [N, ...] after the step; for ended episodes the final observation
    rewards: th.Tensor  #: [N]
    terminated: th.Tensor  #: [N] bool
    truncated: th.Tensor  #: [N] bool: the time limit, and not terminated


def map_snapshot(fn: Callable[..., th.Tensor], *snapshots: Any) -> Any:
    """Apply ``fn`` to the tensors of snapshots of one form: a tensor, or tuples, named tuples and dicts of them."""
    first = snapshots[0]
    if isinstance(first, th.Tensor):
        return fn(*snapshots)
    if isinstance(first, dict):
        return {key: map_snapshot(fn, *(s[key] for s in snapshots)) for key in first}
    parts = [map_snapshot(fn, *leaves) for leaves in zip(*snapshots, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


class TensorVecEnv(VecEnv):
    """Envs on one torch device with resets of single envs: GRPO's interface to simulators with tensors.

    The tensor interface (``observations``, ``reset_envs``, ``step_tensor``; optionally ``snapshot``, ``restore``) never
    resets by itself. The VecEnv interface (``reset``, ``step``) uses NumPy and resets by itself, for ``evaluate_policy``,
    callbacks and recorders; it reports episodes like Monitor.

    Write your own env as a :class:`sb_grpo.envs.functional.FunctionalTensorEnv` if possible: three pure functions of tensors.

    :param num_envs: number of envs
    :param observation_space: of one env
    :param action_space: of one env
    :param max_episode_steps: time limit; None: unknown to this class
    :param device: torch device
    :raises ValueError: for no envs, observations that are not a single tensor, or an unavailable device
    """

    env_id: ClassVar[str] = ""
    #: Whether the tensor interface is only tensor arithmetic, so that many steps can be compiled into one graph.
    capturable: ClassVar[bool] = False

    #: Means to give members of a group equal initial states:
    #:
    #: - ``"seeds"``: envs are reset singly, and equal seeds give equal initial states.
    #: - ``"state"``: envs are reset singly without seeds: a leader is reset, and the others get its ``snapshot``.
    #: - ``"streams"``: initial states come from streams that ``reset_all`` seeds; ``reset_envs`` takes each env's next.
    #: - ``"synchronous"``: only ``reset_all``. Ended envs idle until the last has ended (:meth:`hold_ended`).
    #: - ``"instances"``: neighbouring envs work on one problem instance and start together
    #:   (:class:`~sb_grpo.envs.instance_env.InstanceEnv`).
    grouping: str = "seeds"

    def __init__(
        self,
        num_envs: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        max_episode_steps: int | None,
        device: th.device | str = "cpu",
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs} is too small: it must be at least 1.")
        if not isinstance(observation_space, _OBSERVATIONS):
            raise ValueError(
                f"observation_space={observation_space} of a tensor env must be a Box, Discrete, MultiDiscrete or "
                "MultiBinary: one tensor. Join its parts into one Box (gymnasium.wrappers.FlattenObservation around each env "
                "of a simulator), or train on an SB3 VecEnv, which takes Dict."
            )
        self.device = th.device(device)
        self.max_episode_steps = max_episode_steps
        try:
            th.zeros(1, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"device={str(device)!r} is not there ({error}). Use device='cpu', or a device that is."
            ) from error
        self.spec = gym.spec(self.env_id) if self.env_id else None
        self.allow_early_resets = True
        self.render_mode = None
        super().__init__(num_envs, observation_space, action_space)
        self._episode_return = np.zeros(num_envs)
        self._episode_length = np.zeros(num_envs, dtype=np.int64)
        self._base_seed = 0
        self._episodes_started = 0
        self.calls = 0  #: resets and steps by SB3's interface; GRPO makes none during a rollout
        self._start = time.time()
        self.idle = th.zeros(num_envs, dtype=th.bool, device=self.device)  #: ended envs that wait for the others
        self._held: th.Tensor | None = None

    # ------------------------------------------------------------ tensors

    @property
    @abstractmethod
    def observations(self) -> th.Tensor:
        """``[N, ...]`` current observations."""

    @property
    def action_masks(self) -> th.Tensor | None:
        """``[N, m]`` bool, current valid actions (docs/masks.md); None: all actions are always valid."""
        return None

    @abstractmethod
    def reset_envs(self, mask: th.Tensor, seeds: th.Tensor) -> None:
        """Reset the envs in a mask: equal seeds give equal initial states (if ``grouping`` is ``"seeds"``).

        :param mask: ``[N]`` bool
        :param seeds: ``[N]`` int64 in [0, 2^31), one per env; ignored outside the mask
        """

    def reset_all(self, seeds: th.Tensor) -> None:
        """Reset every env, and its stream of later initial states if there is one.

        :param seeds: ``[N]`` int64 in [0, 2^31), one per env
        """
        self.reset_envs(th.ones(self.num_envs, dtype=th.bool, device=self.device), seeds)

    @abstractmethod
    def step_tensor(self, actions: th.Tensor) -> TensorStep:
        """Step every env, also ended ones until the caller resets them.

        :param actions: ``[N]`` int64 or ``[N, k]`` float on the env's device
        """

    def snapshot(self, env_indices: th.Tensor) -> Any:
        """Copy the state of chosen envs, if the simulator supports it.

        :param env_indices: ``[n]`` int64 indices
        :return: a tensor, or a tuple of tensors, with n rows each
        """
        raise NotImplementedError(f"{type(self).__name__} cannot copy the state of envs.")

    def restore(self, env_indices: th.Tensor, snapshot: Any) -> None:
        """Write copied states into envs; several may get the same row.

        :param env_indices: ``[n]`` int64 indices, all different
        :param snapshot: n rows of :meth:`snapshot`
        """
        raise NotImplementedError(f"{type(self).__name__} cannot set the state of envs.")

    #: Attributes in :meth:`state_dict` besides the envs' states.
    STATE: ClassVar[tuple[str, ...]] = (
        "idle", "_held", "_episode_return", "_episode_length", "_base_seed", "_episodes_started"
    )  # fmt: skip

    def state_dict(self) -> State:
        """Complete state: with the actions it determines the next steps. Envs with further state, such as a difficulty, add
        it.

        :raises NotImplementedError: if the simulator cannot copy its state
        """
        return {"envs": self.snapshot(th.arange(self.num_envs, device=self.device)), **attributes(self, self.STATE)}

    def load_state_dict(self, state: SavedState) -> None:
        """Restore the state of another env of this kind.

        :param state: of :meth:`state_dict`
        """
        env_indices = th.arange(self.num_envs, device=self.device)
        self.reset_all(th.zeros_like(env_indices))  # some have no state before their first reset
        self.restore(env_indices, map_snapshot(lambda _, saved: saved, self.snapshot(env_indices), state["envs"]))
        put_attributes(self, self.STATE, state)

    @property
    def tasks(self) -> th.Tensor | None:
        """``[N]`` int64 task of every env's episode, from 0; None: only one task."""
        return None

    #: Names of the columns of :attr:`objectives`.
    objective_names: tuple[str, ...] = ()
    #: ``[N, len(objective_names)]`` float32: the rewards of the last step by objective; None: only one reward.
    objectives: th.Tensor | None = None

    def hold_ended(self, step: TensorStep) -> TensorStep:
        """Adapt the step of a synchronous env: ended envs keep their last observation, earn 0 and do not end again.

        ``reset_all`` must call :meth:`wake` first.

        :param step: the simulator's step of every env
        """
        idle = self.idle
        held = self._held
        observations = step.observations
        if held is not None:
            observations = th.where(idle.view(-1, *[1] * (observations.dim() - 1)), held, observations)
        terminated = step.terminated & ~idle
        truncated = step.truncated & ~idle
        self.idle = idle | terminated | truncated
        self._held = observations
        return TensorStep(observations, step.rewards.masked_fill(idle, 0.0), terminated, truncated)

    def wake(self) -> None:
        """End the idling of all envs."""
        self.idle = th.zeros_like(self.idle)
        self._held = None

    # ------------------------------------------------------------ SB3's VecEnv

    def _fresh_seeds(self) -> th.Tensor:
        """Seeds of the VecEnv interface's next episodes; the 1 separates them from a model's group seeds."""
        seeds = [mix(self._base_seed, self._episodes_started + i, 1) >> 33 for i in range(self.num_envs)]
        self._episodes_started += self.num_envs
        return th.tensor(seeds, device=self.device)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        self._base_seed = int(np.random.randint(2**31)) if seed is None else seed
        self._episodes_started = 0
        return [self._base_seed] * self.num_envs

    def reset(self) -> np.ndarray:  # type: ignore[override]
        self.reset_all(self._fresh_seeds())
        self._episode_return[:] = 0.0
        self._episode_length[:] = 0
        self.calls += 1
        self._reset_seeds()
        self._reset_options()
        return self.observations.cpu().numpy()

    def step_async(self, actions: np.ndarray) -> None:
        self.calls += 1
        check_actions(np.asarray(actions), self.action_space)
        self._actions = th.as_tensor(actions, device=self.device)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[Info]]:  # type: ignore[override]
        running = ~self.idle.cpu().numpy()
        step = self.step_tensor(self._actions)
        done_mask = step.terminated | step.truncated
        rewards = step.rewards.cpu().numpy()
        dones = done_mask.cpu().numpy()
        self._episode_return += rewards
        self._episode_length += running
        infos: list[Info] = [{} for _ in range(self.num_envs)]
        if self.tasks is not None:
            for info, task in zip(infos, self.tasks.tolist(), strict=True):
                info["task"] = task
        if self.objectives is not None:
            for info, values in zip(infos, self.objectives.tolist(), strict=True):
                info["rewards"] = dict(zip(self.objective_names, values, strict=True))
        if dones.any():
            final = step.observations.cpu().numpy()
            truncated = step.truncated.cpu().numpy()
            for env_index in np.flatnonzero(dones).tolist():
                seconds = round(time.time() - self._start, 6)
                infos[env_index] |= {
                    "terminal_observation": final[env_index],
                    "TimeLimit.truncated": bool(truncated[env_index]),
                    "episode": {
                        "r": float(self._episode_return[env_index]),
                        "l": int(self._episode_length[env_index]),
                        "t": seconds,
                    },
                }
            self._episode_return[dones] = 0.0
            self._episode_length[dones] = 0
            if self.grouping != "synchronous":
                self.reset_envs(done_mask, self._fresh_seeds())
            elif self.idle.all():
                self.reset_all(self._fresh_seeds())
        return self.observations.cpu().numpy(), rewards, dones, infos

    def close(self) -> None:
        """Close the env; there is nothing to release."""

    def _n(self, indices: int | Iterable[int] | None) -> int:
        return len(list(self._get_indices(indices)))

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        return [getattr(self, attr_name)] * self._n(indices)

    def set_attr(self, attr_name: str, value: object, indices: int | Iterable[int] | None = None) -> None:
        if self._n(indices) != self.num_envs:
            raise ValueError(f"{attr_name!r} belongs to all envs of a {type(self).__name__} together: leave indices out.")
        setattr(self, attr_name, value)

    def env_method(
        self, method_name: str, *args: object, indices: int | Iterable[int] | None = None, **kwargs: object
    ) -> list[Any]:
        if self._n(indices) != self.num_envs:
            raise ValueError(f"{method_name!r} acts on all envs of a {type(self).__name__} together: leave indices out.")
        return [getattr(self, method_name)(*args, **kwargs)] * self.num_envs

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: int | Iterable[int] | None = None) -> list[bool]:
        """Return True for Monitor, because this env reports ``info["episode"]``."""
        return [wrapper_class is Monitor] * self._n(indices)


def check_actions(actions: np.ndarray, space: spaces.Space) -> None:
    """Check that the space contains the actions. Box actions must be finite; envs clip them.

    :param actions: ``[N, ...]``
    :param space: of one env
    :raises ValueError: naming the first env, its action and the space
    """
    if isinstance(space, spaces.Box):
        bad = ~np.isfinite(actions)
    elif isinstance(space, spaces.MultiBinary):
        bad = (actions != 0) & (actions != 1)
    else:
        n = space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n  # type: ignore[attr-defined]
        bad = (actions < 0) | (actions >= n)
    bad_envs = bad.reshape(len(actions), -1).any(axis=1)
    if bad_envs.any():
        env_index = int(np.flatnonzero(bad_envs)[0])
        raise ValueError(f"Action {actions[env_index]} of env {env_index} is outside {space}.")


def is_tensor_env(env: object) -> bool:
    """Whether an env is a TensorVecEnv."""
    return isinstance(env, TensorVecEnv)
