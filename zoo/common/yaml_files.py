"""YAML files that the user names: read, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ..common.command_line import BadInput, one_line

#: Settings of GRPO by env.
HYPERPARAMS = Path(__file__).parents[1] / "hyperparams" / "grpo.yml"


class EachOnce(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, of which YAML's readers forget the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        names = [self.construct_object(key, deep=True) for key in own]  # type: ignore[no-untyped-call]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{name!r} is given twice; leave one out", own[i].start_mark
                )
        return super().construct_mapping(node, deep)


def read_mapping(path: str | Path, example: str) -> dict[str, Any]:
    """What a YAML file maps to what.

    :param example: of a line, for the message
    :raises BadInput: if it cannot be read, or holds something else
    """
    try:
        table = yaml.load(Path(path).read_text(), Loader=EachOnce)  # a SafeLoader
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except yaml.constructor.ConstructorError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise BadInput(f"{path}: {line}{one_line(error.problem or error)}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not YAML: {one_line(error)}") from error
    if not isinstance(table, dict):
        raise BadInput(f"{path} must be a mapping, with lines such as '{example}', but is {type(table).__name__}")
    return table


def read_sections(path: str | Path, example: str = "CartPole-v1: {n_envs: 8}") -> dict[str, dict[str, Any]]:
    """As :func:`read_mapping`, of names to mappings."""
    table = read_mapping(path, example)
    for name, section in table.items():
        if not isinstance(section, dict):
            kind = type(section).__name__
            raise BadInput(f"{path}: {name} must be a mapping, as in '{example}', but is {kind}: {section!r}")
    return table
