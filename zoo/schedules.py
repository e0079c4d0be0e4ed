"""Schedules that a YAML or the command line can name: ``lin_3e-4``, ``cos_3e-4``, ``cos_3e-4_0.05``."""

from __future__ import annotations

from functools import partial

from rl_zoo3.utils import SimpleLinearSchedule
from stable_baselines3.common.type_aliases import Schedule

from sb_grpo.maths.schedules import SYNTAX, linear, named
from sb_grpo.plain import FORMS, attributes

from .common.plain_files import Hyperparams

FORMS["SimpleLinearSchedule"] = attributes(SimpleLinearSchedule, "initial_value")

__all__ = ["SCHEDULED", "SYNTAX", "make_schedule"]

#: Hyperparameters that may be a schedule.
SCHEDULED = ("learning_rate", "clip_range", "clip_range_vf", "delta_std")


def with_schedules(settings: Hyperparams) -> Hyperparams:
    """Settings in which the names of schedules have become functions, those within ``loss_kwargs`` too.

    :raises ValueError: for text that is none
    """
    made: Hyperparams = {k: make_schedule(v) if k in SCHEDULED and isinstance(v, str) else v for k, v in settings.items()}
    of_loss = made.get("loss_kwargs")
    if isinstance(of_loss, dict) and isinstance(high := of_loss.get("clip_range_high"), str):
        made["loss_kwargs"] = {**of_loss, "clip_range_high": make_schedule(high)}
    return made


def make_schedule(text: str) -> Schedule:
    """The function that a schedule's name stands for; linear ones are rl_zoo3's own.

    :raises ValueError: if the text is none
    """
    made = named(text)
    is_linear = isinstance(made, partial) and made.func is linear
    return SimpleLinearSchedule(made.keywords["initial"]) if is_linear else made  # type: ignore[attr-defined]
