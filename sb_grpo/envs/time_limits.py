"""The number of steps after which an env cuts its episodes, whoever set it: wrappers, the env itself, its registration."""

from __future__ import annotations

import dis
import inspect
import numbers
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

import gymnasium as gym

#: Under which Gymnasium's TimeLimit, and whatever takes its place, keeps what it cuts by.
OF_TIME_LIMIT = "_max_episode_steps"


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


def limit_among(holders: Sequence[Any], spec: Any) -> int | None:
    """The limit of an env that consists of some layers. The first of these that says one is believed:

    a TimeLimit (the smallest of several); the registration; an attribute ``max_episode_steps``; an attribute ``max_steps``, as
    MiniGrid has it, if a layer's methods read it: the name is also a solver's or a planner's.

    :param holders: the layers, in any order
    :param spec: the registration; None: not registered
    :return: None: unknown, or none
    """

    def kept(name: str) -> int | None:
        return smallest(getattr(holder, name, None) for holder in holders)

    limit = kept(OF_TIME_LIMIT) or smallest([getattr(spec, "max_episode_steps", None)]) or kept("max_episode_steps")
    if limit is not None or not any(reads(type(holder), "max_steps") for holder in holders):
        return limit
    return kept("max_steps")


def limit_of(env: gym.Env[Any, Any]) -> int | None:
    """The number of steps after which an env's episodes are cut; see :func:`limit_among`.

    :param env: with all of its wrappers
    """
    return limit_among(layers(env), env.spec)


def reads(kind: type, name: str) -> bool:
    """Whether a method of a class, ``__init__`` aside, reads an attribute of that name; True where ``step`` is compiled."""
    if not hasattr(inspect.unwrap(getattr(kind, "step", reads)), "__code__"):
        return True
    methods = [method for base in kind.__mro__ for key, method in vars(base).items() if key != "__init__"]
    functions = [inspect.unwrap(getattr(m, "fget", None) or getattr(m, "__func__", m)) for m in methods if m is not None]
    return any(_reads(f.__code__, name) for f in functions if inspect.isfunction(f))


def _reads(code: CodeType, name: str) -> bool:
    within = [part for part in code.co_consts if isinstance(part, CodeType)]
    if any(_reads(part, name) for part in within):
        return True
    if name not in (*code.co_names, *code.co_consts):  # the second for getattr(env, "name")
        return False
    return any(i.argval == name and i.opname in ("LOAD_ATTR", "LOAD_CONST") for i in dis.get_instructions(code))
