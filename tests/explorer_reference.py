"""Advantages of a recording by sb_grpo's own functions, under the settings that the explorer offers."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch as th

from sb_grpo import AdvantageOptions, Rollout
from sb_grpo.baselines.paired import Pairing
from sb_grpo.extras.grouping import (
    ByFunction,
    ByQuantile,
    BySeed,
    ByTask,
    Grouping,
    Hierarchical,
    lengths,
    undiscounted_returns,
)
from sb_grpo.maths.estimators import centre_and_scale, outcome, process, step
from sb_grpo.maths.returns import residuals_of
from sb_grpo.types import select_episodes
from zoo.recording.document import rollout_of


def fifty_settings(n_tasks: int, seed: int) -> list[dict[str, Any]]:
    """Settings all over the page's controls."""
    draw = random.Random(seed)
    groupings = ["seed", "difficulty", "length", "labels"] + (["task", "hierarchical"] if n_tasks else [])
    names = itertools.cycle(itertools.product(["outcome", "process", "step", "state"], groupings))
    return [
        {
            "estimator": estimator,
            "grouping": "seed" if grouping == "labels" else grouping,
            "labels": "random" if grouping == "labels" else None,
            "n": draw.randint(2, 6),
            "baseline": draw.choice(["mean", "leave_one_out", "median", "global"]),
            "normalize": draw.choice(["group", "batch", "none"]),
            "ended": draw.choice(["zero", "drop"]),
            "paired": estimator == "state" and draw.random() < 0.6,
            "gamma": draw.choice([0.9, 0.99, 0.995, 1.0]),
            "lambda": draw.choice([0.0, 0.5, 0.95, 1.0]),
        }
        for estimator, grouping in itertools.islice(names, 50)
    ]


def grouping_of(settings: dict[str, Any], tasks: list[str]) -> Grouping:
    if settings["labels"] is not None:
        return ByFunction(lambda rollout: th.tensor(settings["labels"]))
    kind, n = settings["grouping"], settings["n"]
    return {
        "seed": BySeed,
        "task": lambda: ByTask(tuple(tasks)),
        "hierarchical": lambda: Hierarchical(tuple(tasks)),
        "difficulty": lambda: ByQuantile(undiscounted_returns, n),
        "length": lambda: ByQuantile(lengths, n),
    }[kind]()


def state(rollout: Rollout, values: th.Tensor, final: th.Tensor, options: AdvantageOptions, paired: bool) -> th.Tensor:
    """``advantage="state"`` under the values of the past, as in a rollout of more than ``fit_rows`` steps."""
    fold = th.zeros_like(rollout.group)
    residuals = residuals_of(rollout, options, values.unsqueeze(1), final.unsqueeze(1), fold)
    own = Pairing().double()(residuals, rollout) if paired else residuals.own
    return centre_and_scale(own, residuals.own + values, rollout, options)


def advantages(document: dict[str, Any], settings: dict[str, Any]) -> th.Tensor:
    """``[M]`` float64."""
    rollout, values, final = rollout_of(document)
    grouping = grouping_of(settings, document["tasks"])
    labels = grouping.labels(rollout)
    rollout = grouping.regroup(rollout, labels)
    options = AdvantageOptions(settings["gamma"], settings["lambda"], settings["normalize"])
    if settings["estimator"] != "state":
        of_returns = {
            "outcome": lambda: outcome(rollout, options, settings["baseline"]),
            "process": lambda: process(rollout, options, settings["baseline"]),
            "step": lambda: step(rollout, options, settings["baseline"], settings["ended"]),
        }
        found = of_returns[settings["estimator"]]()
    elif grouping.by_task:
        found = th.zeros_like(rollout.rewards)
        for task in th.unique(labels).tolist():  # a baseline per task
            part, rows = select_episodes(rollout, labels == task)
            found[rows] = state(part, values[rows], final[labels == task], options, settings["paired"])
    else:
        found = state(rollout, values, final, options, settings["paired"])
    return grouping.rescale(found, labels[rollout.episode])
