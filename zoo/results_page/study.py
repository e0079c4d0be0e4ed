"""The study itself: who is above whom, at what cost, by which runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from zoo.benchmarking.results import RANDOM, Run
from zoo.comparing import statistics, tables
from zoo.comparing.comparison import Comparison, compare_runs
from zoo.results_page.bar import BAR, BAR_SETTINGS, DEFAULTS, TUNED, with_bar
from zoo.results_page.cells import FULL, iqm_text, number, steps_text, verdict, with_interval


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


def overall(runs: Sequence[Run], label: str, speed: pd.DataFrame) -> str:
    """A Markdown line: a label against the bar over the tasks that both ran.

    :param speed: of all labels
    """
    c = compare_runs([r for r in runs if r.label in (label, BAR, RANDOM)], [label, BAR], BAR)
    if not c.common_envs:
        return f"| {label} | no task in common | | |"
    aggregate = tables.aggregate(c).set_index("algorithm").loc[label]
    improvement = tables.improvement(c).iloc[0]
    cells = [with_interval(aggregate, "iqm"), with_interval(improvement, "probability", digits=3)]
    all_tasks = [row for _, row in speed.iterrows() if (row["algorithm"], row["env"]) == (label, "all")]
    names = ("speedup", "cpu_speedup")
    cells += [with_interval(all_tasks[0], name) if all_tasks else "other processor" for name in names]
    return f"| {label} | {' | '.join(cells)} | {len(c.common_envs)} |"


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


def critic_wins(c: Comparison) -> list[str]:
    """The honest cases: a line per task where the tuned entry's IQM is below the bar."""
    lines = []
    for env in c.envs:
        if {(env, TUNED), (env, BAR)} <= set(c.runs):
            mine, bar = (float(statistics.iqm([c.scores(env, label)])) for label in (TUNED, BAR))
            if mine < bar:
                lines.append(f"- {env}: {number(mine)} against {number(bar)} ({verdict(c, env, TUNED)})")
    return lines or ["- None of the tasks that ran: no IQM of the tuned entry is below PPO's."]


def origins(runs: Sequence[Run]) -> list[str]:
    """Where the runs come from; versions and machines stand above the table where no two runs contradict each other."""
    table = tables.origins(runs)
    lines = []
    agreed = _agreed(table["versions"], table["runs"])
    if agreed is not None:
        lines.append(f"Versions: {agreed}. What a run does not name, scripts/constraints.txt of its commit pins.")
        table = table.drop(columns="versions")
    if table["machine"].nunique() == 1:
        lines.append(f"Machine: {table['machine'].iloc[0]}.")
        table = table.drop(columns="machine")
    return [*lines, "", tables.to_markdown(table)]


def _agreed(versions: Sequence[str], counts: Sequence[int]) -> str | None:
    """All that any run names, and how many name what not all do; None if two name different versions of a package.

    :param versions: "package version, package version, ..."
    :param counts: runs that name exactly these
    """
    named: Counter[str] = Counter()
    for words, count in zip(versions, counts, strict=True):
        named.update(dict.fromkeys(words.split(", "), count))
    if len({entry.split()[0] for entry in named}) < len(named):
        return None
    total = sum(counts)
    return ", ".join(entry if n == total else f"{entry} (named by {n:,} of {total:,} runs)" for entry, n in named.items())


PROTOCOL = """\
Every algorithm gets the same number of env steps, and every step counts. A run's score is the mean return of 50
deterministic episodes with its last weights, whose starts no training has seen and all algorithms share. A cell is the
interquartile mean over seeds with its 95 % bootstrap interval. PPO is SB3's, with rl_zoo3's tuned settings and with
SB3's defaults plus VecNormalize: per task the better one is the bar. GRPO's tuned entries stand in
zoo/hyperparams/grpo.yml and were chosen on seeds from 100 up; its defaults are one setting on all tasks: the
constructor's, 8 envs, observations normalised. An entry that changes nothing of them shows the same runs.
grpo-gamma-0.99 is the defaults with PPO's usual discount in place of 0.995."""
ALONE = f"""\
Tasks above with more than {FULL} seeds, by seeds 0 to {FULL - 1} alone. How far a row moves from one table to the other says
how much {FULL} seeds are worth on that task. Tasks with {FULL} seeds have not been looked at in this way."""
OVERALL = """\
Scores are normalised per task: 0 is a random policy, 1 the mean of the bar. PPO's own settings are measured like the rest:
each is the bar on some tasks. Speed is the ratio of median training times of a run, geometric mean over the tasks that both
ran on one kind of processor. It is a rough one: machines of one kind differ, and two to five runs shared a two-core machine.

| algorithm | aggregate IQM | P(improvement over PPO) | times faster, clock | times faster, processor | tasks |
|---|---|---|---|---|---|"""
COST = """\
Medians over seeds. Gradient steps are calls of the optimiser, updates are SB3's count (epochs of PPO and GRPO, rollouts
of A2C and TRPO). Seconds are of training only, on the processor that most of the runs were made on; the processor's are the
steadier ones. How many times faster than PPO a run is, is taken where both ran on one kind of processor."""
