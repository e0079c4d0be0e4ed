"""Numbers that a function has returned for the steps of a rollout: are they what it must return?"""

from __future__ import annotations

from typing import Any

import torch as th

from sb_grpo.types import Breakdown, Rollout


def check_per_step(argument: str, what: str, remedy: str, values: Any, rollout: Rollout) -> None:
    """Check one number per step.

    :param argument: that the function was given as
    :param what: its numbers are, for the message
    :param remedy: what to do where they are not finite
    :param values: what it returned
    :raises ValueError: if it is no tensor of the right shape; :class:`~sb_grpo.types.Breakdown` if it is not finite
    """
    if not isinstance(values, th.Tensor) or values.shape != rollout.rewards.shape:
        got = tuple(values.shape) if hasattr(values, "shape") else type(values).__name__
        raise ValueError(
            f"{argument} returned {got}; it must return a torch tensor with one number per step, "
            f"shape {tuple(rollout.rewards.shape)}."
        )
    if not bool(th.isfinite(values).all()):
        row = int((~th.isfinite(values)).nonzero()[0])
        raise Breakdown(
            f"The {what} of step {int(rollout.t[row])} of an episode in group "
            f"{int(rollout.group[rollout.episode[row]])} of this rollout is {float(values[row])}. The policy has not been "
            f"updated. {remedy}"
        )
