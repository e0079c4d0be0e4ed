"""Model card of a finished run: a ``README.md`` with description, results and the command to reproduce it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import yaml

from sb_grpo import files

from ..common.command_line import call, how_many

#: Entries of ``metrics.json`` that stand elsewhere in the card, or are too many for a table.
LONG = ("final_returns", "settings", "versions")


class Metrics(TypedDict, total=False):
    """Content of ``metrics.json``, with null for numbers that are not finite."""

    algo: str
    env: str
    seed: int
    env_steps: int
    planned_steps: int
    gradient_steps: int | None
    wall_time_s: float
    final_returns: Sequence[float | None]
    settings: dict[str, object]
    mean_return: float | None
    std_return: float | None
    commit: str | None
    versions: dict[str, str]


def write_card(folder: Path) -> Path:
    """Write the model card from the files in the run's folder.

    :param folder: with ``metrics.json``, ``<env>/config.yml`` and optionally ``learning_curve.png``
    :return: its path
    """
    metrics: Metrics = json.loads((folder / "metrics.json").read_text())
    return files.write(folder / "README.md", f"---\n{_metadata(metrics)}---\n\n{_text(folder, metrics)}")


def _metadata(metrics: Metrics) -> str:
    """The head that the Hugging Face Hub reads."""
    value = f"{_number(metrics['mean_return'], 2)} +/- {_number(metrics['std_return'], 2)}"
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": metrics["env"], "type": metrics["env"]},
        "metrics": [{"type": "mean_reward", "value": value, "name": "mean_reward", "verified": False}],
    }
    head = {
        "library_name": "stable-baselines3",
        "tags": [metrics["env"], metrics["algo"], "reinforcement-learning", "stable-baselines3", "sb_grpo"],
        "model-index": [{"name": metrics["algo"].upper(), "results": [result]}],
    }
    return yaml.safe_dump(head, sort_keys=False)


def _text(folder: Path, metrics: Metrics) -> str:
    algo = metrics["algo"]
    env = metrics["env"]
    returns = [value for value in metrics["final_returns"] if value is not None]
    (config,) = folder.glob("*/config.yml")
    command = _command()
    stopped = metrics["env_steps"] < metrics["planned_steps"]
    lines = [
        f"# {algo.upper()} on {env}",
        "",
        f"Mean return over {how_many(len(metrics['final_returns']), 'episode')} after training: "
        f"**{_number(metrics['mean_return'])} +- {_number(metrics['std_return'])}** "
        f"(worst {_number(min(returns, default=None))}, best {_number(max(returns, default=None))}), seed {metrics['seed']}."
        + (f" The run was stopped after {metrics['env_steps']:,} of {metrics['planned_steps']:,} steps." if stopped else ""),
        "",
        *(["![learning curve](learning_curve.png)", ""] if (folder / "learning_curve.png").exists() else []),
        *(["Trained with:", "", f"```bash\n{command}\n```", ""] if command else []),
        "To watch it, with the run's folder below `logs`:",
        "",
        f"```bash\n{call('enjoy')} --algo {algo} --env {env}\n```",
        "",
        "## Figures",
        "",
        "| figure | value |",
        "|---|---|",
        *(f"| {name.replace('_', ' ')} | {_cell(value)} |" for name, value in metrics.items() if name not in LONG),
        "",
        "## Settings",
        "",
        f"```yaml\n{config.read_text().strip()}\n```",
        "",
        "## Versions",
        "",
        ", ".join(f"{name} {number}" for name, number in metrics["versions"].items()) + ".",
    ]
    return "\n".join(lines) + "\n"


def _command() -> str | None:
    """Command line of the user; None if the run was started from Python."""
    return f"{sys.argv[0]} {shlex.join(sys.argv[1:])}" if sys.argv[0] == call("train") else None


def _number(value: float | None, digits: int = 1) -> str:
    return "not a number" if value is None else f"{value:.{digits}f}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "unknown" if value is None else str(value)
