"""The study: comparisons of algorithms, their cost, and the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from scripts.studies.results.bar import BAR, BAR_SETTINGS, DEFAULTS, TUNED, with_bar
from scripts.studies.results.cells import FULL, aggregate_difference, iqm_text, steps_text, verdict, with_interval
from scripts.studies.results.texts import text
from zoo.benchmarking.results import RANDOM, Run
from zoo.comparing import tables
from zoo.comparing.comparison import Comparison, compare_runs


def main_table(c: Comparison, chosen: dict[str, str]) -> pd.DataFrame:
    """The question, task by task."""
    rows = []
    for env in c.envs:
        if (env, BAR) not in c.runs:
            continue
        row = {"task": env, "steps": steps_text(c, env)}
        row |= {f"PPO ({' or '.join(BAR_SETTINGS)})": f"{iqm_text(c, env, BAR)}, {chosen[env].removeprefix('ppo-')}"}
        row |= {"GRPO, tuned entry": iqm_text(c, env, TUNED), "against PPO": verdict(c, env, TUNED)}
        row |= {"GRPO, defaults": iqm_text(c, env, DEFAULTS), "defaults against PPO": verdict(c, env, DEFAULTS)}
        rows.append(row)
    return pd.DataFrame(rows)


def sooner(c: Comparison) -> list[str]:
    """Steps to the threshold on tasks where the tuned entry and the bar end at the same score."""
    lines = []
    table = tables.threshold(c)
    for env in [env for env in c.envs if env in c.thresholds and verdict(c, env, TUNED) == "equal"]:
        steps = table[table["env"] == env].set_index("algorithm")["median_steps"]
        there = [label for label in (TUNED, *BAR_SETTINGS) if label in steps]
        words = ", ".join(
            f"{label} " + (f"{steps[label]:,.0f}" if np.isfinite(steps[label]) else "not reached") for label in there
        )
        lines += [f"Both end equal on {env}; steps until {c.thresholds[env]:g}, median over seeds: {words}.", ""]
    return lines


def protocol_alone(runs: Sequence[Run]) -> list[str]:
    """The tasks where the bar or a setting of ours has more seeds than the protocol asks for, by those of the protocol alone.

    :param runs: of a study, those of the bar among them
    :return: lines; none if no task with a bar has more
    """
    seeds = range(FULL)
    more = {r.env for r in runs if r.label in (BAR, TUNED, DEFAULTS) and r.seed not in seeds}
    runs, chosen = with_bar([r for r in runs if r.env in more and r.seed in seeds and r.label != BAR])
    if not chosen:
        return []
    table = main_table(compare_runs(runs), chosen)
    return ["## The protocol's seeds alone", "", text("alone", seeds=FULL, last=FULL - 1), "", tables.to_markdown(table), ""]


def every_label(c: Comparison) -> pd.DataFrame:
    """IQM of everything that ran."""
    labels = [label for label in c.labels if label != BAR]
    return pd.DataFrame([{"task": env} | {label: iqm_text(c, env, label) for label in labels} for env in c.envs])


class Overall(NamedTuple):
    """A label against the bar over the tasks that both ran."""

    aggregate: str  # IQM of normalised scores
    bar: str  # the bar's own
    difference: str  # of the two
    improvement: str  # probability
    n_tasks: int


def overall(runs: Sequence[Run], label: str) -> Overall | None:
    """Aggregates of a label; None where it has no task with the bar.

    :param runs: of a study, those of the bar among them
    """
    these = [r for r in runs if r.label in (label, BAR, RANDOM)]
    c = compare_runs(these, [label, BAR], BAR) if label in {r.label for r in these} else None
    if c is None or not c.common_envs:
        return None
    aggregate = tables.aggregate(c).set_index("algorithm")
    improvement = with_interval(tables.improvement(c).iloc[0], "probability", digits=3)
    mine, bar = (with_interval(aggregate.loc[name], "iqm") for name in (label, BAR))
    return Overall(mine, bar, aggregate_difference(c, label, BAR), improvement, len(c.common_envs))


def overall_table(found: Mapping[str, Overall | None], speed: pd.DataFrame) -> pd.DataFrame:
    """All labels against the bar.

    :param found: label -> :func:`overall`
    :param speed: of all labels
    """
    rows = []
    for label, it in found.items():
        row = {"algorithm": label}
        if it is None:
            rows.append(row | {"tasks": "none in common"})
            continue
        row |= {"aggregate IQM": it.aggregate, "the bar's": it.bar, "difference": it.difference}
        row |= {"P(improvement over PPO)": it.improvement}
        everywhere = [times for _, times in speed.iterrows() if (times["algorithm"], times["env"]) == (label, "all")]
        for name, column in (("times faster, clock", "speedup"), ("times faster, processor", "cpu_speedup")):
            row[name] = with_interval(everywhere[0], column) if everywhere else "other processor"
        rows.append(row | {"tasks": str(it.n_tasks)})
    return pd.DataFrame(rows).fillna("")


def cost_table(c: Comparison, speed: pd.DataFrame) -> pd.DataFrame:
    """Steps, updates, parameters and seconds, and how many times faster than the bar.

    :param speed: of the same comparison
    """
    cost = tables.cost(c)
    cost = cost[cost["algorithm"] != BAR]
    ratio = {(row.env, row.algorithm): f"{row.cpu_speedup:.2f}" for row in speed.itertuples()}
    cells = zip(cost["env"], cost["algorithm"], strict=True)
    return pd.DataFrame(
        {
            "task": cost["env"],
            "algorithm": cost["algorithm"],
            "gradient_steps": cost["gradient_steps"].map("{:,.0f}".format),
            "n_updates": cost["updates"].map("{:,.0f}".format),
            "parameters": cost["parameters"].map("{:,}".format),
            "training, s": cost["train_wall_s"].map("{:.0f}".format),
            "processor, s": cost["train_cpu_s"].map("{:.0f}".format),
            "PPO's processor time / this": [ratio.get(cell, "other processor") for cell in cells],
        }
    )
