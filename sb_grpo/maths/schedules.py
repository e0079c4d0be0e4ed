"""Schedules of the learning rate and the like. Saved models name these functions, so they live in the library."""

from __future__ import annotations

import math
from functools import partial

from sb_grpo.plain import FORMS, Form


def warm_up_cosine(progress_remaining: float, peak: float, warm_up: float) -> float:
    """Rise linearly from 0 to the peak, then fall to 0 along half a cosine.

    :param progress_remaining: 1 at the start of training, 0 at its end
    :param peak: the largest value
    :param warm_up: share of the training that the rise takes, in [0, 1)
    """
    done = 1.0 - progress_remaining
    if done < warm_up:
        return peak * done / warm_up
    return 0.5 * peak * (1.0 + math.cos(math.pi * (done - warm_up) / (1.0 - warm_up)))


FORMS["warm_up_cosine"] = Form(
    lambda value: isinstance(value, partial) and value.func is warm_up_cosine and not value.args,
    lambda value: dict(value.keywords),
    partial(partial, warm_up_cosine),
)
