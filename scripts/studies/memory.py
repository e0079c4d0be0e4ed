"""Tasks that need a memory: GRPO with one and without, and sb3-contrib's RecurrentPPO, all with the same settings.

usage: python -m scripts.studies.memory [--report] [--seeds 0 1 ...]   train missing runs; write the table into the page

Two tasks are other packages': see ``scripts/studies/common/package_tasks.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule

import sb_grpo.tasks.memory  # noqa: F401  # registers the tasks
import scripts.studies.common.package_tasks  # noqa: F401  # registers the others
from sb_grpo import GRPO
from scripts.studies.common.compared import better, better_on_all, finals, markdown, middle, write
from scripts.studies.common.recurrent_ppo import WholeSequences
from scripts.studies.common.runs import Variant, main, results
from zoo.comparing.statistics import iqm


class Task(NamedTuple):
    """Task, number of steps, and settings that differ between tasks."""

    env_id: str
    steps: int
    ent_coef: float
    falling: bool = False  #: the learning rate, to 0 at the end


#: By the first part of a variant's label.
TASKS = {
    "CartPolePositions-v0": Task("CartPolePositions-v0", 100_000, 0.01),
    "PendulumPositions-v0": Task("PendulumPositions-v0", 100_000, 0.0),
    "TMaze10-v0": Task("TMaze10-v0", 100_000, 0.05),
    "TMaze10-v0_ent-0.1": Task("TMaze10-v0", 100_000, 0.1),
    "TMaze50-v0": Task("TMaze50-v0", 400_000, 0.05),
    "TMaze50-v0_falling": Task("TMaze50-v0", 400_000, 0.05, falling=True),
    "RepeatPrevious-v0": Task("RepeatPrevious-v0", 200_000, 0.01),
    "RepeatPrevious-v0_falling": Task("RepeatPrevious-v0", 200_000, 0.01, falling=True),
    "RepeatPrevious-v0_longer": Task("RepeatPrevious-v0", 400_000, 0.01),
    "RepeatPrevious-v0_longer-falling": Task("RepeatPrevious-v0", 400_000, 0.01, falling=True),
    "MemoryS7-v0": Task("MemoryS7-v0", 400_000, 0.01),
    "MemoryS7-v0_falling": Task("MemoryS7-v0", 400_000, 0.01, falling=True),
}
LEARNING_RATE = 1e-3
SETTINGS: dict[str, Any] = dict(n_steps=128, batch_size=256, n_epochs=5, gamma=0.99, device="cpu")
UNITS = 64
ALGORITHMS = {"lstm": 'GRPO, `memory="lstm"`', "none": "GRPO without memory", "recurrent-ppo": "RecurrentPPO"}
#: Members of a group share their start, and with it the cue that is to be remembered: every episode has one of its own.
GROUPS = dict(group_size=1)
#: GRPO with the default's groups, on this task alone.
EIGHT = "TMaze50-v0", f"{ALGORITHMS['lstm']}, `group_size=8`"
HEADS = [
    "task",
    "`ent_coef`",
    "`learning_rate`",
    "policy",
    "seeds",
    "IQM [95 %]",
    "lowest",
    "env steps",
    "gradient steps",
    "P(lstm better) [95 %]",
]


def _variant(label: str, name: str) -> Variant:
    task = TASKS[label]

    def make(seed: int) -> Any:
        rate = LinearSchedule(LEARNING_RATE, 0.0, 1.0) if task.falling else LEARNING_RATE
        settings = dict(SETTINGS, learning_rate=rate, ent_coef=task.ent_coef, seed=seed)
        env = make_vec_env(task.env_id, 16, seed=seed)
        if name == "recurrent-ppo":
            return RecurrentPPO(WholeSequences, env, policy_kwargs=dict(lstm_hidden_size=UNITS), **settings)
        memory = {} if name == "none" else dict(memory="lstm", memory_size=UNITS)
        return GRPO("MlpPolicy", env, policy_kwargs=memory, **settings | ({} if name == "groups" else GROUPS))

    return Variant(f"{label}_{name}", ALGORITHMS.get(name, EIGHT[1]), task.steps, make, task.env_id)


VARIANTS = [_variant(label, name) for label in TASKS for name in ALGORITHMS]
VARIANTS.insert(1 + [v.label for v in VARIANTS].index(f"{EIGHT[0]}_lstm"), _variant(EIGHT[0], "groups"))


def rate_of(task: Task) -> str:
    """The learning rate, in words."""
    return f"{LEARNING_RATE:g}" + " to 0" * task.falling


def table() -> str:
    """Returns of the last weights over the seeds, and how often a run of GRPO with memory is better."""
    found = results("memory", VARIANTS)
    rows = []
    for variant in VARIANTS:
        label, name = variant.label.rsplit("_", 1)
        runs = found.get(variant.label, [])
        task = TASKS[label]
        if runs:
            means = finals(runs)
            ours = finals(found.get(f"{label}_lstm", []))
            won = better(ours, means) if name != "lstm" and len(ours) else ""
            what = [task.env_id, f"{task.ent_coef:g}", rate_of(task), variant.setting, f"{len(means)}"]
            rows.append([*what, middle(means), f"{means.min():.2f}", f"{task.steps:,}", f"{runs[0]['gradient_steps']:,}", won])
    return markdown(HEADS, rows)


def best_of(found: dict[str, list[dict[str, Any]]], env_id: str, name: str) -> tuple[str, np.ndarray]:
    """The setting that an algorithm ends highest with, of those with the most env steps, and its returns ``[runs]``."""
    steps = max(task.steps for task in TASKS.values() if task.env_id == env_id)
    labels = [label for label, task in TASKS.items() if (task.env_id, task.steps) == (env_id, steps)]
    ends = {label: finals(found[f"{label}_{name}"]) for label in labels if f"{label}_{name}" in found}
    label = max(ends, key=lambda label: (float(iqm([ends[label]])), ends[label].mean()))
    return f"{TASKS[label].ent_coef:g}, {rate_of(TASKS[label])}", ends[label]


def best_table() -> str:
    """Each algorithm at the setting that suits it best: task by task, and all tasks together."""
    found = results("memory", VARIANTS)
    rows = []
    scores = []
    for env_id in dict.fromkeys(task.env_id for task in TASKS.values()):
        ours = best_of(found, env_id, "lstm")
        theirs = best_of(found, env_id, "recurrent-ppo")
        scores.append((ours[1], theirs[1]))
        cells = [f"{cell}" for setting, means in (ours, theirs) for cell in (setting, len(means), middle(means))]
        rows.append([env_id, *cells, better(*scores[-1])])
    rows.append(["all, each as much", *[""] * 6, better_on_all(*zip(*scores, strict=True))])
    heads = [f"{whose}: {what}" for whose in ("GRPO", "RecurrentPPO") for what in ("`ent_coef`, rate", "seeds", "IQM")]
    return markdown(["task", *heads, "P(GRPO better) [95 %]"], rows)


def draw() -> None:
    """No picture: the tables go into the page."""
    write("memory", table())
    write("memory at its best", best_table())


if __name__ == "__main__":
    main("memory", __doc__, VARIANTS, table, draw)
