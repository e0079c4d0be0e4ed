"""Advantages of a recording by sb_grpo's own functions, under the settings that the explorer offers."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import torch as th

from sb_grpo import AdvantageOptions, Rollout
from sb_grpo.baselines.paired import Pairing
from sb_grpo.extras.group_weights import GroupWeights, weights_by_label
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
from sb_grpo.maths.returns import Gae, residuals_of
from sb_grpo.maths.segments import segment_mean, segment_sum
from sb_grpo.types import select_episodes
from zoo.common.command_line import BadInput
from zoo.record import FORMAT, VERSION, Document, packed


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
            "weights": draw.choice(["none", "balanced", "performance", "adaptive"]),
            "temperature": draw.choice([0.1, 0.5, 2.0]),
            "floor": draw.choice([0.1, 0.3, 1.0]),
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
    residuals = residuals_of(Gae(rollout, options.gamma, options.gae_lambda), values.unsqueeze(1), final.unsqueeze(1), fold)
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


def weighting_of(document: dict[str, Any], settings: dict[str, Any], present: th.Tensor) -> GroupWeights | None:
    """The library's weighting as the page offers it; None where the kind makes no sense there."""
    by_task = settings["grouping"] in ("task", "hierarchical") and settings["labels"] is None
    memory = document.get("weighting") if by_task else None
    kind, lasting = settings["weights"], settings["grouping"] != "seed"
    if kind == "none" or (kind == "performance" and not lasting) or (kind == "adaptive" and memory is None):
        return None
    n = len(document["tasks"]) if by_task else len(present)
    weighting = GroupWeights(kind, n, settings["temperature"], None, settings["floor"]).double()
    if memory is not None:
        for name in ("fast", "slow", "spread", "seen"):
            buffer = getattr(weighting, name)
            buffer.copy_(th.tensor(memory[name], dtype=buffer.dtype))
    return weighting


def impact(document: dict[str, Any], settings: dict[str, Any], found: th.Tensor) -> list[th.Tensor]:
    """Wanted share of each label, weight of each row, and by label: share of the loss, of clipped steps, norm of the gradient.

    :param found: advantages ``[M]``
    """
    rollout, _, _ = rollout_of(document)
    returns = segment_sum(rollout.rewards, rollout.episode, len(rollout.group))
    rollout = rollout._replace(episode_return=returns)
    labels = grouping_of(settings, document["tasks"]).labels(rollout)
    present, place = th.unique(labels, return_inverse=True)
    row, n = place[rollout.episode], len(present)
    weighting = weighting_of(document, settings, present)
    if weighting is None:
        wanted, weights = th.bincount(row) / len(row), th.ones_like(found)
    else:
        by_task = weighting.n_labels == len(document["tasks"]) and settings["grouping"] in ("task", "hierarchical")
        last = labels if by_task else place
        shares, weights = weights_by_label(weighting, rollout, last, last[rollout.episode])
        wanted = shares[present] if by_task else shares
    size = segment_sum(found.abs() * weights, row, n)
    ratio, clip = th.tensor(document["steps"]["ratio"], dtype=th.float64), document["settings"]["clip_range"]
    clipped = ((found > 0) & (ratio > 1 + clip)) | ((found < 0) & (ratio < 1 - clip))
    scores = th.tensor(document["steps"]["score"], dtype=th.float64)
    parts = th.stack([segment_sum(score * found * weights, row, n) for score in scores]) / len(found)
    return [wanted, weights, size / size.sum().clamp(min=1e-300), segment_mean(clipped.double(), row, n), parts.norm(dim=0)]


def read_recording(path: Path) -> Document:
    """Load a recording.

    :raises BadInput: for another file, a truncated one, or another version
    """
    try:
        document: Document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is no whole JSON file ({error}): record it again with python -m zoo.record.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadInput(f"{path} is not a recording of python -m zoo.record.")
    if document.get("version") != VERSION:
        raise BadInput(f"{path} has version {document.get('version')} of the format, not {VERSION}: record it again.")
    lengths = document["episodes"]["length"]
    if len(document["steps"]["reward"]) != sum(lengths):
        raise BadInput(f"{path} holds {len(document['steps']['reward'])} steps of {sum(lengths)}: record it again.")
    return document


def rollout_of(document: Document, dtype: th.dtype = th.float64) -> tuple[Rollout, th.Tensor, th.Tensor]:
    """The rollout that a recording holds, its values ``[M]`` and the values after each episode's last step ``[E]``."""
    episodes = document["episodes"]
    steps = document["steps"]
    observations = th.tensor(steps["observation"], dtype=dtype).T
    rollout = packed(
        observations=observations,
        actions=th.tensor(steps["action"], dtype=dtype).T,
        rewards=th.tensor(steps["reward"], dtype=dtype),
        lengths=th.tensor(episodes["length"]),
        group=th.tensor(episodes["group"]),
        terminated=th.tensor(episodes["terminated"]).bool(),
        final_observations=th.zeros(len(episodes["length"]), observations.shape[1], dtype=dtype),
        task=th.tensor(episodes["task"]),
    )
    return rollout, th.tensor(steps["value"], dtype=dtype), th.tensor(episodes["final_value"], dtype=dtype)
