"""The critic alone: PPO and GRPO with the same hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from scripts.studies.results.bar import BAR, CONTROL, TUNED
from scripts.studies.results.cells import aggregate_difference, iqm_text, verdict, with_interval
from scripts.studies.results.texts import text
from zoo.benchmarking.results import RANDOM, Run
from zoo.comparing import tables
from zoo.comparing.comparison import Comparison, compare_runs

#: GRPO's label, PPO's with the same settings, and their description.
PAIRS = (
    (TUNED, CONTROL, "the tuned entries of GRPO"),
    ("grpo-gamma-0.99", "ppo-defaults", "SB3's defaults for PPO, gamma 0.99 included"),
)


class Pair(NamedTuple):
    """GRPO and PPO with the same settings over the tasks that both ran."""

    label: str
    other: str
    what: str
    comparison: Comparison  # of the two, PPO as the baseline, on the scale of the bar
    difference: str  # of the aggregate IQMs
    improvement: str  # probability


def pairs(runs: Sequence[Run]) -> list[Pair]:
    """The pairs of :data:`PAIRS` that have runs.

    :param runs: of a study, those of the bar among them
    """
    references = compare_runs(runs, baseline=BAR).references
    there = []
    for label, other, what in PAIRS:
        both = {r.env for r in runs if r.label == label} & {r.env for r in runs if r.label == other}
        if both:
            these = [r for r in runs if r.env in both and (r.label in (label, other) or r.algo == RANDOM)]
            known = {env: references[env] for env in both if env in references}
            c = compare_runs(these, [label, other], other, references=known)
            improvement = with_interval(tables.improvement(c).iloc[0], "probability", digits=2)
            there.append(Pair(label, other, what, c, aggregate_difference(c, label, other), improvement))
    return there


def same_settings(found: Sequence[Pair]) -> list[str]:
    """The section: a table per pair.

    :param found: of :func:`pairs`
    """
    if not found:
        return []
    lines = ["## The same settings, with a critic and without", "", text("same"), ""]
    for pair in found:
        c = pair.comparison
        rows = [
            {
                "task": env,
                f"PPO ({pair.other})": iqm_text(c, env, pair.other),
                f"GRPO ({pair.label})": iqm_text(c, env, pair.label),
                "GRPO against PPO": verdict(c, env, pair.label, pair.other),
            }
            for env in c.envs
        ]
        lines += [f"Both with {pair.what}:", "", tables.to_markdown(pd.DataFrame(rows)), ""]
        lines += [
            f"Over these {len(c.envs)} tasks: aggregate IQM of GRPO less PPO's {pair.difference}, probability that a run of"
        ]
        lines += [f"GRPO is above one of PPO {pair.improvement}.", ""]
    return lines
