"""The file that the explorer reads: one rollout in columns. docs/recordings.md describes every field."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TypedDict

import torch as th

from sb_grpo import Rollout, files

from ..common.command_line import BadInput
from .episodes import packed

FORMAT = "sb_grpo.rollout"
VERSION = 1
#: Significant digits of rewards and values, and of values that are only drawn.
DIGITS = 6
DRAWN_DIGITS = 4
#: Components of an observation that are kept, at most.
MAX_COLUMNS = 24
#: Rounded; None: nan or inf.
Number = float | int | None


class Episodes(TypedDict):
    """Columns of the episodes."""

    group: list[int]
    task: list[int]
    length: list[int]
    terminated: list[int]
    final_value: list[Number]


class Steps(TypedDict):
    """Columns of the steps, episode after episode."""

    reward: list[Number]
    value: list[Number]
    ratio: list[Number]
    observation: list[list[Number]]
    action: list[list[Number]]
    score: list[list[Number]]


class Document(TypedDict):
    """Content of a recording."""

    format: str
    version: int
    env: str
    draw: str
    sb_grpo: str
    settings: dict[str, float]
    tasks: list[str]
    observation_names: list[str]
    episodes: Episodes
    steps: Steps
    conflicts: dict[str, list[str] | list[list[Number]]]
    weighting: dict[str, list[Number]] | None
    history: dict[str, list[int] | dict[str, list[Number]]]


def rounded(values: th.Tensor, digits: int = DIGITS) -> list[Number]:
    """Round a column to few digits; whole numbers lose their fraction, and nan or inf becomes None."""
    return [_short(x, digits) for x in values.tolist()]


def _short(x: float, digits: int) -> Number:
    if not math.isfinite(x):
        return None
    short = float(f"{x:.{digits}g}")
    return int(short) if short.is_integer() else short


def columns(values: th.Tensor, at_most: int = MAX_COLUMNS) -> list[list[Number]]:
    """``[M]`` or ``[M, k]`` as a list of columns."""
    table = values.unsqueeze(1) if values.ndim == 1 else values.flatten(1)
    return [rounded(column, DRAWN_DIGITS) for column in table[:, :at_most].unbind(1)]


def episodes_of(rollout: Rollout, final_values: th.Tensor) -> Episodes:
    """The columns of the episodes."""
    assert rollout.task is not None
    return {
        "group": rollout.group.tolist(),
        "task": rollout.task.tolist(),
        "length": th.bincount(rollout.episode).tolist(),
        "terminated": rollout.terminated.int().tolist(),
        "final_value": rounded(final_values),
    }


def write(document: Document, path: Path) -> None:
    """Save a recording."""
    files.write(path, json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")


def read(path: Path) -> Document:
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
