"""Whom the page measures against whom: the bar, the tuned entries, the defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sb_grpo.config import steps_per_env
from zoo.benchmarking.results import Run
from zoo.common.command_line import BadInput
from zoo.comparing import statistics
from zoo.comparing.comparison import load

BAR = "ppo"  # per task the better of PPO's settings
BAR_SETTINGS = ("ppo-tuned", "ppo-defaults")
TUNED = "grpo-state"  # zoo/hyperparams/grpo.yml
DEFAULTS = "grpo-defaults"  # the constructor's defaults on all tasks
CONTROL = "ppo-grpo-settings"  # PPO with the tuned entries' settings
#: Labels of the defaults with another discount than they choose themselves.
DISCOUNTS = {"grpo-gamma-0.995": 0.995, "grpo-gamma-0.99": 0.99}


def measured(folder: Path) -> tuple[list[Run], dict[str, str], list[str]]:
    """Read the runs to show, including those of the bar.

    :param folder: of zoo.benchmark
    :return: runs; env -> label of the bar; messages about broken files
    :raises BadInput: without a bar
    """
    runs, broken = load([folder])
    runs, chosen = with_bar(runs)
    if not chosen:
        raise BadInput(f"{folder} holds no runs of {' or '.join(BAR_SETTINGS)}: there is nothing to measure against")
    return runs, chosen, broken


def with_bar(runs: Sequence[Run]) -> tuple[list[Run], dict[str, str]]:
    """Give the runs of PPO's better setting a second label, :data:`BAR`, on every task.

    :param runs: of a study
    :return: runs with those of the bar added, and env -> label that is the bar there
    """
    chosen = {}
    for env in sorted({r.env for r in runs}):
        scores = {label: [r.score for r in runs if (r.env, r.label) == (env, label)] for label in BAR_SETTINGS}
        there = {label: float(statistics.iqm([np.array(s)])) for label, s in scores.items() if s}
        if there:
            chosen[env] = max(there, key=lambda label: there[label])
    return [*runs, *(replace(r, label=BAR) for r in runs if chosen.get(r.env) == r.label)], chosen


def with_defaults(runs: Sequence[Run], entry: str = TUNED, defaults: str = DEFAULTS) -> list[Run]:
    """Give an entry's runs a second label, that of the defaults, where those have none and the entry changes nothing of them.

    :param runs: of a study
    :param entry: label of the entries
    :param defaults: label of the constructor's defaults
    :return: runs with those added
    """
    own = [r for r in runs if r.label == defaults]
    if not own:
        return list(runs)
    requested = {r.env for r in own}
    settings = effective(own[0].settings)
    entries = (r for r in runs if r.label == entry and r.env not in requested)
    return [*runs, *(replace(r, label=defaults) for r in entries if effective(r.settings) == settings)]


def effective(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of GRPO with the rollout as a number, and without VecNormalize's gamma where it leaves rewards alone."""
    normalize = settings.get("normalize") or {}
    if not normalize.get("norm_reward", True):
        normalize = {name: value for name, value in normalize.items() if name != "gamma"}
    n_steps = steps_per_env(settings.get("n_steps"), settings.get("n_envs", 1))
    return settings | {"n_steps": n_steps, "normalize": normalize}
