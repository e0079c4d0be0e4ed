"""Standard JSON: NaN and infinities are written as null."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, at any depth.

    :param value: of lists, tuples, dicts and plain values
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value


def to_json(value: Any, **options: Any) -> str:
    """Write standard JSON.

    :param options: of :func:`json.dumps`
    """
    return json.dumps(finite(value), allow_nan=False, **options)
