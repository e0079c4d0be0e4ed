"""Schedules that a YAML or the command line can name: ``lin_3e-4``, ``cos_3e-4``, ``cos_3e-4_0.05``.

Models that were saved before 0.2 name ``zoo.schedules.warm_up_cosine``, so that name stays here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from rl_zoo3.utils import SimpleLinearSchedule
from stable_baselines3.common.type_aliases import Schedule

from sb_grpo.maths.schedules import warm_up_cosine
from sb_grpo.plain import FORMS, attributes

FORMS["SimpleLinearSchedule"] = attributes(SimpleLinearSchedule, "initial_value")

__all__ = ["SCHEDULED", "SYNTAX", "make_schedule", "warm_up_cosine"]

#: Hyperparameters that may be a schedule.
SCHEDULED = ("learning_rate", "clip_range", "clip_range_vf", "delta_std")
SYNTAX = "a number, lin_3e-4 (linear to 0), cos_3e-4 or cos_3e-4_0.1 (cosine to 0 after warming up for that share of the run)"
WARM_UP = 0.1


def with_schedules(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in which the names of schedules have become functions, those within ``loss_kwargs`` too.

    :raises ValueError: for text that is none
    """
    made: dict[str, Any] = {k: make_schedule(v) if k in SCHEDULED and isinstance(v, str) else v for k, v in settings.items()}
    high = (made.get("loss_kwargs") or {}).get("clip_range_high")
    if isinstance(high, str):
        made["loss_kwargs"] = {**made["loss_kwargs"], "clip_range_high": make_schedule(high)}
    return made


def make_schedule(text: str) -> Schedule:
    """The function that a schedule's name stands for. It can be pickled, so that models with it can be saved.

    :raises ValueError: if the text is none
    """
    kind, *numbers = text.split("_")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    if kind == "lin" and len(values) == 1:
        return SimpleLinearSchedule(values[0])
    if kind == "cos" and len(values) in (1, 2) and 0.0 <= (warm_up := [*values, WARM_UP][1]) < 1.0:
        return partial(warm_up_cosine, peak=values[0], warm_up=warm_up)
    raise ValueError(f"{text!r} is no schedule; there are {SYNTAX}")
