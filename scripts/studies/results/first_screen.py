"""First screen of the results page: three learning curves, speed and memory, from committed raw files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from scripts.studies.common import records
from scripts.studies.group_size import interval
from zoo.comparing.statistics import iqm

NAME = "first_screen"


class Panel(NamedTuple):
    """One task, with the runs of both sides."""

    title: str
    env: str
    ours: tuple[str, str]  #: file below the data, and a name for the setting
    ppo: tuple[str, str]


PANELS = (
    Panel(
        "Ahead: noise that members share",
        "LoadBalancing-v0",
        ("paired/grpo-paired.jsonl", "entry, pairs"),
        ("paired/ppo-tuned.jsonl", "searched"),
    ),
    Panel(
        "Level: most tasks",
        "Hopper-v5",
        ("study/grpo-defaults.jsonl", "defaults"),
        ("study/ppo-defaults.jsonl", "SB3's defaults"),
    ),
    Panel(
        "Behind: a critic wins",
        "DisturbedPendulum-v0",
        ("paired/grpo-paired.jsonl", "entry, pairs"),
        ("paired/ppo-tuned.jsonl", "searched"),
    ),
)


def first_screen(data: Path, pictures: Path | None) -> list[str]:
    """Lines of the page; none where the raw files are not all there.

    :param data: docs/studies/data
    :param pictures: folder for the picture; None: it is not drawn
    """
    speed_file = data / "speed.json"
    files = [data / file for panel in PANELS for file, _ in (panel.ours, panel.ppo)]
    if not all(file.exists() for file in (*files, speed_file)):
        return []
    sides = [(panel, _runs(data / panel.ours[0], panel.env), _runs(data / panel.ppo[0], panel.env)) for panel in PANELS]
    if pictures is not None:
        _draw(sides, pictures / f"{NAME}.png")
    rows = [
        "| | task | GRPO: setting | members | mean return at the end | PPO: setting | mean return at the end | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for panel, ours, ppo in sides:
        sizes = ", ".join(str(size) for size in sorted({run["settings"]["group_size"] for run in ours}))
        rows.append(
            f"| {panel.title.partition(':')[0].lower()} | {panel.env} | {panel.ours[1]} | {sizes} | {_end(ours)} | "
            f"{panel.ppo[1]} | {_end(ppo)} | {len(ours)}, {len(ppo)} |"
        )
    return [
        "## At a glance",
        "",
        f"![Learning curves of GRPO and PPO on {', '.join(panel.env for panel in PANELS)}](img/results/{NAME}.png)",
        "",
        *rows,
        "",
        "Lines are interquartile means over seeds, bands the middle half of the seeds. The size of the",
        "groups is the [derived](group_size.md) one.",
        "",
        *_costs(json.loads(speed_file.read_text())),
        "",
    ]


def _runs(file: Path, env: str) -> list[dict[str, Any]]:
    return [run for run in records.read(file) if run["spec"]["env"] == env]


def _end(runs: Sequence[dict[str, Any]]) -> str:
    return interval([float(np.mean(run["final_returns"])) for run in runs])


def _costs(speed: dict[str, Any]) -> list[str]:
    """Speed and memory of scripts/bench_speed.py."""
    ratios = [f"{name}: {task['ratio']:.2f}" for name, task in speed["speed"].items()]
    shares = {row["case"]: row["grpo"]["update_bytes"] / row["ppo"]["update_bytes"] for row in speed["memory"]}
    memory = [f"{name}: {share:.2f}" for name, share in shares.items()]
    return [
        f"- **Speed**, in units of PPO's steps per second with the same updates: {'; '.join(ratios)}.",
        f"- **Memory** of an update, in units of PPO's: {'; '.join(memory)}.",
        "- More: [speed and memory](../performance.md), [published figures beside ours](published.md), "
        "[ten tasks with shared noise](paired.md), [sparse rewards](sparse.md).",
    ]


def _draw(sides: Sequence[tuple[Panel, list[dict[str, Any]], list[dict[str, Any]]]], file: Path) -> None:
    figure, all_axes = plt.subplots(1, len(sides), figsize=(11, 3.2), layout="constrained")
    for axes, (panel, ours, ppo) in zip(all_axes, sides, strict=True):
        lowest = np.inf
        for runs, name, colour in ((ours, "GRPO", "#0072B2"), (ppo, "PPO", "#D55E00")):
            steps = np.array([point["steps"] for point in runs[0]["checkpoints"]]) / 1000
            returns = np.array([[np.mean(point["returns"]) for point in run["checkpoints"]] for run in runs])
            lowest = min(lowest, float(np.percentile(returns[:, len(steps) // 5 :], 25, axis=0).min()))
            axes.plot(steps, iqm([returns.T]), color=colour, label=name)
            axes.fill_between(steps, *np.percentile(returns, [25, 75], axis=0), color=colour, alpha=0.2, linewidth=0)
        axes.set(title=f"{panel.title}\n{panel.env}", xlabel="env steps, thousands")
        axes.title.set_fontsize(10)
        axes.set_ylim(bottom=lowest - 0.05 * (axes.get_ylim()[1] - lowest))  # not the fall before learning
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("mean return")
    all_axes[0].legend(frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=90, metadata={"Software": None})
    plt.close(figure)
