"""Listen to the calls of some methods of an object, and leave the object as it is.

The function in the object's class asks a table, by identity, whether somebody listens to this object. So nothing is put into
the object, around it, or in its class's place: ``__dict__``, type, attributes and signatures stay, and a copy of it, which has
another identity, has no listener.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from sb_grpo.types import Kwargs


class Table(dict[int, object]):
    """Listeners by the identity of the object that they listen to; a pickled function finds the table of its process."""

    def __reduce__(self) -> tuple[Callable[[], Table], tuple[()]]:
        return table, ()


LISTENERS = Table()


def table() -> Table:
    """The table of this process."""
    return LISTENERS


def listener_of(target: object) -> object:
    """The object that hears the calls of another; None where nobody listens."""
    return LISTENERS.get(id(target))


def listen(target: object, listener: object, names: Iterable[str], before: Iterable[str] = ()) -> bool:
    """Let a listener hear every call of some methods of an object.

    :param target: any object that weak references take; there is one listener to it at most
    :param listener: must not refer to the target, which it would keep alive
    :param names: of methods; ``listener.name(function, target, *args, **kwargs)`` answers in their place
    :param before: of methods before which ``listener.called()`` is called, and no more
    :return: False, and nobody listens, where one of them is no plain Python function of the target's class, or the target has
        its own
    """
    opened = []
    for body, methods in ((_ASKS, names), (_ANNOUNCES, before)):
        for name in methods:
            owner = next((base for base in type(target).__mro__ if name in vars(base)), object)
            function: Any = vars(owner).get(name)
            if not inspect.isfunction(function) or getattr(getattr(target, name), "__func__", None) is not function:
                return False
            if not hasattr(function, "asks_sb_grpo"):
                opened.append((owner, name, _asking(function, name, body)))
    if id(target) not in LISTENERS:
        weakref.finalize(target, LISTENERS.pop, id(target), None).atexit = False
    for owner, name, asking in opened:
        setattr(owner, name, asking)
    LISTENERS[id(target)] = listener
    return True


_ASKS = """
        listener__ = get__(id({me}))
        if listener__ is None:
            return function__({me}{given})
        return listener__.{name}(function__, {me}{given})"""
_ANNOUNCES = """
        listener__ = get__(id({me}))
        if listener__ is not None:
            listener__.called()
        return function__({me}{given})"""


def _asking(function: Any, name: str, body: str) -> Any:
    """A function in the place of a class's that asks the table first.

    It is compiled with the same parameters: whoever looks at them sees no difference, and a call takes no detour through
    tuples and dicts, which would cost more than all the rest.
    """
    parameters, me, given = _parameters(function.__code__)
    filled = body.format(me=me, given=given, name=name)
    space: Kwargs = {"__name__": __name__}
    exec(f"def make(function__, get__):\n    def {name}({parameters}):{filled}\n    return {name}", space)
    asking: Any = functools.wraps(function)(space["make"](function, LISTENERS.get))
    asking.__defaults__ = function.__defaults__
    asking.__kwdefaults__ = function.__kwdefaults__
    asking.__signature__ = inspect.signature(function)  # where the function stands for another one itself
    asking.asks_sb_grpo = True
    return asking


def _parameters(code: CodeType) -> tuple[str, str, str]:
    """A function's parameters, its first argument, and all others as a call hands them on, as source text."""
    positional = list(code.co_varnames[: code.co_argcount])
    n = code.co_argcount + code.co_kwonlyargcount
    by_name = list(code.co_varnames[code.co_argcount : n])
    rest = list(code.co_varnames[n:])
    star = rest.pop(0) if code.co_flags & inspect.CO_VARARGS else ""
    stars = rest.pop(0) if code.co_flags & inspect.CO_VARKEYWORDS else ""
    shown = [*positional]
    if code.co_posonlyargcount:
        shown.insert(code.co_posonlyargcount, "/")
    shown += [f"*{star}"] if star else ["*"] if by_name else []
    shown += [*by_name, *([f"**{stars}"] if stars else [])]
    me = positional[0] if positional else f"{star}[0]"
    before = max(code.co_posonlyargcount, len(positional) if star else 1)  # handed on by place
    given = [*positional[1:before], *(f"{one}={one}" for one in positional[before:])]
    given += [f"*{star}" if positional else f"*{star}[1:]"] if star else []
    given += [*(f"{one}={one}" for one in by_name), *([f"**{stars}"] if stars else [])]
    return ", ".join(shown), me, "".join(f", {one}" for one in given)
