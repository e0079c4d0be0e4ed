"""Learning check: five seeds of zoo.train on three tasks, compared with goals set before the runs.

usage: python -m scripts.studies.learning     the table of docs/studies/learning.md, which says how its runs are made
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from scripts.studies.common import records
from scripts.studies.common.runs import DATA

FOLDER = DATA / "core"


class Goal(NamedTuple):
    """Goal of a task."""

    budget: str  # of env steps
    least: int  # mean return of a run
    seeds: int  # that should reach it


GOALS = {"CartPole-v1": Goal("50k", 475, 5), "LunarLander-v3": Goal("400k", 200, 4), "Pendulum-v1": Goal("100k", -250, 4)}
HEADS = (
    "task",
    "env steps",
    "gradient steps (median)",
    "mean return of seeds 0 to 4",
    "wanted",
    "reached",
    "wall time (median; one to four other processes on the two cores)",
)


def table() -> str:
    """Markdown, a row per task."""
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    for env, goal in GOALS.items():
        runs = records.read(FOLDER / f"{env}.jsonl")
        returns = [run["mean_return"] for run in runs]
        steps, wall = (np.median([run[name] for run in runs]) for name in ("gradient_steps", "wall_time_s"))
        cells = [env, f"{runs[0]['env_steps']:,} (budget {goal.budget})", f"{steps:,.0f}"]
        cells += [", ".join(f"{x:.0f}" for x in returns), f">= {goal.least} on {goal.seeds} of {len(runs)}"]
        cells += [f"{sum(x >= goal.least for x in returns)} of {len(runs)}", f"{wall:.0f} s"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(table())
