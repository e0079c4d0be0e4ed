"""Table of the study of the default group size, from its raw results.

usage: python -m scripts.studies.group_size      prints the table of docs/studies/group_size.md
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scripts.studies.common import records
from zoo.comparing.statistics import iqm

DATA = Path("docs/studies/data")
#: Files of the derived size, of groups of 8 without pairs (the former default), and of PPO.
SOURCES = {
    "grpo": ("study/grpo-defaults.jsonl", "group_size/grpo-defaults.jsonl", "group_size/grpo-own.jsonl"),
    "former": ("study/grpo-groups-of-8.jsonl",),
    "ppo": ("group_size/ppo-defaults.jsonl", "group_size/ppo-own.jsonl", "study/ppo-defaults.jsonl"),
}


def final_returns(kind: str, seeds: int) -> dict[str, list[float]]:
    """Mean return of each run's final evaluation, by env, of the first file that has the env.

    :param kind: key of :data:`SOURCES`
    :param seeds: seeds from 0 on that count
    """
    found: dict[str, list[float]] = {}
    for name in SOURCES[kind]:
        of_file: dict[str, list[float]] = {}
        for record in records.read(DATA / name):
            if record["spec"]["seed"] < seeds:
                of_file.setdefault(record["spec"]["env"], []).append(float(np.mean(record["final_returns"])))
        found = {**of_file, **found}
    return found


def interval(values: Sequence[float]) -> str:
    """IQM with its 95 % bootstrap interval, in words."""
    sample = np.asarray(values)
    if len(sample) < 3:
        return f"{sample.mean():.1f}"
    draws = np.random.default_rng(0).choice(sample, (4000, len(sample)))
    low, high = np.percentile(iqm([draws]), [2.5, 97.5])
    return f"{float(iqm([sample])):.1f} [{low:.1f}, {high:.1f}]"


def improvement(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Probability that one of our runs ends above one of theirs; a tie counts half."""
    a = np.asarray(ours)[:, None]
    b = np.asarray(theirs)[None, :]
    return float(np.mean((a > b) + 0.5 * (a == b)))


def table(seeds: int = 10) -> str:
    """Markdown table, a row per env."""
    grpo, former, ppo = (final_returns(kind, seeds) for kind in SOURCES)
    rows = ["| task | seeds | derived size | groups of 8 | PPO's defaults | P(improvement) | with groups of 8 |"]
    rows += ["|---|---|---|---|---|---|---|"]
    for env in sorted(set(grpo) & set(ppo)):
        before = former.get(env)
        eight = "-" if before is None else interval(before)
        chance = "-" if before is None else f"{improvement(before, ppo[env]):.2f}"
        rows.append(
            f"| `{env}` | {len(grpo[env])}, {len(ppo[env])} | {interval(grpo[env])} | {eight} | {interval(ppo[env])} | "
            f"{improvement(grpo[env], ppo[env]):.2f} | {chance} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
