"""The number of steps after which an env cuts its episodes, whoever set it: wrappers, the env itself, its registration."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

import gymnasium as gym

#: Names under which wrappers and envs keep their limit: Gymnasium's TimeLimit, most simulators, MiniGrid.
NAMES = ("_max_episode_steps", "max_episode_steps", "max_steps")


def layers(env: gym.Env[Any, Any]) -> list[gym.Env[Any, Any]]:
    """An env's wrappers from the outermost on, and the env without any at the end."""
    found = [env]
    while isinstance(found[-1], gym.Wrapper):
        found.append(found[-1].env)
    return found


def smallest(values: Iterable[Any]) -> int | None:
    """The smallest of those that are numbers of steps; None where none is."""
    limits = [int(v) for v in values if isinstance(v, numbers.Integral) and not isinstance(v, bool)]
    return min((limit for limit in limits if limit > 0), default=None)


def own_limit(holder: Any) -> int | None:
    """The limit that an object keeps under one of the usual names."""
    return smallest(getattr(holder, name, None) for name in NAMES)


def limit_of(env: gym.Env[Any, Any]) -> int | None:
    """The smallest limit that a wrapper or the env itself keeps; as registered where none does; None: unknown, or none.

    :param env: with all of its wrappers
    """
    limit = smallest(map(own_limit, layers(env)))
    return limit if limit is not None or env.spec is None else env.spec.max_episode_steps
