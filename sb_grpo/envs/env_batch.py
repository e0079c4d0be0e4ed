"""Several envs in one worker, answered for in one call per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
from stable_baselines3.common.env_util import is_wrapped

from sb_grpo.envs.seeded_reset import SeededResetWrapper
from sb_grpo.types import Action, Info, Kwargs, Obs

#: In the info of an env's step: its worker died, and the episode that it was running is lost. Between the workers and the
#: collection alone: a plain word might be an info of the user's, who has lost a game.
EPISODE_LOST = "sb_grpo/episode_lost"
#: An env after a step: observation, reward, done, info, and the info of the reset, empty where there was none.
EnvStep = tuple[Obs, float, bool, Info, Info]


class EnvBatch:
    """The envs of one worker; envs are counted from 0 within it.

    :param env_fns: make the envs
    :param threaded: step them at the same time, in threads: for envs that wait for somebody else, or let go of the GIL
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], threaded: bool = False) -> None:
        self._pool = ThreadPoolExecutor(len(env_fns)) if threaded and len(env_fns) > 1 else None
        self.envs = [SeededResetWrapper(env_fn()) for env_fn in env_fns]
        self._lost = [False] * len(self.envs)

    def renew(self, attributes: Sequence[Kwargs], seeds: Sequence[tuple[str, tuple[object, ...]] | None]) -> None:
        """Take over from a worker that died: the next step of every env ends the episode that is lost, and resets.

        :param attributes: by env, that the envs had been given
        :param seeds: by env, name and arguments of the call that had queued the seed of the next reset
        """
        self._lost = [True] * len(self.envs)
        for env, given, seed in zip(self.envs, attributes, seeds, strict=True):
            for name, value in given.items():
                setattr(env, name, value)
            if seed is not None:
                env.get_wrapper_attr(seed[0])(*seed[1])

    def spaces(self) -> tuple[gym.Space, gym.Space]:
        """Spaces of observations and actions."""
        return self.envs[0].observation_space, self.envs[0].action_space

    def step(self, actions: Sequence[Action]) -> list[EnvStep]:
        """One step of every env; ended episodes are reset, as SB3's VecEnvs do.

        :param actions: by env
        """
        every = map if self._pool is None else self._pool.map
        return list(every(self._step, range(len(self.envs)), actions))

    def _step(self, env_index: int, action: Action) -> EnvStep:
        env = self.envs[env_index]
        if self._lost[env_index]:
            self._lost[env_index] = False
            obs, reset_info = env.reset()
            return obs, 0.0, True, {EPISODE_LOST: True, "TimeLimit.truncated": True}, reset_info
        obs, reward, terminated, truncated, info = env.step(action)
        done = bool(terminated or truncated)
        info["TimeLimit.truncated"] = bool(truncated and not terminated)
        if not done:
            return obs, float(reward), False, info, {}
        info["terminal_observation"] = obs
        start, reset_info = env.reset()
        return start, float(reward), True, info, reset_info

    def reset(self, seeds: Sequence[int | None], options: Sequence[Kwargs]) -> list[tuple[Obs, Info]]:
        """Reset every env.

        :param seeds: by env
        :param options: by env; empty: none
        """
        self._lost = [False] * len(self.envs)
        given = zip(self.envs, seeds, options, strict=True)
        return [env.reset(seed=seed, **({"options": some} if some else {})) for env, seed, some in given]

    def call(self, env_indices: Sequence[int], name: str, args: tuple[object, ...], kwargs: Kwargs) -> list[object]:
        """Call a method of some envs."""
        return [self.envs[env_index].get_wrapper_attr(name)(*args, **kwargs) for env_index in env_indices]

    def get(self, env_indices: Sequence[int], name: str) -> list[object]:
        """An attribute of some envs."""
        return [self.envs[env_index].get_wrapper_attr(name) for env_index in env_indices]

    def has(self, name: str) -> bool:
        """Whether every env has an attribute."""
        return all(env.has_wrapper_attr(name) for env in self.envs)

    def set(self, env_indices: Sequence[int], name: str, value: object) -> list[None]:
        """Set an attribute of some envs, at the outermost wrapper."""
        for env_index in env_indices:
            setattr(self.envs[env_index], name, value)
        return [None] * len(env_indices)

    def wrapped(self, env_indices: Sequence[int], wrapper: type[gym.Wrapper]) -> list[bool]:
        """Whether some envs are wrapped in a class."""
        return [is_wrapped(self.envs[env_index], wrapper) for env_index in env_indices]

    def close(self) -> None:
        """Close every env."""
        for env in self.envs:
            env.close()
