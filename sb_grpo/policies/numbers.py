"""Detect NaN and inf in a policy's outputs before they are used, and find their cause.

The argmax of NaN is still an action index, so the outputs of a broken network would look like actions.
"""

from __future__ import annotations

import math

import torch as th
from torch import nn


def trouble_with(policy: nn.Module, outputs: th.Tensor) -> str | None:
    """Describe the fault of a policy's outputs; None if all are finite. Nothing is checked while a graph is traced.

    :param outputs: parameters of the action distribution, or log-probabilities
    """
    if th.compiler.is_compiling() or math.isfinite(outputs.sum().item()):
        return None
    return None if bool(outputs.isfinite().all()) else no_numbers(policy)


def no_numbers(policy: nn.Module) -> str:
    """Describe which part of a policy produces NaN or inf."""
    begin = "the policy's outputs are not finite: "
    for kind, tensors in (("parameter", policy.named_parameters()), ("buffer", policy.named_buffers())):
        for name, values in tensors:
            bad = ~values.isfinite() if kind == "parameter" else values.isnan()
            if bool(bad.any()):
                return (
                    f"{begin}{kind} {name} of the policy holds NaN or inf. Look at what has set it last (a callback, a load, "
                    "an optimiser of your own), and load weights of before."
                )
    return (
        f"{begin}its weights are finite, so its features extractor or its network makes them of what it sees, as a log or a "
        "division by 0 does, or of values that are too large. Bound what these compute, or the observations (VecNormalize)."
    )
