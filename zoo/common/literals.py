"""Settings that YAML files write as Python text, such as ``dict(net_arch=[64], activation_fn=nn.ReLU)``: parsed, not
evaluated.

rl_zoo3 calls ``eval`` on them, so a file or a study's storage could run any code. Here a text must be a literal, ``dict(...)``
of literals, or the name of a class from a short list.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType

import gymnasium as gym
import stable_baselines3.common.torch_layers as layers
import torch as th
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecEnvWrapper

from ..common.command_line import BadInput, did_you_mean, one_line
from .plain_files import Hyperparams

#: Settings that rl_zoo3 evaluates if they are text.
TEXTS = ("policy_kwargs", "replay_buffer_class", "replay_buffer_kwargs", "normalize", "monitor_kwargs")
#: Classes that a text may name without a module.
CLASSES: dict[str, type] = {
    "HerReplayBuffer": HerReplayBuffer,
    "RMSpropTFLike": RMSpropTFLike,
    **{name: getattr(layers, name) for name in ("FlattenExtractor", "NatureCNN", "CombinedExtractor")},
}
#: Module -> (its names in a text, base of its classes).
MODULES: dict[ModuleType, tuple[tuple[str, ...], type]] = {
    th.nn: (("nn", "th.nn", "torch.nn"), th.nn.Module),
    th.optim: (("th.optim", "torch.optim", "optim"), th.optim.Optimizer),
}
#: Settings that name classes to import -> base of the classes.
NAMED_CLASSES: dict[str, type] = {"env_wrapper": gym.Wrapper, "vec_env_wrapper": VecEnvWrapper, "callback": BaseCallback}
GRAMMAR = "literals, dict(name=value, ...) and classes such as nn.ReLU"


def parse(text: str) -> object:
    """Parse a text.

    :raises ValueError: if it is outside of the grammar
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"{text!r} is none of {GRAMMAR}: {one_line(error)}") from error


def _value(node: ast.expr) -> object:
    match node:
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            return _merged((None if k.arg is None else k.arg, _value(k.value)) for k in keywords)
        case ast.Dict(keys=keys, values=values):
            return _merged((None if k is None else _value(k), _value(v)) for k, v in zip(keys, values, strict=True))
        case ast.List(elts=parts):
            return [_value(part) for part in parts]
        case ast.Tuple(elts=parts):
            return tuple(_value(part) for part in parts)
        case ast.Name() | ast.Attribute():
            return _class(ast.unparse(node))
        case _:
            try:
                return ast.literal_eval(node)
            except ValueError:
                raise ValueError(f"{ast.unparse(node)!r} is none of {GRAMMAR}") from None


def _merged(pairs: Iterator[tuple[object, object]]) -> dict[object, object]:
    """Merge pairs to a dict; a key of None stands for ``**value``.

    :raises TypeError: if that value is no mapping
    """
    merged: dict[object, object] = {}
    for key, value in pairs:
        if key is None and not isinstance(value, dict):
            raise TypeError(f"{value!r} behind ** is no mapping")
        merged |= value if key is None and isinstance(value, dict) else {key: value}
    return merged


def _class(name: str) -> type:
    if name in CLASSES:
        return CLASSES[name]
    where, _, last = name.rpartition(".")
    for module, (names, base) in MODULES.items():
        found = getattr(module, last, None)
        if where in names and isinstance(found, type) and issubclass(found, base):
            return found
    raise ValueError(f"{name!r} is none of {GRAMMAR}")


def to_text(value: object) -> str:
    """Write a value as text for :func:`parse`.

    :raises ValueError: if there is no such text
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {to_text(x)}" for key, x in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_text, value)) + "]"
    if isinstance(value, type):
        named = next((name for name, known in CLASSES.items() if known is value), "")
        named = named or f"{'nn' if issubclass(value, th.nn.Module) else 'th.optim'}.{value.__name__}"
        if _class(named) is value:
            return named
    text = repr(value)
    if parse(text) != value:
        raise ValueError(f"{value!r} cannot be written as text")
    return text


def read_text(name: str, text: str, where: str) -> object:
    """Parse a setting that rl_zoo3 would evaluate. The value is never text, because rl_zoo3 would evaluate it again.

    :raises BadInput: for a text outside of the grammar
    """
    try:
        value = parse(text)
        if isinstance(value, str):
            raise ValueError(f"{text!r} is text within text")
    except ValueError as error:
        raise BadInput(
            f"{where}: {name}: {error}. Files are not evaluated; code of your own goes into a .py file for --conf-file."
        ) from error
    return value


def without_texts(settings: Hyperparams, where: Callable[[str], str]) -> Hyperparams:
    """Parse the texts in settings, so that rl_zoo3 does not evaluate them.

    :param settings: of a run
    :param where: from a name to its place in the user's input
    :raises BadInput: for a text outside of the grammar
    """
    texts = {name: text for name in TEXTS if isinstance(text := settings.get(name), str)}
    return {**settings, **{name: read_text(name, text, where(name)) for name, text in texts.items()}}


def check_named_classes(settings: Hyperparams, where: Callable[[str], str]) -> None:
    """Check that settings name classes of the right kind. It imports their modules, so all other checks come first.

    :param settings: of a run
    :param where: from a name to its place in the user's input
    :raises BadInput: for a name that is no class of its kind, and for unknown arguments
    """
    named = [(key, base, *entry) for key, base in NAMED_CLASSES.items() for entry in named_classes(settings.get(key))]
    checked: list[tuple[str, type, str, dict[str, object]]] = []
    for key, base, path, arguments in named:
        if not isinstance(path, str) or not all(part.isidentifier() for part in path.split(".")):
            raise BadInput(
                f"{where(key)}: {key}: {path!r} must be a class by its dotted name, such as my_module.MyClass, or a "
                "mapping of it to its arguments."
            )
        if not isinstance(arguments, dict):
            raise BadInput(
                f"{where(key)}: {key}: {path}: its arguments must be a mapping, such as {{name: value}}, not {arguments!r}."
            )
        checked.append((key, base, path, arguments))
    for key, base, path, arguments in checked:
        what = f"{where(key)}: {key}: {path}"
        _check_arguments(_class_at(path, base, what), arguments, [] if base is BaseCallback else ["env"], what)


def named_classes(value: object) -> Iterator[tuple[object, object]]:
    """Dotted names and arguments in a setting of rl_zoo3's form: a name, ``{name: arguments}``, or a list of these."""
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, dict) and len(entry) > 1:
            yield entry, {}  # not a name
        elif isinstance(entry, dict):
            yield from entry.items()
        elif entry is not None:
            yield entry, {}


def _check_arguments(kind: type, arguments: dict[str, object], before: list[str], what: str) -> None:
    """Check that a class accepts its arguments.

    :param before: names of the arguments in front
    """
    signature = inspect.signature(kind)
    try:
        signature.bind(*before, **arguments)
    except TypeError as error:
        parameters = list(signature.parameters.values())[len(before) :]
        taken = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
        unknown = [name for name in arguments if name not in signature.parameters]
        hint = did_you_mean(unknown[0], signature.parameters) if unknown else ""
        raise BadInput(f"{what} {error}; it takes {', '.join(taken) or 'none'}.{hint}") from error


def _class_at(path: str, base: type, what: str) -> type:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"{what} cannot be imported ({one_line(error)}).") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise BadInput(f"{what} is no {base.__name__}.")
    return found
