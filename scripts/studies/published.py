"""Published figures beside ours: the page docs/studies/published.md, from committed raw files.

usage: python -m scripts.studies.published      writes the page

Our runs: docs/studies/data. Published figures, copied by hand: docs/studies/data/published.jsonl.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.studies.common import records
from scripts.studies.group_size import interval

DATA = Path("docs/studies/data")
PAGE = Path("docs/studies/published.md")
#: Labels of our runs, in the order of the columns, with the files that have them.
OURS = {
    "state": ("study/grpo-state.jsonl", "paired_minigrid/grpo-state.jsonl", "untuned/grpo-defaults.jsonl"),
    "outcome": ("study/grpo-outcome.jsonl",),
    "ppo": ("study/ppo-tuned.jsonl",),
    "ppo-defaults": ("study/ppo-defaults.jsonl", "untuned/ppo-defaults.jsonl"),
}
SOURCES = {
    "Tianshou": "[Tianshou](https://github.com/thu-ml/tianshou/tree/master/examples/mujoco)",
    "SLM-Lab": "[SLM-Lab](https://github.com/kengz/SLM-Lab/blob/master/docs/BENCHMARKS.md)",
    "rl_zoo3": "[rl_zoo3](https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md)",
    "CleanRL": "[CleanRL](https://docs.cleanrl.dev/rl-algorithms/ppo/)",
}
HEAD = """# Published figures beside ours

Made by `python -m scripts.studies.published` from the files in [data](data); do not edit.

A row compares our runs with a table that somebody else has published. **No row is a fair comparison**: budgets, env versions,
numbers of seeds and the way to evaluate differ, and the row says how. They show whether our figures, and our PPO, are of the
size that is known.

- Ours: interquartile mean over seeds of 50 deterministic episodes with the last weights, with its 95 % interval; settings
  and seeds as in [results.md](results.md).
- Rows of Ant-v5 and MountainCar-v0 are the constructor's defaults, those of MiniGrid its entries, the others the tuned
  entries; nearly all of them with groups of 8 ([the default has changed](group_size.md)).
- Tianshou: the best evaluation on the way, mean over seeds. rl_zoo3: one run. SLM-Lab and CleanRL: means over seeds.
- MuJoCo's versions differ in observations, rewards or bodies; Gymnasium's documentation lists how.
"""
FREE = """## Without a critic

REINFORCE of Tianshou is the only table of a policy gradient without a critic that we know; ARS is random search on linear
policies. `"outcome"` is DeepSeekMath's GRPO. `"state"` has no critic network, but a value estimate by regression; REINFORCE
here has none, so compare `"outcome"` with it, too.
"""
CRITIC = """## PPO, and our PPO

Our PPO has rl_zoo3's settings ("tuned") and SB3's defaults.
"""


def runs_of(kind: str) -> dict[str, list[dict[str, Any]]]:
    """Runs of a label by env, of the first of its files that has the env.

    :param kind: key of :data:`OURS`
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for name in OURS[kind]:
        of_file: dict[str, list[dict[str, Any]]] = {}
        for record in records.read(DATA / name):
            of_file.setdefault(record["spec"]["env"], []).append(record)
        found = {**of_file, **found}
    return found


def cell(runs: Sequence[dict[str, Any]] | None) -> str:
    """Interquartile mean with interval, and number of seeds."""
    if not runs:
        return "-"
    finals = [float(np.mean(run["final_returns"])) for run in runs]
    if max(map(abs, finals)) <= 1:
        return f"{np.mean(finals):.3f} ({len(runs)})"
    return f"{interval(finals)} ({len(runs)})"


def count(n: int) -> str:
    """Number of env steps in words."""
    return f"{n / 1e6:g} M" if n >= 1_000_000 else f"{round(n / 1e3):g} k"


def table(published: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    """Markdown: a row per published figure.

    :param published: rows of published.jsonl
    :param columns: keys of :data:`OURS` -> heads
    """
    ours = {kind: runs_of(kind) for kind in columns}
    heads = ["task", *columns.values(), "our steps", "published", "steps", "times our steps", "seeds", "version", "source"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in published:
        env = row["env"]
        runs = next((ours[kind][env] for kind in columns if env in ours[kind]), None)
        if runs is None:
            continue
        steps = runs[0]["spec"]["steps"]
        version = "the same" if row["env_version"] == env else row["env_version"]
        cells = [env, *(cell(ours[kind].get(env)) for kind in columns), count(steps), f"{row['value']:,} ({row['algo']})"]
        cells += [count(row["steps"]), f"{row['steps'] / steps:.3g}", str(row["seeds"]), version, SOURCES[row["source"]]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    published = sorted(records.read(DATA / "published.jsonl"), key=lambda row: (row["algo"] == "ARS", row["env"]))
    free = [row for row in published if row["algo"] != "PPO"]
    critic = [row for row in published if row["algo"] == "PPO"]
    heads = {"state": 'ours, `"state"` (seeds)'}
    return "\n".join([
        HEAD, FREE, table(free, {**heads, "outcome": 'ours, `"outcome"`'}), "",
        CRITIC, table(critic, {**heads, "ppo": "our PPO, tuned", "ppo-defaults": "our PPO, defaults"}), "",
    ])  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page())
