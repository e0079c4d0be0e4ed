"""Observations that count from another number than 0: one-hot codes begin at 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces


def starts_of(space: spaces.Space) -> Any:
    """First numbers of a discrete space, by key in a Dict; None where all count from 0, or do not count."""
    if isinstance(space, spaces.Dict):
        starts = {key: start for key, part in space.items() if (start := starts_of(part)) is not None}
        return starts or None
    start = getattr(space, "start", None)  # of Discrete and MultiDiscrete
    return None if start is None or not np.any(start) else th.as_tensor(np.asarray(start))


def from_zero(obs: Any, starts: Any) -> Any:
    """Observations that count from 0.

    :param obs: ``[batch, ...]`` or a dict of such
    :param starts: of :func:`starts_of`
    """
    if starts is None:
        return obs
    if isinstance(starts, dict):
        return {key: from_zero(part, starts.get(key)) for key, part in obs.items()}
    return (obs - starts.to(obs.device)).clamp(min=0)  # what follows a terminated episode, which nobody asks for, is 0
