"""The env's own entry as a study's first trial: it is trained as it stands, and the space is widened to hold it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from stable_baselines3.common.utils import FloatSchedule

from sb_grpo import GRPO

from ..common.plain_files import Hyperparams
from ..tuning.search_space import ENTRY, GRPO_SPACE, NETS, rounded

#: User attribute of the trial whose settings are the entry's, whatever its parameters round them to.
AS_IT_STANDS = "entry"


def grpo_start(model: GRPO, base: Hyperparams) -> dict[str, object]:
    """The entry's own settings in the terms of the space.

    :param model: built with ``base``
    :param base: the env's entry
    """
    kind, *numbers = str(base.get("learning_rate", model.learning_rate)).split("_")
    low = FloatSchedule(model.clip_range)(1.0)
    high = model.options.loss.clip_range_high
    clip_high = low if high is None else FloatSchedule(high)(1.0)
    start = {name: getattr(model, name) for name in ("advantage", "group_size", "n_groups", "n_epochs", "normalize_advantage")}
    paired = getattr(model.options.estimator, "paired", None)
    return start | {
        "paired": None if paired is None else paired is not False,
        "log2_rollout": round(math.log2(model.steps_per_env * model.n_envs)),
        "log2_batch_size": round(math.log2(model.batch_size)),
        "learning_rate": float(numbers[0] if numbers else kind),
        "schedule": {"lin": "linear", "cos": "cosine"}.get(kind, "constant"),
        "one_minus_gamma": rounded(1.0 - model.gamma),
        "one_minus_lambda": rounded(1.0 - model.gae_lambda),
        "ent_coef": max(model.ent_coef, 1e-6),
        "clip_range": low,
        "clip_range_extra": rounded(clip_high - low),
        "net": next((name for name, sizes in NETS.items() if sizes == model.policy.net_arch), ENTRY),
    }


def widened(
    start: Mapping[str, object], space: dict[str, BaseDistribution] | None = None
) -> tuple[dict[str, BaseDistribution], dict[str, object], list[str]]:
    """Widen a space to contain a start, and express the start in it.

    :param start: value by name
    :param space: to widen; None: that of GRPO
    :return: the space; the start without values outside the space; one line per widened or omitted value
    """
    space = dict(GRPO_SPACE if space is None else space)
    said = []
    kept: dict[str, object] = {}
    for name, value in start.items():
        if value is None:  # not in use
            continue
        among = space[name]
        wider = _holding(among, value)
        if wider is None:
            said.append(f"{name} {value} is none that can be searched: the first trial alone has it")
            continue
        if wider != among:
            said.append(f"{name} widened to {value}")
        space[name] = wider
        kept[name] = _nearest(wider, value)
    return space, kept, said


def _holding(among: BaseDistribution, value: object) -> BaseDistribution | None:
    """The distribution, as much wider as the value asks; None where no distribution of its kind holds it."""
    if isinstance(among, CategoricalDistribution):
        if not isinstance(value, bool | int | float | str):
            return None
        return among if value in among.choices else CategoricalDistribution((*among.choices, value))
    assert isinstance(value, int | float)
    if isinstance(among, IntDistribution):
        return IntDistribution(min(among.low, int(value)), max(among.high, int(value)))
    assert isinstance(among, FloatDistribution)
    if not math.isfinite(value) or (among.log and value <= 0.0):
        return None
    low = min(among.low, value)
    high = max(among.high, value)
    if among.step is not None:  # by whole steps
        low = among.low - math.ceil(round((among.low - low) / among.step, 6)) * among.step
        high = among.high + math.ceil(round((high - among.high) / among.step, 6)) * among.step
    return FloatDistribution(rounded(low), rounded(high), log=among.log, step=among.step)


def _nearest(among: BaseDistribution, value: object) -> object:
    """The value, on the grid if there is one."""
    if isinstance(among, FloatDistribution) and among.step is not None and isinstance(value, int | float):
        return rounded(among.low + round((value - among.low) / among.step) * among.step)
    return value
