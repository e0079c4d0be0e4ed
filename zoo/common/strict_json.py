"""Standard JSON: NaN and infinities are written as null."""

from __future__ import annotations

import json
import math


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
