"""A Gymnasium wrapper whose next ``reset()`` uses a queued seed: how SB3's unseeded auto-reset starts the right group."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb_grpo.envs.tensor_env import TensorVecEnv

START_DIGEST = "group_start_digest"
RESET_NUMBER = "group_reset_number"


def observation_digest(obs: Any) -> bytes:
    """Eight bytes that differ between observations that differ in any bit.

    :param obs: an array, a scalar, or a dict or tuple of them
    :return: BLAKE2b digest of the raw bytes, the same in every process
    """
    digest = blake2b(digest_size=8)

    def feed(part: Any) -> None:
        if isinstance(part, dict):
            for key in sorted(part):
                feed(part[key])
        elif isinstance(part, tuple | list):
            for item in part:
                feed(item)
        else:
            digest.update(np.ascontiguousarray(part).tobytes())

    feed(obs)
    return digest.digest()


class SeededResetWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Lets the trainer choose the seed of the next episode.

    SB3's vectorized envs reset an env the moment its episode ends, without a seed (SB3 issue 1790). The trainer calls
    :meth:`set_next_seed` (through ``VecEnv.env_method``) while the episode still runs; the auto-reset then consumes it.
    The digest of the raw first observation travels back in the reset info, so that members of a group can be compared.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._next_seed: int | None = None
        self._noise_seed: int | None = None
        self._resets = 0

    def describe(self) -> tuple[str | None, int | None]:
        """Id and time limit of the env as its registration has them; None where it has none.

        Plain values, because the ``spec`` itself may not survive the way between processes.
        """
        return (None, None) if self.spec is None else (self.spec.id, self.spec.max_episode_steps)

    def set_next_seed(self, seed: int, noise_seed: int | None = None) -> None:
        """Queue the seed of the next reset; it wins over the seed that ``VecEnv.seed`` left for the first reset.

        :param seed: non-negative seed of the start state
        :param noise_seed: when given, the env's generator is reseeded with it after the reset, so that episodes with
            the same start draw independent noise in ``step``
        """
        self._next_seed, self._noise_seed = int(seed), noise_seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._next_seed is not None:
            seed, self._next_seed = self._next_seed, None
        obs, info = self.env.reset(seed=seed, options=options)
        if self._noise_seed is not None:
            self.unwrapped.np_random = np.random.default_rng(self._noise_seed)
            self._noise_seed = None
        self._resets += 1
        return obs, {**info, START_DIGEST: observation_digest(obs), RESET_NUMBER: self._resets}


def install_seeded_reset(venv: VecEnv) -> None:
    """Make sure that every env of a VecEnv has the wrapper. Safe to call twice.

    A DummyVecEnv gets it in place: one more VecEnvWrapper would break ``sync_envs_normalization``, and with it
    EvalCallback under VecNormalize. Envs in other processes cannot be reached and must have been built with it.

    :param venv: any stack of VecEnvWrappers
    :raises ValueError: if the envs live elsewhere and were built without the wrapper
    """
    if venv.has_attr("set_next_seed"):
        return
    base = venv.unwrapped
    if isinstance(base, TensorVecEnv):
        raise ValueError(
            f"{type(venv).__name__} moves every step of a {type(base).__name__} through NumPy: pass the TensorVecEnv itself."
        )
    if not isinstance(base, DummyVecEnv):
        raise ValueError(
            f"GRPO must choose the seed of every reset, but the envs inside {type(base).__name__} cannot be reached. "
            "Build them with the wrapper: make_vec_env(env_id, n_envs=8, vec_env_cls=SubprocVecEnv, "
            "wrapper_class=sb_grpo.SeededResetWrapper)"
        )
    base.envs = [SeededResetWrapper(env) for env in base.envs]


def time_limit(env: VecEnv) -> int | None:
    """Steps after which an env ends every episode, as its registration says; None if it does not say.

    :param env: a TensorVecEnv, or envs with the wrapper; the first one is asked
    """
    limit: int | None = (
        env.max_episode_steps if isinstance(env, TensorVecEnv) else env.env_method("describe", indices=[0])[0][1]
    )
    return limit
