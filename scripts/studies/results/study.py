"""The study itself: who is above whom, at what cost, by which runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from scripts.studies.results.bar import BAR, BAR_SETTINGS, DEFAULTS, TUNED, with_bar
from scripts.studies.results.cells import FULL, aggregate_difference, iqm_text, steps_text, verdict, with_interval
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
    """Where the tuned entry and the bar end at the same score, how many steps each takes to the threshold."""
    lines, table = [], tables.threshold(c)
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
    return ["## The protocol's seeds alone", "", ALONE, "", tables.to_markdown(table), ""]


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


PROTOCOL = """\
Every algorithm gets the same number of env steps, and every step counts. A run's score is the mean return of 50
deterministic episodes with its last weights (20 in most ablations), whose starts no training has seen and all algorithms
share. A cell is the interquartile mean over seeds with its 95 % bootstrap interval.

| label | what it is |
|---|---|
| `grpo-state` | "the tuned entry": GRPO with the settings of zoo/hyperparams/grpo.yml, `advantage="state"` |
| `grpo-defaults` | the constructor's defaults on all tasks, 8 envs, observations normalised; some entries are these |
| `grpo-gamma-0.99` | the same with PPO's usual discount in place of 0.995 |
| `grpo-step`, `-process`, `-outcome` | the tuned entry with another estimator; `outcome` is DeepSeekMath's |
| `ppo-tuned` | SB3's PPO with rl_zoo3's settings, which were tuned for longer trainings on most of these tasks |
| `ppo-defaults` | SB3's defaults with VecNormalize |
| `ppo` | "the bar": the better of these two, task by task |
| `ppo-grpo-settings` | the control: PPO with the tuned entries' settings |
| `a2c`, `trpo` | SB3's and sb3-contrib's, rl_zoo3's settings |"""
ALONE = f"""\
Tasks above with more than {FULL} seeds, by seeds 0 to {FULL - 1} alone. How far a row moves from one table to the other says
how much {FULL} seeds are worth on that task. Tasks with {FULL} seeds have not been looked at in this way."""
OVERALL = """\
Scores are normalised per task: 0 is a random policy, 1 the mean of the bar. PPO's own settings are measured like the rest:
each is the bar on some tasks. The bar's own IQM need not be 1, as its mean is; the difference is the fair number, and
its interval has the luck of both sides in it. Speed is the ratio of median training times of a run, geometric mean over the
tasks that both ran on one kind of processor. It is a rough one: machines of one kind differ, and two to five runs shared a
two-core machine (*Training time on one machine* has the fair one)."""
COST = """\
Medians over seeds. Gradient steps are calls of the optimiser, updates are SB3's count (epochs of PPO and GRPO, rollouts
of A2C and TRPO). Seconds are of training only, on the processor that most of the runs were made on. Machines of one name
differ, so two rows may differ in seconds for the same work. How many times faster than PPO a run is, is taken where both ran
on one kind of processor."""
