"""YAML files that the user names: read, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ..common.command_line import BadInput, one_line

#: Settings of GRPO by env.
HYPERPARAMS = Path(__file__).parents[1] / "hyperparams" / "grpo.yml"


def read_mapping(path: str | Path, example: str) -> dict[str, Any]:
    """What a YAML file maps to what.

    :param example: of a line, for the message
    :raises BadInput: if it cannot be read, or holds something else
    """
    try:
        table = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
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
