"""The precision that networks run in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch as th


def autocasting(device: th.device, enabled: bool) -> AbstractContextManager[object]:
    """The context of every forward pass that makes log-probabilities: ratios compare like with like.

    :param enabled: bfloat16; False: float32
    """
    if not enabled and not th.is_autocast_enabled(device.type):
        return nullcontext()
    return th.autocast(device.type, dtype=th.bfloat16, enabled=enabled)
