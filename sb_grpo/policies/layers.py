"""Layers of the policy network: their sizes in any of SB3's forms, and fast calls."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch as th
from torch import nn

from sb_grpo.config import integer, shown

LAYER = integer(1, 16_384)
MOST_WEIGHTS = 10_000_000


def layers_of_the_actor(net_arch: Any) -> list[int]:
    """Parse the actor's hidden layer sizes from any of SB3's forms.

    :param net_arch: ``[64, 64]``, ``dict(pi=[64, 64], vf=...)``, or that dict in a list as before SB3 1.8
    :raises ValueError: unless all sizes are whole numbers of at least 1
    """
    if isinstance(net_arch, list) and len(net_arch) == 1 and isinstance(net_arch[0], dict):
        warnings.warn(f"net_arch={net_arch} is SB3's form before version 1.8: pass {net_arch[0]}.", UserWarning, stacklevel=3)
        net_arch = net_arch[0]
    layers = net_arch.get("pi", []) if isinstance(net_arch, dict) else net_arch
    if not isinstance(layers, list | tuple) or len(layers) > 100 or not all(LAYER.fine(n) for n in layers):
        raise ValueError(
            f"policy_kwargs: net_arch={shown(net_arch)} must be a list of layer sizes from 1 on, or a dict with 'pi'; up to "
            "100 layers of up to 16384."
        )
    if sum(int(n) * int(m) for n, m in itertools.pairwise(layers)) > MOST_WEIGHTS:
        raise ValueError(
            f"policy_kwargs: net_arch={shown(net_arch)} must not have more than {MOST_WEIGHTS:,} weights between its layers: "
            "make them smaller; [64, 64] is usual."
        )
    return [int(n) for n in layers]


def through(layer: nn.Module, x: th.Tensor) -> th.Tensor:
    """Compute ``layer(x)``. Without hooks it skips the module's call, a third of a small layer's time."""
    return layer(x) if hooked(layer) else layer.forward(x)  # type: ignore[no-any-return]


def hooked(layer: nn.Module) -> bool:
    """Whether a layer has hooks."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


class Layers(nn.Sequential):
    """Sequence of layers with fast calls."""

    def forward(self, x: th.Tensor) -> th.Tensor:
        for layer in self:
            x = through(layer, x)
        return x
