"""Optimiser of a policy's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch as th
from torch import nn

from sb_grpo.config import shown
from sb_grpo.types import Settings


def make_optimizer(
    kind: Callable[..., th.optim.Optimizer], parameters: Iterable[nn.Parameter], rate: float, kwargs: Settings
) -> th.optim.Optimizer:
    """Make an optimiser.

    :param kind: its class
    :param rate: initial learning rate
    :param kwargs: its settings
    :raises ValueError: with the optimiser's message, for settings or weights that it rejects
    """
    try:
        return kind(parameters, lr=rate, **kwargs)  # type: ignore[no-any-return]
    except Exception as error:  # any optimiser may reject them in its own way
        name = getattr(kind, "__name__", kind)
        raise ValueError(
            f"policy_kwargs: {name} does not take optimizer_kwargs={shown(kwargs)} or these weights ({error}): "
            "use other settings, or leave optimizer_class and optimizer_kwargs out for Adam."
        ) from error
