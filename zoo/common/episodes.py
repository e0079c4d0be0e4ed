"""Episodes of any env: their ends, their close, and random actions.

Episodes that Monitor never closes are closed at their end, and episodes that cannot be counted are reported. Errors while envs
are closed lose no results.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.collect.masks import masks_of_the_evaluated
from sb_grpo.policies.extra_inputs import MASK, extra_input
from sb_grpo.policies.masks import checked, choices_of, drawn

#: Local variables of SB3's loops, as its callbacks get them.
Locals = dict[str, Any]
#: Limit of consecutive ends of one env that Monitor has not counted; an Atari game has fewer lives.
UNCOUNTED_ENDS = 100
#: Limit of steps of one env without an end; Atari cuts at 27,000.
ENDLESS_STEPS = 300_000


def with_monitor_outside(wrapper: Callable[[gym.Env], gym.Env] | None) -> Callable[[gym.Env], gym.Env]:
    """Wrap another Monitor around a TimeLimit that is outside the first Monitor.

    The first Monitor would miss the ends of episodes, and code that counts its episodes would wait forever. Its file is then
    the outer one's.

    :param wrapper: the settings' wrapper of an env with a Monitor
    """

    def wrap(env: gym.Env) -> gym.Env:
        wrapped = env if wrapper is None else wrapper(env)
        layer = wrapped
        limited = False
        while isinstance(layer, gym.Wrapper) and not isinstance(layer, Monitor):
            limited |= isinstance(layer, TimeLimit)
            layer = layer.env
        if not limited:
            return wrapped
        if not isinstance(layer, Monitor):
            return Monitor(wrapped)
        outer = Monitor(wrapped, None, layer.allow_early_resets, layer.reset_keywords, layer.info_keywords)
        outer.results_writer = layer.results_writer
        layer.results_writer = None
        return outer

    return wrap


class Counting:
    """Callback for SB3's ``evaluate_policy`` that stops if no episode will ever be counted.

    :raises ValueError: naming the cause
    """

    def __init__(self) -> None:
        self.steps: Counter[int] = Counter()
        self.ends: Counter[int] = Counter()

    def __call__(self, step: Locals, _: Locals) -> None:
        env_index = step["i"]
        done = bool(step["done"])
        self.steps[env_index] = 0 if done else self.steps[env_index] + 1
        self.ends[env_index] = 0 if "episode" in step["info"] else self.ends[env_index] + done
        if step["is_monitor_wrapped"] and self.ends[env_index] >= UNCOUNTED_ENDS:
            raise ValueError(
                f"The evaluation cannot count: {UNCOUNTED_ENDS} episodes of env {env_index} ended, and its Monitor has closed "
                "none of them. A wrapper outside Monitor ends episodes that the env itself would go on with: put it inside "
                "Monitor (into the env's registration), or wrap it in stable_baselines3.common.monitor.Monitor again."
            )
        if self.steps[env_index] >= ENDLESS_STEPS:
            raise ValueError(
                f"The evaluation cannot count: env {env_index} has taken {ENDLESS_STEPS:,} steps without an end. Set a limit "
                "with gymnasium.wrappers.TimeLimit in env_wrapper, or max_episode_steps at the env's registration."
            )


def close(env: gym.Env | VecEnv | None) -> None:
    """Close an env; print an error to stderr instead of raising it.

    :param env: None: nothing to close
    """
    try:
        if env is not None:
            env.close()
    except (EOFError, ConnectionError) as error:
        print(f"A worker of the env had died before it was closed: {error!r}", file=sys.stderr)
    except Exception as error:
        print(f"The env could not be closed: {type(error).__name__}: {error}", file=sys.stderr)


Observation = np.ndarray | Mapping[str, np.ndarray]


class RandomPolicy:
    """Policy of uniform valid actions for ``evaluate_policy``."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        space.seed(seed)

    def predict(
        self, observation: Observation, *_: object, action_masks: np.ndarray | None = None, **__: object
    ) -> tuple[np.ndarray, None]:
        """Draw one action per env.

        :param action_masks: ``[n_envs, m]``; None: found as by GRPO's ``predict``
        """
        n = len(next(iter(observation.values())) if isinstance(observation, Mapping) else observation)
        masks = action_masks if action_masks is not None else masks_of_the_evaluated()
        if masks is None and choices_of(self.space):
            masks = extra_input(observation, MASK)
        rows = [None] * n if masks is None else checked(masks, self.space, n, "of env {index}")
        return np.array([drawn(self.space, row) for row in rows]), None
