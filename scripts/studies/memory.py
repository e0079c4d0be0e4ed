"""Tasks that want a memory: GRPO with one and without, and sb3-contrib's RecurrentPPO, all with the same settings.

usage: python -m scripts.studies.memory [--report] [--seeds 0 1 ...]     train what is missing; print the table
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env

import sb_grpo.envs.memory  # noqa: F401  # registers the tasks
from sb_grpo import GRPO
from scripts.studies.common.runs import Variant, main, results
from zoo.comparing.statistics import probability_of_improvement

#: Env steps and entropy bonus by task.
TASKS = {
    "CartPolePositions-v0": (100_000, 0.01),
    "PendulumPositions-v0": (100_000, 0.0),
    "TMaze10-v0": (100_000, 0.05),
    "TMaze50-v0": (200_000, 0.05),
}
SETTINGS: dict[str, Any] = dict(learning_rate=1e-3, n_steps=128, batch_size=256, n_epochs=5, gamma=0.99, device="cpu")
UNITS = 64
ALGORITHMS = {"lstm": 'GRPO, `memory="lstm"`', "none": "GRPO without memory", "recurrent-ppo": "RecurrentPPO"}


def _variant(task: str, name: str) -> Variant:
    steps, ent_coef = TASKS[task]

    def make(seed: int) -> Any:
        env = make_vec_env(task, 16, seed=seed)
        if name == "recurrent-ppo":
            kwargs = dict(lstm_hidden_size=UNITS)
            return RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=kwargs, seed=seed, ent_coef=ent_coef, **SETTINGS)
        memory = {"lstm": dict(memory="lstm", memory_size=UNITS), "none": {}}[name]
        return GRPO("MlpPolicy", env, policy_kwargs=memory, seed=seed, ent_coef=ent_coef, **SETTINGS)

    return Variant(f"{task}_{name}", ALGORITHMS[name], steps, make, task)


VARIANTS = [_variant(task, name) for task in TASKS for name in ALGORITHMS]


def table() -> str:
    """Mean return of the last weights over the seeds, lowest seed, and how often a run of GRPO with memory is better."""
    found = results("memory", VARIANTS)
    lines = ["| task | env steps | policy | seeds | mean return | lowest | gradient steps | seconds | P(lstm better) |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for task, (steps, _) in TASKS.items():
        ours = _means(found.get(f"{task}_lstm", []))
        for name, label in ALGORITHMS.items():
            runs = found.get(f"{task}_{name}", [])
            if not runs:
                continue
            means = _means(runs)
            seconds = np.median([run["wall_time_s"] for run in runs])
            better = "" if name == "lstm" or not len(ours) else f"{float(probability_of_improvement([ours], [means])):.2f}"
            lines.append(
                f"| {task} | {steps:,} | {label} | {len(means)} | {means.mean():.2f} | {means.min():.2f} | "
                f"{runs[0]['gradient_steps']:,} | {seconds:.0f} | {better} |"
            )
    return "\n".join(lines)


def _means(runs: list[dict[str, Any]]) -> np.ndarray:
    return np.array([np.mean(run["final_returns"]) for run in runs])


def draw() -> None:
    """No picture."""


if __name__ == "__main__":
    main("memory", __doc__, VARIANTS, table, draw)
