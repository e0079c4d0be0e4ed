"""Rollouts from a loop of one's own: their columns get the types of collected ones, or are refused by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.policies.masks import choices_of
from sb_grpo.types import PER_EPISODE, PER_STEP, Kwargs, Rollout, action_row

#: Columns that are numbers, whatever numbers they were given as.
NUMBERS = ("rewards", "log_probs", "objectives")


def as_collected(rollout: Rollout | None, space: spaces.Space) -> Rollout:
    """A rollout whose columns are as those of a collected one; that itself where nothing was changed.

    :param space: of actions
    :raises ValueError: naming field, rule and remedy
    """
    if rollout is None:
        raise ValueError(
            "There is no rollout to learn from: collect() returns None when its callback has asked to stop. End the loop "
            "there, with `if rollout is None: break`."
        )
    device, (action_shape, action_type) = rollout.t.device, action_row(space)
    types = {**dict.fromkeys(NUMBERS, th.float32), "actions": action_type}
    shapes = {"actions": action_shape, "rewards": (), "log_probs": ()}
    changed: Kwargs = {}
    for names, rows in ((PER_STEP, len(rollout.t)), (PER_EPISODE, len(rollout.group))):
        for name in names:
            value = getattr(rollout, name)
            if name in types and value is not None:
                value = changed[name] = as_tensor(name, value, types[name], device)
            check_rows(name, value, rows, shapes.get(name))
    check_range(changed["actions"], space)
    return rollout._replace(**changed)


def as_tensor(name: str, value: object, dtype: th.dtype, device: th.device) -> th.Tensor:
    """A column as a tensor of its type.

    :raises ValueError: for a value that is no column of numbers, and for one that a gradient flows through
    """
    try:
        found = value if isinstance(value, th.Tensor) else th.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise ValueError(f"rollout.{name} is no array of numbers ({error}): pass a tensor or a NumPy array.") from error
    if found.requires_grad:
        raise ValueError(f"rollout.{name} requires a gradient, but update() learns from values: pass {name}.detach().")
    return found.to(device, dtype)


def check_rows(name: str, value: th.Tensor | Mapping[str, th.Tensor] | None, rows: int, shape: tuple[int, ...] | None) -> None:
    """Check that a column has one row per step, or per episode.

    :param value: a tensor, or several by name; None: it is not there
    :param shape: of a row; None: any
    :raises ValueError: if not
    """
    if value is None:
        return
    if not isinstance(value, th.Tensor):
        for key, part in value.items():
            check_rows(f"{name}[{key!r}]", part, rows, None)
        return
    if value.dim() == 0 or len(value) != rows or (shape is not None and tuple(value.shape[1:]) != shape):
        wanted = f"({rows}, ...)" if shape is None else (rows, *shape)
        raise ValueError(
            f"rollout.{name} has shape {tuple(value.shape)}, but this rollout's is {wanted}: change values, and leave the "
            "rows as they are; sb_grpo.types.select_episodes makes a smaller rollout."
        )


def check_made_of(rollout: Rollout, rewards: th.Tensor | None) -> None:
    """Check that the reward of a collected rollout was changed where it comes from.

    :param rewards: ``[M]`` the column as it was collected; None: nobody holds it any more, so this is another one
    :raises ValueError: for other rewards where their place is taken by the weighted sum of objectives
    """
    if rollout.objectives is not None and rollout.rewards is not rewards:
        raise ValueError(
            "rollout.rewards was changed, but rewards=dict(objectives=...) makes the reward of a step of its objectives, so "
            "the change would be lost: change those, with rollout._replace(objectives=...), one column per objective."
        )


def check_range(actions: th.Tensor, space: spaces.Space) -> None:
    """Check that actions are in their space; Box actions are stored as drawn, so they have no bounds.

    :raises ValueError: if not
    """
    choices = th.tensor(choices_of(space), device=actions.device)
    if len(choices):
        outside = (actions < 0) | (actions >= (choices[0] if actions.dim() == 1 else choices))
        if bool(outside.any()):
            wrong = actions[outside][0].item()
            raise ValueError(f"rollout.actions holds {wrong:g}, which is no action of {space}: count actions from 0.")
