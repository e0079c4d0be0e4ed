"""Layer sizes in any of the forms that SB3 has had."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np


def layers_of_the_actor(net_arch: Any) -> list[int]:
    """Hidden layer sizes of the actor, from any of the forms that SB3 has had.

    :param net_arch: ``[64, 64]``, ``dict(pi=[64, 64], vf=...)``, or that dict in a list as before SB3 1.8
    :raises ValueError: for sizes that are no whole numbers from 1 on
    """
    if isinstance(net_arch, list) and len(net_arch) == 1 and isinstance(net_arch[0], dict):
        warnings.warn(f"net_arch={net_arch} is SB3's form before version 1.8: pass {net_arch[0]}.", UserWarning, stacklevel=3)
        net_arch = net_arch[0]
    layers = net_arch.get("pi", []) if isinstance(net_arch, dict) else net_arch
    if not isinstance(layers, list | tuple) or not all(isinstance(n, int | np.integer) and n >= 1 for n in layers):
        raise ValueError(f"policy_kwargs: net_arch={net_arch!r} must be a list of layer sizes from 1 on, or a dict with 'pi'.")
    return [int(n) for n in layers]
