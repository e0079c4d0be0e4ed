"""Checks of the numbers per step that a user's function returns."""

from __future__ import annotations

import numpy as np
import torch as th

from sb_grpo.types import Breakdown, Rollout


def numbers_of(values: object, device: th.device) -> th.Tensor | None:
    """Convert an array of numbers to a float tensor without gradient; None for anything else.

    :param values: tensor or NumPy array of any number type
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        values = th.as_tensor(values)
    if not isinstance(values, th.Tensor) or values.is_complex():
        return None
    return (values if values.is_floating_point() else values.float()).detach().to(device)


def per_step(argument: str, what: str, remedy: str, values: object, rollout: Rollout) -> th.Tensor:
    """Check and convert the numbers per step that a user's function returned.

    :param argument: name of the argument that holds the function
    :param what: name of the numbers, for the message
    :param remedy: for the message about numbers that are not finite
    :param values: returned by the function
    :return: ``[M]`` floats
    :raises ValueError: if it is no array of the right shape; :class:`~sb_grpo.types.Breakdown` if a number is not finite
    """
    found = numbers_of(values, rollout.rewards.device)
    if found is None or found.shape != rollout.rewards.shape:
        got = type(values).__name__ if found is None else tuple(found.shape)
        raise ValueError(
            f"{argument} returned {got}; it must return a torch tensor with one number per step, "
            f"shape {tuple(rollout.rewards.shape)}."
        )
    if not bool(th.isfinite(found).all()):
        row = int((~th.isfinite(found)).nonzero()[0])
        raise Breakdown(
            f"The {what} of step {int(rollout.t[row])} of an episode in group "
            f"{int(rollout.group[rollout.episode[row]])} of this rollout is {float(found[row])}. The policy has not been "
            f"updated. {remedy}"
        )
    return found
