"""Action masks: an invalid action gets no probability and no gradient.

The form of a mask is sb3-contrib's: one entry per action (Discrete), per action of each choice in turn (MultiDiscrete), or for
0 and 1 of each bit in turn (MultiBinary). The method: Huang and Ontañón, 2022 (https://arxiv.org/abs/2006.14171).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.types import Action

METHOD = "action_masks"  #: sb3-contrib's name of the env's method
#: Logit of an invalid action: its exp is 0 in every floating-point type, and 0 times it is 0.
NEVER = -1e8


def choices_of(space: spaces.Space) -> list[int]:
    """Number of actions of each choice in a mask; none for Box actions, which have no masks."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.flatten()]
    return [2] * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else []


def put_masks(out: th.Tensor, masks: th.Tensor) -> th.Tensor:
    """Apply masks to the outputs of the action net.

    :param out: ``[batch, n]`` logits; for bits ``[batch, m / 2]``, because a mask has two entries per bit
    :param masks: ``[batch, m]`` bool, or 0 and 1
    :return: ``[batch, n]``
    """
    valid = masks > 0.5 if masks.is_floating_point() else masks.bool()
    if valid.shape[-1] == out.shape[-1]:
        return out.masked_fill(~valid, NEVER)
    zero, one = valid.view(*valid.shape[:-1], -1, 2).unbind(-1)
    return out.masked_fill(~one, NEVER).masked_fill(~zero, -NEVER)


#: Valid actions ``[batch, m]`` as callers pass them to a policy; None: there are none beside the observation.
GivenMasks: TypeAlias = np.ndarray | th.Tensor | None
#: One mask, or several.
Masks: TypeAlias = np.ndarray | Sequence[np.ndarray]


def checked(masks: Masks, space: spaces.Space, n: int, where: str) -> np.ndarray:
    """Check masks, and convert them to booleans.

    :param masks: ``[n, m]`` of booleans, or numbers that are 0 or 1; ``[m]`` if n is 1
    :param space: action space
    :param n: number of rows required
    :param where: source of the masks, for the message; ``{index}`` stands for the row
    :return: ``[n, m]`` bool
    :raises ValueError: for another shape, for other values, and for a row without a valid action
    """
    choices = choices_of(space)
    each = re.sub(r"(\w+) \{index\}", r"each \1", where)
    is_one = np.ndim(masks) <= 1 and len(masks) > 0 and np.ndim(masks[0]) == 0
    rows = [np.asarray(row) for row in ([masks] if is_one else masks)]
    shapes = {row.shape for row in rows}
    if len(rows) != n or shapes != {(sum(choices),)}:
        per = "action" if len(choices) == 1 else "action of each choice in turn"
        raise ValueError(
            f"Masks {each}: {len(rows)}, of the shapes {sorted(shapes)}, but {space} wants {n} of "
            f"{sum(choices)} entries, one per {per} (docs/masks.md)."
        )
    found = np.stack(rows)
    if found.dtype != np.bool_:
        if found.dtype.kind not in "iuf" or not ((found == 0) | (found == 1)).all():
            raise ValueError(f"A mask {each} holds {found.dtype} values such as {found.flat[0]!r}: use booleans, or 0 and 1.")
        found = found.astype(np.bool_)
    for number, part in enumerate(np.split(found, np.cumsum(choices)[:-1], axis=1)):
        dead = ~part.any(axis=1)
        if dead.any():
            of = "" if len(choices) == 1 else f" for choice {number}"
            raise ValueError(
                f"The mask {where.format(index=int(np.flatnonzero(dead)[0]))} allows no action{of}. Allow at least one at "
                "every step, or end the episode where nothing can be done."
            )
    return found


def drawn(space: spaces.Space, mask: np.ndarray | None) -> Any:
    """Draw a random valid action.

    :param mask: ``[m]`` bool; None: all actions are valid
    """
    if mask is None:
        return space.sample()
    parts = np.split(mask, np.cumsum(choices_of(space))[:-1])
    chosen = np.array([space.np_random.choice(np.flatnonzero(part)) for part in parts]).reshape(space.shape or ())
    return np.asarray(chosen + getattr(space, "start", 0), dtype=space.dtype)[()]


def allows(space: spaces.Space, mask: np.ndarray | None, action: Action) -> bool:
    """Whether an action is valid."""
    if mask is None:
        return True
    chosen = np.ravel(np.asarray(action, dtype=np.int64) - getattr(space, "start", 0))
    return bool(mask[np.cumsum([0, *choices_of(space)[:-1]]) + chosen].all())
