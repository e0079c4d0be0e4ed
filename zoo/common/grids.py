"""Grids of settings on a command line: ``learning_rate=3e-4,1e-3 group_size=4,8``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from ..common.command_line import BadInput

#: Values of settings by name.
Grid = dict[str, list[Any]]


def parse_grid(option: str, texts: Sequence[str]) -> Grid:
    """Parse values by name. They are literals, or plain words: ``net_arch=[64],[64,64]``, ``advantage=state,step``.

    :param option: such as ``--grid``, for messages
    :param texts: of the command line
    :raises BadInput: for text that is not ``name=value,value``, and for a repeated name or value
    """
    grid: Grid = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.isidentifier() or not values.strip(", "):
            raise BadInput(f"{option} {text!r} must be name=value,value,..., for example learning_rate=3e-4,1e-3")
        if name in grid:
            raise BadInput(f"{option} names {name} twice")
        try:
            grid[name] = list(ast.literal_eval(f"[{values}]"))
        except (ValueError, SyntaxError):
            grid[name] = [_word(word.strip()) for word in values.split(",")]
        if len({repr(value) for value in grid[name]}) < len(grid[name]):
            raise BadInput(f"{option} {text!r} has a value twice")
    return grid


def _word(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
