"""Find an env's time limit in wrappers, the env itself or its registration."""

from __future__ import annotations

import dis
import inspect
import numbers
import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate
from types import CodeType
from typing import Any

import gymnasium as gym

#: Attribute with the limit of Gymnasium's TimeLimit and similar wrappers.
OF_TIME_LIMIT = "_max_episode_steps"

#: Attributes with the number of action repeats of wrappers: SB3's MaxAndSkipEnv, Gymnasium's AtariPreprocessing and
#: RepeatAction, others.
OF_FRAME_SKIP = ("_skip", "skip", "frame_skip", "_frame_skip", "action_repeat", "_action_repeat", "num_repeats")


def layers(env: gym.Env) -> list[gym.Env]:
    """Wrappers of an env from the outermost on, then the unwrapped env."""
    found = [env]
    while isinstance(found[-1], gym.Wrapper):
        found.append(found[-1].env)
    return found


def attribute_of(holder: object, name: str) -> Any:
    """Get an attribute; None if it is missing or raises, as a property of an env may before its first reset."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def smallest(values: Iterable[object]) -> int | None:
    """Smallest of the values that are numbers of steps, or None."""
    limits = [int(v) for v in values if isinstance(v, numbers.Integral) and not isinstance(v, bool)]
    return min((limit for limit in limits if limit > 0), default=None)


def limit_among(holders: Sequence[object], spec: object) -> int | None:
    """Time limit of an env from its layers, in steps of the outermost layer.

    The first that is found: a TimeLimit (the smallest of several); the registration; an attribute ``max_episode_steps``; an
    attribute ``max_steps``, as in MiniGrid, if a layer's methods read it (solvers and planners use the name too).

    :param holders: the layers, from the outermost on; action repeats divide the limits of inner layers
    :param spec: the registration; None: not registered
    :return: the limit; None: unknown or no limit
    """
    taken = list(accumulate([1, *map(repeats, holders)], operator.mul))  # steps of each layer per step of the outermost

    def kept(name: str) -> int | None:
        return smallest(sooner(attribute_of(holder, name), n) for holder, n in zip(holders, taken, strict=False))

    registered = sooner(attribute_of(spec, "max_episode_steps"), taken[-1])
    limit = kept(OF_TIME_LIMIT) or registered or kept("max_episode_steps")
    if limit is not None or not any(reads(type(holder), "max_steps") for holder in holders):
        return limit
    return kept("max_steps")


def sooner(limit: object, taken: int) -> int | None:
    """Limit divided by the number of action repeats, or None if it is no number of steps."""
    counted = smallest([limit])
    return None if counted is None else -(-counted // taken)


def repeats(layer: object) -> int:
    """Action repeats of a wrapper; 1 unless its ``step`` reads such an attribute."""
    step = inspect.unwrap(type(layer).step) if isinstance(layer, gym.Wrapper) else None
    if not inspect.isfunction(step):
        return 1
    return max(
        (smallest([attribute_of(layer, name)]) or 1 for name in OF_FRAME_SKIP if _reads(step.__code__, name)), default=1
    )


def limit_of(env: gym.Env) -> int | None:
    """Time limit of an env in steps; see :func:`limit_among`.

    :param env: with all of its wrappers
    """
    return limit_among(layers(env), attribute_of(env, "spec"))


def reads(kind: type, name: str) -> bool:
    """Whether a method of a class except ``__init__`` reads an attribute; True if ``step`` is compiled."""
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
