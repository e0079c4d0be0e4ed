"""Plain values in files: YAML is read, or refused in one line; JSON is written with null for numbers that are not finite.

Reading never runs code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from pathlib import Path

import yaml

from .command_line import BadInput, one_line

#: Settings of a run, as an entry of a YAML file has them.
Hyperparams = dict[str, object]
#: Settings of GRPO by env.
HYPERPARAMS = Path(__file__).parents[1] / "hyperparams" / "grpo.yml"
#: Largest number of values in a file with expanded aliases.
MOST_VALUES = 200_000
#: Further errors of PyYAML's constructors on damaged text.
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class TooLarge(BadInput):
    """Error of a file with too many values in its aliases; such files are malicious, not damaged."""


class Loader(yaml.SafeLoader):
    """Loader with a limit on expanded aliases: a file of 400 bytes can hold 10^9 values."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()  # type: ignore[no-untyped-call]
        if node is not None and _written_out(node, {}) > MOST_VALUES:
            raise TooLarge(f"its aliases stand for more than {MOST_VALUES:,} values: write them out, or make it smaller.")
        return node


def _written_out(node: yaml.Node, known: dict[int, float]) -> float:
    """Number of values in a node; infinite if it contains itself.

    :param known: numbers by the identity of a node; filled
    """
    if id(node) not in known:
        known[id(node)] = float("inf")  # until known, for an alias of a node within itself
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        flat = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1.0 + sum(_written_out(one, known) for one in flat)
    return known[id(node)]


class EachOnce(Loader):
    """Loader that refuses repeated keys, of which YAML would silently keep only the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        names = [self.construct_object(key, deep=True) for key in own]  # type: ignore[no-untyped-call]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{name!r} is given twice; leave one out", own[i].start_mark
                )
        return super().construct_mapping(node, deep)


def read_mapping(path: str | Path, example: str, loader: type[Loader] = EachOnce) -> dict[str, object]:
    """Read a YAML file that holds a mapping.

    :param example: of a line, for the message
    :param loader: that knows the file's tags
    :raises BadInput: if it cannot be read, holds something else, or is too large
    """
    try:
        table = yaml.load(Path(path).read_text(), Loader=loader)  # a SafeLoader
    except TooLarge as error:
        raise TooLarge(f"{path}: {error}") from error
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except yaml.constructor.ConstructorError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise BadInput(f"{path}: {line}{one_line(error.problem or error)}") from error
    except (yaml.YAMLError, *DAMAGED) as error:
        raise BadInput(f"{path} is not YAML: {one_line(error)}") from error
    if not isinstance(table, dict):
        raise BadInput(f"{path} must be a mapping, with lines such as '{example}', but is {type(table).__name__}")
    return table


def read_sections(path: str | Path, example: str = "CartPole-v1: {n_envs: 8}") -> dict[str, Hyperparams]:
    """Read a mapping of names to mappings; see :func:`read_mapping`."""
    sections = {}
    for name, section in read_mapping(path, example).items():
        if not isinstance(section, dict):
            kind = type(section).__name__
            raise BadInput(f"{path}: {name} must be a mapping, as in '{example}', but is {kind}: {section!r}")
        sections[name] = section
    return sections


def finite(value: object) -> object:
    """Replace numbers that are not finite by None, at any depth.

    :param value: of lists, tuples, dicts and plain values
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value


def to_json(value: object, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """Write standard JSON; arguments as in :func:`json.dumps`."""
    return json.dumps(finite(value), allow_nan=False, indent=indent, separators=separators)
