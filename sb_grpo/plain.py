"""Settings as JSON, and back, by rules that are written here: no name in a file decides which code runs.

JSON knows numbers, text, lists and mappings. Everything else is a mapping with one entry, ``{":kind": ...}``.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

from sb_grpo.types import Kwargs

#: Classes that a file may name: those of these modules (already imported) with one of these bases.
CLASSES: dict[str, tuple[type, ...]] = {
    "torch.nn": (th.nn.Module,),
    "torch.optim": (th.optim.Optimizer,),
    "stable_baselines3.common.torch_layers": (BaseFeaturesExtractor,),
    "sb_grpo": (th.nn.Module, BaseBuffer),
}

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class NotPlain(ValueError):
    """A value that no rule turns into JSON, or JSON that no rule reads."""


class Form(NamedTuple):
    """Rule: turns objects of one kind into arguments, and back.

    :param knows: whether an object is of the kind
    :param take: an object's arguments by name; further objects among them are turned into JSON in their turn
    :param make: makes an object of these arguments
    """

    knows: Callable[[Any], bool]
    take: Callable[[Any], Kwargs]
    make: Callable[..., object]


def attributes(kind: type, *names: str) -> Form:
    """The form of a class whose attributes have the names of its constructor's arguments."""
    return Form(lambda value: type(value) is kind, lambda value: {name: getattr(value, name) for name in names}, kind)


def _float_schedule(value_schedule: FloatSchedule | float) -> FloatSchedule:
    return FloatSchedule(value_schedule)


def _dict_space(names: list[str], parts: list[spaces.Space]) -> spaces.Dict:
    return spaces.Dict(dict(zip(names, parts, strict=True)))


def _array(values: list[float], dtype: str, shape: list[int]) -> np.ndarray:
    if np.dtype(dtype).kind not in "biuf":
        raise NotPlain(f"an array of {dtype}")
    return np.array(values, dtype=dtype).reshape(shape)


#: Further kinds are put here by the modules that define them.
FORMS: dict[str, Form] = {
    "tuple": Form(lambda v: type(v) is tuple, lambda v: {"values": list(v)}, lambda values: tuple(values)),
    "array": Form(
        lambda v: isinstance(v, np.ndarray) and v.dtype.kind in "biuf",
        lambda v: {"values": v.ravel().tolist(), "dtype": str(v.dtype), "shape": list(v.shape)},
        _array,
    ),
    "Box": Form(
        lambda v: type(v) is spaces.Box,
        lambda v: {"low": v.low, "high": v.high, "dtype": str(v.dtype)},
        lambda low, high, dtype: spaces.Box(low, high, dtype=np.dtype(dtype).type),
    ),
    "Discrete": Form(
        lambda v: type(v) is spaces.Discrete,
        lambda v: {"n": int(v.n), "start": int(v.start)},
        lambda n, start: spaces.Discrete(n, start=start),
    ),
    "MultiDiscrete": Form(
        lambda v: type(v) is spaces.MultiDiscrete,
        lambda v: {"nvec": v.nvec, "start": v.start},
        lambda nvec, start: spaces.MultiDiscrete(nvec, start=start),
    ),
    "MultiBinary": attributes(spaces.MultiBinary, "n"),
    "Dict": Form(
        lambda v: type(v) is spaces.Dict,
        lambda v: {"names": list(v.spaces), "parts": list(v.spaces.values())},
        _dict_space,
    ),
    "ConstantSchedule": attributes(ConstantSchedule, "val"),
    "LinearSchedule": attributes(LinearSchedule, "start", "end", "end_fraction"),
    "FloatSchedule": Form(lambda v: type(v) is FloatSchedule, lambda v: {"value_schedule": v.value_schedule}, _float_schedule),
}


def to_plain(value: Any) -> Json:
    """A value as JSON.

    :raises NotPlain: naming the value that no rule knows
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if type(value) is list:
        return [to_plain(part) for part in value]
    if isinstance(value, dict):
        if not all(isinstance(name, str) and not name.startswith(":") for name in value):
            raise NotPlain(f"a mapping with keys other than text: {list(value)}")
        return {name: to_plain(part) for name, part in value.items()}
    if isinstance(value, type):
        return {":class": _name_of(value)}
    for kind, form in FORMS.items():
        if form.knows(value):
            return {f":{kind}": to_plain(form.take(value))}
    if _is_own_dataclass(type(value)):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {":sb_grpo": [f"{type(value).__module__}.{type(value).__qualname__}", to_plain(fields)]}
    raise NotPlain(f"{type(value).__module__}.{type(value).__qualname__}")


def from_plain(value: Any) -> Any:
    """The value that :func:`to_plain` turned into JSON.

    :raises NotPlain: for JSON that it would not have written
    """
    if isinstance(value, list):
        return [from_plain(part) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not next(iter(value)).startswith(":"):
        return {name: from_plain(part) for name, part in value.items()}
    ((kind, content),) = value.items()
    try:
        if kind == ":class":
            return _class_of(content, CLASSES)
        if kind == ":sb_grpo":
            name, fields = content
            return _class_of(name, {"sb_grpo": (object,)}, dataclasses.is_dataclass)(**from_plain(fields))
        if kind[1:] not in FORMS:
            raise NotPlain(f"a {kind[1:]}, which nothing that has been imported knows")
        return FORMS[kind[1:]].make(**from_plain(content))
    except NotPlain:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise NotPlain(f"{kind} {content!r:.80}: {error}") from error


def _is_own_dataclass(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and _is_in(kind.__module__, "sb_grpo")


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _name_of(kind: type) -> str:
    """``module.Name`` of a class that a file may name."""
    for module, bases in CLASSES.items():
        if issubclass(kind, bases):
            if getattr(sys.modules.get(module), kind.__name__, None) is kind:
                return f"{module}.{kind.__name__}"
            if module == "sb_grpo" and _is_in(kind.__module__, module):
                return f"{kind.__module__}.{kind.__qualname__}"
    raise NotPlain(f"the class {kind.__module__}.{kind.__qualname__}")


def _class_of(name: str, allowed: dict[str, tuple[type, ...]], also: Callable[[type], bool] = lambda _: True) -> type:
    """The class of a name, from modules that have been imported; nothing is imported for a file's sake."""
    module, _, last = name.rpartition(".")
    kind = getattr(sys.modules.get(module), last, None)
    for package, bases in allowed.items():
        inside = _is_in(module, package) if package == "sb_grpo" else module == package
        if inside and isinstance(kind, type) and issubclass(kind, bases) and also(kind):
            return kind
    raise NotPlain(f"no class {name!r} that a file may name")
