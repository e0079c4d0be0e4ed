"""Schedules, for example of the learning rate. Saved models name these functions, so they are part of the library."""

from __future__ import annotations

import math
from functools import partial

from stable_baselines3.common.type_aliases import Schedule

from sb_grpo.plain import FORMS, Form

SYNTAX = "a number, lin_3e-4 (linear to 0), cos_3e-4 or cos_3e-4_0.1 (cosine to 0 after warming up for that share of the run)"
WARM_UP = 0.1


def linear(progress_remaining: float, initial: float) -> float:
    """Fall from the initial value to 0.

    :param progress_remaining: 1 at the start of training, 0 at its end
    """
    return progress_remaining * initial


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


def scaled(progress_remaining: float, schedule: Schedule, factor: float) -> float:
    """Multiply another schedule by a factor.

    :param progress_remaining: 1 at the start of training, 0 at its end
    """
    return factor * schedule(progress_remaining)


def named(text: str) -> Schedule:
    """Parse the name of a schedule. The function can be pickled, so models with it can be saved.

    :param text: such as ``lin_3e-4`` or ``cos_3e-4_0.05``
    :raises ValueError: if the text is not a schedule
    """
    kind, *numbers = text.split("_")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    if kind == "lin" and len(values) == 1:
        return partial(linear, initial=values[0])
    if kind == "cos" and len(values) in (1, 2) and 0.0 <= (warm_up := [*values, WARM_UP][1]) < 1.0:
        return partial(warm_up_cosine, peak=values[0], warm_up=warm_up)
    raise ValueError(f"{text!r} is no schedule; there are {SYNTAX}")


FORMS["linear"] = Form(
    lambda value: isinstance(value, partial) and value.func is linear and not value.args,
    lambda value: dict(value.keywords),
    partial(partial, linear),
)
FORMS["warm_up_cosine"] = Form(
    lambda value: isinstance(value, partial) and value.func is warm_up_cosine and not value.args,
    lambda value: dict(value.keywords),
    partial(partial, warm_up_cosine),
)
