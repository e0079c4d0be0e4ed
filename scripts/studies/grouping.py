"""Groupings, group weights and gradient surgery on three small tasks that contradict each other.

usage: python -m scripts.studies.grouping run [--seeds 5]      one line per variant: the runs of all seeds
       python -m scripts.studies.grouping report               the table of docs/studies/grouping.md and its picture

An observation is a bit, the task and the share of the four steps that is over. Task "a" pays 1 for the action that equals
the bit, "b" 100 for the other one, "c" 10,000 for the one that equals it; of 100 episodes 5 are "a", 15 "b" and 80 "c".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo import GRPO
from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.random import mix_tensor, uniform
from scripts.studies.common import variant_files
from scripts.studies.common.runs import DATA, IMG

TASKS = ("a", "b", "c")
PAY = (1.0, 100.0, 10_000.0)
ODDS = (0.05, 0.20)
STEPS = 8_192
EVERY = 1024
FILE = DATA / "grouping.jsonl"
PICTURE = IMG / "grouping.png"
COMMON: dict[str, Any] = dict(
    **dict(n_steps=EVERY // 16, batch_size=256, n_epochs=10, learning_rate=3e-3, gamma=0.99),
    **dict(group_size=4, seed=0, device="cpu"),
)
VARIANTS: dict[str, dict[str, Any]] = {
    "seed, batch": {},
    "task": dict(grouping="task"),
    "hierarchical": dict(grouping="hierarchical"),
    "difficulty": dict(grouping="difficulty"),
    "auto": dict(grouping="auto"),
    "task, balanced": dict(grouping="task", weights="balanced"),
    "task, performance": dict(grouping="task", weights="performance"),
    "task, adaptive": dict(grouping="task", weights="adaptive"),
    "task, surgery": dict(grouping="task", surgery=True),
}
#: The variants in plain words, for the picture.
SHOWN = (
    *("grouped by start (default)", "grouped by task", "by start within a task", "by difficulty", "found by clustering"),
    *("by task, balanced weights", "by task, weights by score", "by task, adaptive weights", "by task, gradient surgery"),
)


class Contradiction(FunctionalTensorEnv):
    """State: the episode's seed, the step number, the task."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, spaces.Box(-1, 1, (5,), np.float32), spaces.Discrete(2), 4, dtype=th.float64)

    @property
    def tasks(self) -> th.Tensor:
        return self.state[:, 2].long()

    def initial_state(self, seeds: th.Tensor) -> th.Tensor:
        drawn = uniform(seeds, 1, th.float64)
        task = (drawn > th.tensor(ODDS)).double().sum(1, keepdim=True)
        return th.cat([seeds.double().unsqueeze(1), th.zeros_like(drawn), task], 1)

    def _bit(self, state: th.Tensor) -> th.Tensor:
        return (mix_tensor(state[:, 0].long(), state[:, 1].long(), 7) % 2 == 0).double()

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        task = state[:, 2].long()
        right = (actions == self._bit(state)) ^ (task == 1)
        after = state + th.tensor([0.0, 1.0, 0.0], dtype=state.dtype)
        return after, th.tensor(PAY)[task] * right, th.zeros_like(right)

    def observe(self, state: th.Tensor) -> th.Tensor:
        one_hot = th.nn.functional.one_hot(state[:, 2].long(), 3).double()
        return th.cat([2.0 * self._bit(state).unsqueeze(1) - 1.0, one_hot, state[:, 1:2] / 4.0], 1).float()


def p_right(model: GRPO) -> list[float]:
    """Probability of the right action by task, averaged over the two bits, at the first step."""
    result = []
    for task in range(3):
        one_hot = [float(task == k) for k in range(3)]
        obs = th.tensor([[-1.0, *one_hot, 0.0], [1.0, *one_hot, 0.0]])
        right = th.tensor([0, 1]) if task != 1 else th.tensor([1, 0])
        with th.no_grad():
            result.append(float(model.policy.log_prob(obs, right).exp().mean()))
    return result


def run(multitask: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train, and look every ``EVERY`` steps."""
    model = GRPO("MlpPolicy", Contradiction(16), multitask=dict(tasks=TASKS, **multitask), **{**COMMON, "seed": seed})
    curve = []
    conflicts = []
    for _ in range(STEPS // EVERY):
        model.learn(EVERY, reset_num_timesteps=model.num_timesteps == 0)
        curve.append(p_right(model))
        conflicts.append(model.gradient.metrics().get("train/conflict_rate"))
    return {"seed": seed, "p_right": curve, "conflict_rate": conflicts}


def report() -> None:
    """Table and picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    print("| variant | seeds | a | b | c | worst task | steps until the worst is 0.9 | conflict rate |")
    print(f"|{'---|' * 8}")
    figure, axes = plt.subplots(2, 5, figsize=(11, 4.6), sharex=True, sharey=True, layout="constrained")
    for name in VARIANTS:
        runs = variant_files.runs_of(FILE, name)
        p = np.array([r["p_right"] for r in runs])
        last = p[:, -1]
        worst = p.min(axis=2)
        reached = [int(np.argmax(w >= 0.9) + 1) * EVERY if (w >= 0.9).any() else None for w in worst]
        steps = [x for x in reached if x is not None]
        when = f"{np.mean(steps):,.0f} ({len(steps)} of {len(runs)} runs)" if steps else "never"
        rates = [x for r in runs for x in r["conflict_rate"] if x is not None]
        cells = [f"{m:.2f} ± {s:.2f}" for m, s in zip(last.mean(0), last.std(0), strict=True)]
        cells += [f"{worst[:, -1].mean():.2f} ± {worst[:, -1].std():.2f}", when, f"{np.mean(rates):.2f}" if rates else "-"]
        print(f"| {name} | {len(runs)} | {' | '.join(cells)} |")
        axis = axes.flat[list(VARIANTS).index(name)]
        labels = [f"task {task}: pays {pay:,.0f}" for task, pay in zip(TASKS, PAY, strict=True)]
        axis.axhline(0.5, color="grey", linestyle=":", linewidth=1, label="by chance")
        axis.plot(EVERY * np.arange(1, p.shape[1] + 1), p.mean(0), label=labels)
        axis.set_title(SHOWN[list(VARIANTS).index(name)], fontsize=9)
    axes[1, 4].axis("off")
    axes[0, 4].xaxis.set_tick_params(labelbottom=True)
    axes[0, 0].set(ylim=(0, 1.02), xlim=(0, STEPS), xticks=(0, 4000, 8000))
    axes[0, 0].xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k")
    figure.supylabel("probability of the right action", fontsize=10)
    figure.supxlabel("env steps", fontsize=10)
    axes[1, 4].legend(*axes[0, 0].get_legend_handles_labels(), fontsize=9, loc="center", frameon=False)
    figure.savefig(PICTURE, dpi=100)


if __name__ == "__main__":
    variant_files.main(__doc__, FILE, VARIANTS, COMMON, STEPS, run, report)
