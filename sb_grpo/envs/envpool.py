"""EnvPool (C++ envs: classic control, MuJoCo, Atari and more) as a TensorVecEnv of paired streams."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
import torch as th

from sb_grpo.envs.host_simulator import HostSimulatorEnv
from sb_grpo.envs.tensor_env import TensorStep

try:
    import envpool
except ImportError as error:
    raise ImportError("EnvPoolEnv needs EnvPool: pip install 'sb_grpo[sim]', or pip install envpool") from error


class EnvPoolEnv(HostSimulatorEnv):
    """Pool of envs that draw their initial states from streams, which are seeded when the pool is made.

    EnvPool has no seeded resets, so ``reset_all`` makes a new pool from its seeds: envs with equal seeds have equal first,
    second, ... initial states, unless the game draws random numbers within an episode (sticky actions do;
    ``group/start_mismatch`` counts the differences). An ended env is reset by EnvPool's reset of chosen envs before its next
    step, so EnvPool's autoreset never runs.

    :param task_id: one of ``envpool.list_all_envs()``
    :param num_envs: number of envs; a multiple of the model's ``group_size``
    :param device: torch device of the tensors
    :param kwargs: of ``envpool.make``, such as ``num_threads``
    :raises ValueError: for an unknown task, EnvPool's asynchronous mode, a seed, or observations that tensors cannot hold
    """

    grouping = "streams"

    def __init__(self, task_id: str, num_envs: int, device: th.device | str = "cpu", **kwargs: Any) -> None:
        known = envpool.list_all_envs()
        if task_id not in known:
            near = difflib.get_close_matches(task_id, known, n=5) or ["see envpool.list_all_envs()"]
            raise ValueError(f"EnvPool has no task {task_id!r}. Nearest of its {len(known)}: {', '.join(near)}.")
        if kwargs.get("batch_size", num_envs) != num_envs:
            raise ValueError(
                f"batch_size={kwargs['batch_size']} with num_envs={num_envs} is EnvPool's asynchronous mode, in which a step "
                "returns some of the envs: GRPO steps all of them. Leave batch_size out."
            )
        if "seed" in kwargs:
            raise ValueError(f"seed={kwargs['seed']}: GRPO(..., seed=...) decides the seeds of the pool. Leave it out here.")
        self.task_id = task_id
        self.kwargs = kwargs
        self.pool: Any = None
        spec = envpool.make_spec(task_id, num_envs=num_envs, **kwargs)
        super().__init__(
            num_envs,
            spec.gymnasium_observation_space,
            spec.gymnasium_action_space,
            spec.config.max_episode_steps,
            device,
        )

    def reset_all(self, seeds: th.Tensor) -> None:
        self.pool = envpool.make(self.task_id, "gymnasium", num_envs=self.num_envs, seed=seeds.tolist(), **self.kwargs)
        self.wake()
        self._obs = self.to_tensor(self.pool.reset()[0])

    def reset_envs(self, mask: th.Tensor, seeds: th.Tensor) -> None:
        env_indices = mask.cpu().numpy().nonzero()[0].astype(np.int32)
        if len(env_indices) > 0:
            obs, info = self.pool.reset(env_indices)
            self._see(info["env_id"], obs)
            self.idle = self.idle & ~mask

    def step_tensor(self, actions: th.Tensor) -> TensorStep:
        rewards = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        running = (~self.idle).cpu().numpy().nonzero()[0].astype(np.int32)
        if len(running) > 0:
            obs, *columns, info = self.pool.step(self.to_numpy(actions)[running], running)
            env_indices = info["env_id"]
            self._see(env_indices, obs)
            rewards[env_indices], terminated[env_indices], truncated[env_indices] = columns
        step = self.note_step(rewards, terminated, truncated)
        self.idle = self.idle | step.terminated | step.truncated
        return step

    def _see(self, env_indices: np.ndarray, obs: np.ndarray) -> None:
        """Store the observations of some envs, ``[n, ...]``."""
        self._obs = self._obs.index_copy(0, th.as_tensor(env_indices, dtype=th.int64, device=self.device), self.to_tensor(obs))

    def close(self) -> None:
        self.pool = None
