"""Brax and MuJoCo Playground (MJX, Warp) as TensorVecEnvs: JAX steps the physics, DLPack shares its arrays with torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.envs.tensor_env import TensorStep, TensorVecEnv
from sb_grpo.types import Obs

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError("BraxEnv needs JAX: pip install 'sb_grpo[sim]', or pip install brax") from error


def _to_torch(array: jax.Array) -> th.Tensor:
    return th.utils.dlpack.from_dlpack(array)


def _to_jax(tensor: th.Tensor) -> jax.Array:
    array: jax.Array = jax.dlpack.from_dlpack(tensor.detach().contiguous())
    return array


def _choose(mask: jax.Array, new: Any, old: Any) -> Any:
    """Take the leaves of ``new`` for the envs in the mask, of ``old`` for the others.

    Leaves without one row per env (MuJoCo Warp's contact lists) are temporary: the next step recomputes them.
    """

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(mask.reshape(-1, *[1] * (a.ndim - 1)), a, b) if _per_env(a, len(mask)) else b

    return jax.tree.map(choose, new, old)


def _per_env(leaf: jax.Array, n: int) -> bool:
    return bool(leaf.shape[:1] == (n,))


class BraxEnv(TensorVecEnv):
    """Functional JAX env: ``reset(key) -> state``, ``step(state, action) -> state``, with ``obs``, ``reward`` and ``done``.

    Reset and step are each one compiled function over all envs (seconds on the first call, a minute for large MJX models). A
    masked reset computes an initial state for every env, so it runs only if an episode ended; to know this, the host waits for
    the device once per step.

    :param env: a raw env, without Brax's or Playground's training wrappers
    :param num_envs: number of envs
    :param episode_length: time limit in steps, kept here
    :param device: torch device; JAX must have the same kind
    :param obs_key: key of the policy's observation, if the env returns a dict
    :raises ValueError: for a device that JAX does not have, or a dict of observations without ``obs_key``
    """

    max_episode_steps: int

    def __init__(
        self, env: Any, num_envs: int, episode_length: int = 1000, device: th.device | str = "cpu", obs_key: str | None = None
    ) -> None:
        self.env = env
        self.obs_key = obs_key
        shape = jax.eval_shape(env.reset, jax.random.PRNGKey(0)).obs
        if isinstance(shape, dict) and obs_key not in shape:
            raise ValueError(f"obs_key={obs_key!r} does not choose one of this env's observations: {sorted(shape)}.")
        size = self._observed(shape).shape
        super().__init__(
            num_envs,
            spaces.Box(-np.inf, np.inf, size, np.float32),
            spaces.Box(-1.0, 1.0, (env.action_size,), np.float32),
            episode_length,
            device,
        )
        _check_platform(self.device)
        self._reset_jit = jax.jit(jax.vmap(lambda seed: env.reset(jax.random.PRNGKey(seed))))
        self._step_jit = jax.jit(jax.vmap(env.step))
        self._choose_jit = jax.jit(_choose)
        self.elapsed = th.zeros(num_envs, dtype=th.int64, device=self.device)
        self._state: Any = None

    def _observed(self, obs: Obs) -> Any:
        return obs if self.obs_key is None else obs[self.obs_key]

    @property
    def observations(self) -> th.Tensor:
        return _to_torch(self._observed(self._state.obs))

    def reset_all(self, seeds: th.Tensor) -> None:
        self._state = self._reset_jit(_to_jax(seeds.to(th.int32)))
        self.elapsed = th.zeros_like(self.elapsed)

    def reset_envs(self, mask: th.Tensor, seeds: th.Tensor) -> None:
        if bool(mask.any()):
            fresh = self._reset_jit(_to_jax(seeds.to(th.int32)))
            self._state = self._choose_jit(_to_jax(mask), fresh, self._state)
            self.elapsed = th.where(mask, 0, self.elapsed)

    def step_tensor(self, actions: th.Tensor) -> TensorStep:
        self._state = self._step_jit(self._state, _to_jax(actions.float()))
        self.elapsed = self.elapsed + 1
        terminated = _to_torch(self._state.done) > 0.5
        truncated = (self.elapsed >= self.max_episode_steps) & ~terminated
        return TensorStep(self.observations, _to_torch(self._state.reward), terminated, truncated)

    def snapshot(self, env_indices: th.Tensor) -> tuple[th.Tensor, ...]:
        """:return: steps since the reset, and every per-env array of the env's state; random keys as int32"""
        rows = _to_jax(env_indices.to(th.int32))
        leaves = [leaf[rows] for leaf in jax.tree.leaves(self._state) if _per_env(leaf, self.num_envs)]
        # torch has few operations on uint32, the type of JAX's random keys.
        leaves = [leaf.view(jnp.int32) if leaf.dtype == jnp.uint32 else leaf for leaf in leaves]
        return (self.elapsed[env_indices], *(_to_torch(leaf) for leaf in leaves))

    def restore(self, env_indices: th.Tensor, snapshot: tuple[th.Tensor, ...]) -> None:
        rows = _to_jax(env_indices.to(th.int32))
        copies = iter(snapshot[1:])
        leaves, form = jax.tree.flatten(self._state)
        for i, leaf in enumerate(leaves):
            if _per_env(leaf, self.num_envs):
                leaves[i] = leaf.at[rows].set(_to_jax(next(copies)).view(leaf.dtype))
        self._state = jax.tree.unflatten(form, leaves)
        self.elapsed = self.elapsed.index_copy(0, env_indices, snapshot[0])


def _check_platform(device: th.device) -> None:
    platform = {"cuda": "gpu"}.get(device.type, device.type)
    try:
        jax.devices(platform)
    except RuntimeError as error:
        raise ValueError(
            f"device={str(device)!r}: JAX has no {platform} here, only {jax.default_backend()}. Install JAX for it, for "
            "example pip install 'jax[cuda12]', or use device='cpu'."
        ) from error


def _check_name(name: str, names: Iterable[str], library: str) -> None:
    known = sorted(names)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"{library} has no env {name!r}.{hint} There are: {', '.join(known)}.")


def make_brax_env(
    name: str, num_envs: int, device: th.device | str = "cpu", episode_length: int = 1000, **kwargs: Any
) -> BraxEnv:
    """Make a Brax env by its name.

    :param name: such as ``"inverted_pendulum"`` or ``"halfcheetah"``
    :param num_envs: number of envs
    :param device: torch device
    :param episode_length: time limit in steps
    :param kwargs: of the env, such as ``backend="mjx"`` (``"generalized"``, ``"spring"``, ``"positional"``)
    :raises ImportError: if Brax is not installed
    :raises ValueError: for an unknown name, or a device that JAX does not have
    """
    try:
        from brax import envs
    except ImportError as error:
        raise ImportError("make_brax_env needs Brax: pip install 'sb_grpo[sim]', or pip install brax") from error
    _check_name(name, envs._envs, "Brax")
    return BraxEnv(envs.get_environment(name, **kwargs), num_envs, episode_length, device)


def make_playground_env(name: str, num_envs: int, device: th.device | str = "cpu", **kwargs: Any) -> BraxEnv:
    """Make a MuJoCo Playground env by its name, with the time limit of its configuration.

    :param name: such as ``"CartpoleBalance"``
    :param num_envs: number of envs
    :param device: torch device
    :param kwargs: of ``mujoco_playground.registry.load``
    :raises ImportError: if Playground is not installed
    :raises ValueError: for an unknown name, or a device that JAX does not have
    """
    try:
        from mujoco_playground import registry
    except ImportError as error:
        raise ImportError("make_playground_env needs MuJoCo Playground: pip install playground") from error
    _check_name(name, registry.ALL_ENVS, "MuJoCo Playground")
    env = registry.load(name, **kwargs)
    limit = int(registry.get_default_config(name).episode_length)
    return BraxEnv(env, num_envs, limit, device, obs_key="state" if isinstance(env.observation_size, dict) else None)
