"""Rules for single arguments: what kind of number, in which range, and how an error says so."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """What a number must be."""

    kind: type  #: of the ``numbers`` module
    text: str  #: goes on after "must"
    fine: Callable[[Any], bool]


AT_LEAST_ONE = Rule(Integral, "be at least 1", lambda x: x >= 1)
POSITIVE = Rule(Real, "be positive", lambda x: x > 0)
SHARE = Rule(Real, "lie in [0, 1]", lambda x: 0 <= x <= 1)
BELOW_ONE = Rule(Real, "lie in [0, 1)", lambda x: 0 <= x < 1)


def check_numbers(where: str, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Check numbers by name.

    :param where: the argument that they belong to, for the message
    :param values: by name
    :param rules: of each name
    :raises ValueError: for the first of a wrong kind, then for the first out of range
    """
    for name, value in values.items():
        if not isinstance(value, rules[name].kind):
            what = "an integer" if rules[name].kind is Integral else "a number"
            raise ValueError(f"{where}: {name}={value!r} must be {what}.")
    for name, value in values.items():
        if not rules[name].fine(value):
            raise ValueError(f"{where}: {name}={value} must {rules[name].text}.")


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Check that a value is one of those there are.

    :param name: how the message calls it
    :raises ValueError: if it is none of them
    """
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown; use one of {list(choices)}.")


def check_keys(where: str, given: Collection[str], known: Collection[str], of: str) -> None:
    """Check the keys of a dict of settings.

    :param where: the argument that they were given in
    :param known: all that there are
    :param of: what takes them, for the message
    :raises ValueError: for the first unknown one, with the nearest name
    """
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), list(known), 1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            takes = f"takes {sorted(known)}" if known else "takes none"
            raise ValueError(f"{where} has an unknown key {key!r}{meant} {of} {takes}.")


#: Default rollout, in env steps over all envs together. PPO's 2048 *per env* starves the policy of updates.
ROLLOUT_STEPS = 2048


def steps_per_env(n_steps: int | None, n_envs: int) -> int:
    """What ``n_steps`` stands for: None is ``ROLLOUT_STEPS`` in total."""
    return math.ceil(ROLLOUT_STEPS / n_envs) if n_steps is None else n_steps
