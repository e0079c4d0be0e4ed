"""Any ``gymnasium.vector.VectorEnv`` as a TensorVecEnv, in every autoreset mode."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from sb_grpo.envs.host_simulator import HostSimulatorEnv
from sb_grpo.envs.tensor_env import TensorStep
from sb_grpo.envs.time_limits import limit_among, limit_of
from sb_grpo.types import Info

#: Errors of a reset without support for seed lists or masks.
_REFUSALS = (TypeError, ValueError, KeyError, IndexError, AssertionError, NotImplementedError, gym.error.Error)


class GymnasiumVectorEnv(HostSimulatorEnv):
    """Resets single envs of a vector env by ``reset(seed=[...], options={"reset_mask": ...})``.

    All three autoreset modes give the same episodes: with NEXT_STEP and SAME_STEP an ended env is reset with its seed at once,
    so that no step is lost to the vector env's own reset. The constructor tries masked, seeded resets.

    :param vec_env: the vector env; it is reset here, and must not be stepped elsewhere
    :param device: torch device of the tensors
    :param synchronous: for vector envs without masked resets: groups start together, and ended envs idle until the last
        episode has ended
    :param broadcast: synchronous only: ``broadcast(vec_env, leader)`` copies the state of env ``leader[i]`` to env ``i``
        (int64 ``[N]``) after a reset; without it initial states differ if the vector env takes no seed lists
    :param max_episode_steps: time limit; None: from wrappers, the env or its registration
    :raises ValueError: for anything but a vector env, for observations that tensors cannot hold, if envs cannot be reset
        singly and ``synchronous`` is False, or if a reset does not last
    """

    def __init__(
        self,
        vec_env: VectorEnv,
        device: th.device | str = "cpu",
        synchronous: bool = False,
        broadcast: Callable[[VectorEnv, np.ndarray], None] | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        if not isinstance(vec_env, VectorEnv):
            raise ValueError(
                f"vec_env={vec_env!r} is a {type(vec_env).__name__}, not a gymnasium.vector.VectorEnv: make one with "
                "gymnasium.make_vec(...). An SB3 VecEnv or a gymnasium.Env goes to GRPO as it is."
            )
        _check_kind(vec_env)
        self.vec_env: Any = vec_env  # VectorEnv.reset is annotated for one seed only
        self.broadcast = broadcast
        self.autoreset_mode = AutoresetMode(vec_env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        _check_resets_last(vec_env, self.autoreset_mode)
        limit = _time_limit(vec_env) if max_episode_steps is None else max_episode_steps
        super().__init__(vec_env.num_envs, vec_env.single_observation_space, vec_env.single_action_space, limit, device)
        self._seed_lists = True
        if synchronous:
            self.grouping = "synchronous"
            self._try_seed_lists()
        else:
            self._try_masked_resets()

    # ------------------------------------------------------------ the tensor interface

    def reset_envs(self, mask: th.Tensor, seeds: th.Tensor) -> None:
        if self.grouping == "synchronous":
            raise NotImplementedError("A synchronous vector env starts all envs together: use reset_all.")
        chosen = mask.cpu().numpy()
        if chosen.any():
            seed_list = [s if m else None for s, m in zip(seeds.tolist(), chosen.tolist(), strict=True)]
            self._obs = self.to_tensor(self.vec_env.reset(seed=seed_list, options={"reset_mask": chosen})[0])

    def reset_all(self, seeds: th.Tensor) -> None:
        self.wake()
        seed_list = seeds.tolist()
        obs, _ = self.vec_env.reset(seed=seed_list if self._seed_lists else seed_list[0])
        if self.broadcast is not None:
            _, first, inverse = np.unique(seed_list, return_index=True, return_inverse=True)
            leader = first[inverse]
            self.broadcast(self.vec_env, leader)
            obs = obs[leader]
        self._obs = self.to_tensor(obs)

    def step_tensor(self, actions: th.Tensor) -> TensorStep:
        obs, rewards, terminated, truncated, infos = self.vec_env.step(self.to_numpy(actions))
        done = terminated | truncated
        if self.autoreset_mode == AutoresetMode.SAME_STEP and done.any():
            obs = np.array(obs)
            obs[done] = np.stack(_final_observations(infos, done))
        self._obs = self.to_tensor(obs)
        step = self.note_step(rewards, terminated, truncated)
        return self.hold_ended(step) if self.grouping == "synchronous" else step

    def close(self) -> None:
        self.vec_env.close()

    # ------------------------------------------------------------ checks of the resets

    def _try_masked_resets(self) -> None:
        """Check that a masked reset obeys the seed and does not change the other envs.

        :raises ValueError: if not
        """
        n = self.num_envs
        alone = np.zeros(self.num_envs, dtype=bool)
        alone[0] = True
        try:
            start = np.array(self.vec_env.reset(seed=[1] * n)[0])
            before = np.array(self.vec_env.step(self.vec_env.action_space.sample())[0])
            after = np.array(self.vec_env.reset(seed=[1] * n, options={"reset_mask": alone.copy()})[0])
        except _REFUSALS as error:
            if isinstance(error, TypeError) and "'options'" in str(error):
                raise ValueError(
                    f"The envs inside {type(self.vec_env).__name__} have a reset() without options, which gymnasium.vector "
                    "always passes on: declare reset(self, *, seed=None, options=None), or build the envs with "
                    "stable_baselines3.common.env_util.make_vec_env, which does without."
                ) from error
            raise ValueError(self._refusal(f"reset(seed=[...], options={{'reset_mask': ...}}) raised {error!r}")) from error
        if not np.array_equal(after[1:], before[1:]):
            raise ValueError(self._refusal("a reset under a mask changed envs outside it"))
        if not (_rows_equal(start) and np.array_equal(after[0], start[0])):
            raise ValueError(self._refusal("equal seeds gave different starts"))

    def _refusal(self, reason: str) -> str:
        single = isinstance(self.vec_env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        remedy = (
            "Single envs could be: let their reset(seed=...) decide the start, and leave out the wrapper that is in the way "
            "(in place of a NormalizeObservation, policy_kwargs=dict(normalize_obs=True) keeps the statistics)"
            if single
            else "Make the same env with vectorization_mode='sync' (or 'async', or as an EnvPoolEnv)"
        )
        return (
            f"{type(self.vec_env).__name__} cannot reset single envs to a seed ({reason}), so members of a group cannot be "
            f"started one by one. {remedy}, or pass synchronous=True: then all groups start together, envs whose episode has "
            "ended idle until the last has ended (rollout/useful_fraction shows what that costs), and members start alike "
            "where the vector env takes a list of seeds or you pass broadcast=..., a function that copies each leader's state "
            "to its members."
        )

    def _try_seed_lists(self) -> None:
        """Test whether a common reset takes one seed per env; warn if nothing can make initial states equal."""
        try:
            self._seed_lists = _rows_equal(np.array(self.vec_env.reset(seed=[1] * self.num_envs)[0]))
        except _REFUSALS:
            self._seed_lists = False
        if not self._seed_lists and self.broadcast is None:
            warnings.warn(
                f"{type(self.vec_env).__name__} takes one seed for all envs, and no broadcast=... was given: members of a "
                "group start in different states, so a group only averages over episodes.",
                UserWarning,
                stacklevel=3,
            )


def _check_kind(vec_env: VectorEnv) -> None:
    """Check that a vector env has the spaces of a single env.

    :raises ValueError: for vector envs of before Gymnasium 1.0, such as SuperSuit's
    """
    if not hasattr(vec_env, "single_observation_space"):
        raise ValueError(
            f"{type(vec_env).__name__} has no single_observation_space, as a gymnasium.vector.VectorEnv does since Gymnasium "
            "1.0. If its rows are agents of one env, as SuperSuit's are, no agent can be reset alone: docs/own_env.md "
            "(Several agents) says what can be trained then."
        )


def _check_resets_last(vec_env: VectorEnv, mode: AutoresetMode) -> None:
    """Check that the step after a reset is not another reset.

    :raises ValueError: for worker processes that reset once more, because they remember the ended episode
    """
    base = vec_env.unwrapped
    if mode == AutoresetMode.NEXT_STEP and isinstance(base, AsyncVectorEnv) and not base.shared_memory:
        raise ValueError(
            "AsyncVectorEnv(shared_memory=False) resets an env whose episode has ended once more in its next step, to no seed "
            "(Gymnasium's worker forgets only with shared memory that an episode has ended), so members of a group would not "
            "start alike. Pass autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED, or leave shared_memory=True."
        )


def _final_observations(infos: Info | list[Info], done: np.ndarray) -> list[np.ndarray]:
    """Last observations of ended episodes, if the vector env has already reset their envs.

    :param infos: of the step; a list by env if DictInfoToList is among the wrappers
    """
    return [infos[i]["final_obs"] if isinstance(infos, list) else infos["final_obs"][i] for i in np.flatnonzero(done)]


def _rows_equal(rows: np.ndarray) -> bool:
    return bool((rows == rows[:1]).all())


def _time_limit(vec_env: VectorEnv) -> int | None:
    """Time limit of the first env with its wrappers, else of the vector env itself or its registration."""
    base = vec_env.unwrapped
    if isinstance(base, SyncVectorEnv):
        return limit_of(base.envs[0])
    if isinstance(base, AsyncVectorEnv):  # its envs are in other processes, so one more is made
        with contextlib.closing(base.env_fns[0]()) as env:
            return limit_of(env)
    return limit_among([base], vec_env.spec)
