"""The optimiser of a policy's weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch as th
from torch import nn

from sb_grpo.config import shown


def make_optimizer(
    kind: Any, parameters: Iterable[nn.Parameter], rate: float, kwargs: Mapping[str, Any]
) -> th.optim.Optimizer:
    """An optimiser.

    :param kind: its class
    :param rate: learning rate to begin with
    :param kwargs: its settings
    :raises ValueError: with the optimiser's own words, for settings or weights that it does not take
    """
    try:
        return kind(parameters, lr=rate, **kwargs)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"policy_kwargs: {kind.__name__} does not take optimizer_kwargs={shown(kwargs)} or these weights ({error}): use "
            "other settings, or leave optimizer_class and optimizer_kwargs out for Adam."
        ) from error
