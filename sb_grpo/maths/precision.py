"""The precision that networks run in."""

from __future__ import annotations

import torch as th


def autocasting(device: th.device, enabled: bool) -> th.autocast:
    """The context of every forward pass that makes log-probabilities: ratios compare like with like.

    :param enabled: bfloat16; False: float32
    """
    return th.autocast(device.type, dtype=th.bfloat16, enabled=enabled)
