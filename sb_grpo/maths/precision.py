"""Precision of the networks' arithmetic."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch as th


def autocasting(device: th.device, enabled: bool) -> AbstractContextManager[object]:
    """Autocast context of every forward pass that computes log-probabilities, so that ratios compare equal precisions.

    :param enabled: bfloat16; False: float32
    """
    if not enabled and not th.is_autocast_enabled(device.type):
        return nullcontext()
    return th.autocast(device.type, dtype=th.bfloat16, enabled=enabled)
