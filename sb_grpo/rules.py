"""Rules for single arguments: of what kind, in which range, and how an error says so."""

from __future__ import annotations

import difflib
import inspect
import math
import reprlib
from collections.abc import Callable, Collection, Mapping, MutableMapping, MutableSequence
from typing import Any, NamedTuple

import numpy as np


class Rule(NamedTuple):
    """What a value must be."""

    text: str  #: goes on after the value
    fine: Callable[[Any], bool]
    scheduled: bool = False  #: a function of the remaining progress will do too, if what it returns is fine


def integer(low: int, high: int, usual: str = "", none: bool = False, scheduled: bool = False) -> Rule:
    """A whole number.

    :param low: smallest
    :param high: largest: beyond it there is no sense, or no memory
    :param usual: the remedy that the message ends with
    :param none: None will do too
    """

    def fine(x: Any) -> bool:
        return (none and x is None) or (is_number(x) and isinstance(x, int | np.integer) and bool(low <= x <= high))

    return Rule(_in_words(f"an integer, at least {low} and at most {high}", usual, none, scheduled), fine, scheduled)


def number(
    low: float,
    high: float,
    usual: str = "",
    above: bool = False,
    below: bool = False,
    none: bool = False,
    scheduled: bool = False,
) -> Rule:
    """A number; infinity only where ``high`` is.

    :param above: ``low`` itself will not do
    :param below: ``high`` itself will not do
    """

    def fine(x: Any) -> bool:
        if x is None or not is_number(x):
            return none and x is None
        if isinstance(x, int) and x.bit_length() > 1000:  # no float can be that
            return False
        return bool((low < x if above else low <= x) and (x < high if below else x <= high))

    if above and low == 0:
        what = "a positive number" + ("" if math.isinf(high) else f" up to {high:g}")
    else:
        what = f"a number in [{low:g}, {high:g}{')' if below else ']'}"
    return Rule(_in_words(what, usual, none, scheduled), fine, scheduled)


def _in_words(what: str, usual: str, none: bool, scheduled: bool) -> str:
    function = " or a function of the remaining progress (1 to 0) to such numbers" if scheduled else ""
    return "must be " + what + function + (", or None" if none else "") + (f"; {usual}" if usual else "")


def is_number(x: Any) -> bool:
    """Python's and NumPy's numbers. Flags are none, nor are fractions, decimals and tensors, which do not go with floats."""
    return isinstance(x, int | float | np.integer | np.floating) and not isinstance(x, bool)


def plain(value: Any) -> Any:
    """Numbers and flags of NumPy and PyTorch as Python's: theirs overflow in the arithmetic of seeds, and are no JSON."""
    kind = type(value)  # asked first, as an env may answer to any name
    return value.item() if hasattr(kind, "ndim") and hasattr(kind, "item") and value.ndim == 0 else value


def from_config(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, their settings as the dicts and lists that they are: a library of configurations (Hydra's OmegaConf,
    ml_collections) holds them in containers of its own."""
    return {name: _unpacked(x, type(x)) if name.endswith("_kwargs") or name in ("multitask", "rewards") else x
            for name, x in arguments.items()}  # fmt: skip


def _unpacked(value: Any, outermost: type) -> Any:
    if isinstance(value, MutableMapping) or (hasattr(outermost, "keys") and type(value) is outermost):
        parts: Any = value  # ** asks less of it than a Mapping has
        return {name: _unpacked(parts[name], outermost) for name in parts.keys()}
    return [_unpacked(part, outermost) for part in value] if isinstance(value, MutableSequence) else value


def constructor_of(kind: type) -> dict[str, inspect.Parameter]:
    """What a class is built with, by name; where its constructor hands on further arguments, its parents' too."""
    found: dict[str, inspect.Parameter] = {}
    for parent in kind.__mro__:
        if "__init__" not in vars(parent):
            continue
        own = list(inspect.signature(vars(parent)["__init__"]).parameters.values())[1:]
        found = {p.name: p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)} | found
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            break
    return found


def one_of(*choices: Any) -> Rule:
    """One of some names, flags or None."""
    return Rule(f"is unknown; use one of {list(choices)}", lambda x: any(isinstance(x, type(c)) and x == c for c in choices))


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Check that a value is one of those there are.

    :param name: how the message calls it
    :raises ValueError: if it is none of them
    """
    check_values("", {name: value}, {name: one_of(*choices)})


def a(text: str, *kinds: type, none: bool = False) -> Rule:
    """An object of some classes."""
    return Rule(f"must be {text}{', or None' if none else ''}", lambda x: isinstance(x, kinds) or (none and x is None))


def or_function(rule: Rule, what: str, n_arguments: int) -> Rule:
    """A function will do too.

    :param what: that the function is, for the message
    :param n_arguments: that it takes
    """
    return Rule(f"{rule.text}, or {what}", lambda x: is_function(x, n_arguments) or rule.fine(x))


def is_function(x: Any, n_arguments: int, kwargs: Mapping[str, Any] | None = None) -> bool:
    """Whether something can be called with so many arguments, and these by name. Classes are none: they make objects."""
    if not callable(x) or isinstance(x, type):
        return False
    try:
        inspect.signature(x).bind(*[None] * n_arguments, **(kwargs or {}))
    except TypeError:
        return False
    except ValueError:  # a function in C that does not say what it takes
        pass
    return True


def has_text_keys(x: Any) -> bool:
    """Whether something is a dict whose keys are names."""
    return isinstance(x, Mapping) and all(isinstance(key, str) for key in x)


FLAG = Rule("must be True or False", lambda x: isinstance(x, bool | np.bool_))
SETTINGS = Rule("must be a dict of keyword arguments by name, or None", lambda x: x is None or has_text_keys(x))


def shown(value: Any) -> str:
    """A value in a message: never long, whatever it is."""
    return _REPR.repr(value)


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:  # Python itself refuses to write the longest ones
        return repr(x) if x.bit_length() < 100 else f"an integer of {x.bit_length()} bits"


_REPR = _Short()
_REPR.maxstring = _REPR.maxother = 120
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 12


def check_values(where: str, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Check values by name, one by one; those without a rule are passed over.

    :param where: the argument that they are keys of, for the message; "" where they are arguments themselves
    :param values: by name
    :param rules: of each name
    :raises ValueError: for the first that breaks its rule
    """
    for name in values.keys() & rules.keys():
        label = f"{where}: {name}" if where else name
        value, rule = values[name], rules[name]
        if rule.scheduled and callable(value):
            at_progress(label, rule, value, 1.0)
        elif not rule.fine(value):
            raise ValueError(f"{label}={shown(value)} {rule.text}.{_of_yaml(value) if rule.scheduled else ''}")


def _of_yaml(value: Any) -> str:
    """A sentence on a schedule that is written as in the zoo's files."""
    if not isinstance(value, str):
        return ""
    start = value.removeprefix("lin_") if value.startswith("lin_") else "3e-4"
    return (
        " A string is for the YAML files of the zoo: pass a number, or LinearSchedule("
        f"{start}, 0.0, 1.0) of stable_baselines3.common.utils."
    )


def at_progress(label: str, rule: Rule, schedule: Any, progress: float) -> Any:
    """What a number or a function of the progress is at some progress.

    :param label: how the message calls it
    :param progress: that remains, 1 to 0
    :raises ValueError: if that breaks the rule: a learning rate below 0 would unlearn without a word
    """
    if not callable(schedule):
        check_values("", {label: schedule}, {label: rule._replace(scheduled=False)})
        return schedule
    try:
        value = plain(schedule(progress))
    except Exception as error:
        raise ValueError(f"{label}={shown(schedule)} failed at progress {progress:g} ({error!r}): it {rule.text}.") from error
    if value is None or not rule.fine(value):
        raise ValueError(f"{label}={shown(schedule)} returned {shown(value)} at progress {progress:g}: it {rule.text}.")
    return value


def check_keys(where: str, given: Collection[str], known: Collection[str], of: str) -> None:
    """Check the keys of a dict of settings.

    :param where: the argument that they were given in
    :param known: all that there are
    :param of: what takes them, for the message
    :raises ValueError: for the first unknown one, with the nearest name
    """
    for key in given:
        if key not in known:
            takes = f"takes {sorted(known)}" if known else "takes none"
            raise ValueError(f"{where} has an unknown key {key!r}{meant(key, known)} {of} {takes}.")


def meant(name: Any, known: Collection[str]) -> str:
    """The end of a sentence about an unknown name: the question that has the nearest one, or a full stop."""
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else "."


#: Default rollout, in env steps over all envs together. PPO's 2048 *per env* starves the policy of updates.
ROLLOUT_STEPS = 2048


def steps_per_env(n_steps: int | None, n_envs: int) -> int:
    """What ``n_steps`` stands for: None is ``ROLLOUT_STEPS`` in total."""
    return math.ceil(ROLLOUT_STEPS / n_envs) if n_steps is None else n_steps
