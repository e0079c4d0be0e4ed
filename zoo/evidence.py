"""The results page: GRPO against PPO with its critic, and the ablations, from raw result files.

``python -m zoo.evidence docs/data/study --timings docs/data/timings --untuned docs/data/untuned
--ablations docs/data/ablations --out docs/results.md``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sb_grpo.grpo import steps_per_env
from zoo import figures, statistics, tables
from zoo.command_line import BadInput, Parser, run
from zoo.comparison import Comparison, compare_runs, load
from zoo.results import RANDOM, Run
from zoo.yaml_files import read_sections

BAR = "ppo"  # per task the better of PPO's settings
BAR_SETTINGS = ("ppo-tuned", "ppo-defaults")
TUNED, DEFAULTS = "grpo-state", "grpo-defaults"  # zoo/hyperparams/grpo.yml, and the constructor's defaults on all tasks
LONG = "grpo-gamma-0.995"  # the defaults, without the smaller discount that short episodes have
PICTURES = ("learning_curves", "aggregates", "performance_profile", "probability_of_improvement")
FULL = 10  # seeds that the protocol asks for


def parser() -> Parser:
    """The command line."""
    it = Parser("zoo.evidence", "Write the results page: GRPO against PPO with its critic, and the ablations.")
    add = it.add_argument
    add("folder", type=Path, help="output of zoo.benchmark with the labels of zoo/variants/critic_free.yml")
    add("--timings", type=Path, metavar="FOLDER", help="more output of it: PPO and the tuned entries in turn on one machine")
    add("--untuned", type=Path, metavar="FOLDER", help="more output of it: both defaults on other tasks")
    add("--ablations", type=Path, metavar="FOLDER", help="ablations.yml and one folder of zoo.benchmark for each entry")
    add("--out", type=Path, default=Path("docs/results.md"), metavar="FILE", help="the page; pictures: img/results beside it")
    return it


def measured(folder: Path) -> tuple[list[Run], dict[str, str], list[str]]:
    """Runs to show, those of the bar among them.

    :param folder: of zoo.benchmark
    :return: runs; env -> label that is the bar there; what was left out because it is broken
    :raises BadInput: if there is no bar
    """
    runs, broken = load([folder])
    runs, chosen = with_bar(runs)
    if not chosen:
        raise BadInput(f"{folder} holds no runs of {' or '.join(BAR_SETTINGS)}: there is nothing to measure against")
    return runs, chosen, broken


def with_bar(runs: Sequence[Run]) -> tuple[list[Run], dict[str, str]]:
    """Give the runs of PPO's better setting a second label, :data:`BAR`, on every task.

    :param runs: of a study
    :return: runs with those of the bar added, and env -> label that is the bar there
    """
    chosen = {}
    for env in sorted({r.env for r in runs}):
        scores = {label: [r.score for r in runs if (r.env, r.label) == (env, label)] for label in BAR_SETTINGS}
        there = {label: float(statistics.iqm([np.array(s)])) for label, s in scores.items() if s}
        if there:
            chosen[env] = max(there, key=lambda label: there[label])
    return [*runs, *(replace(r, label=BAR) for r in runs if chosen.get(r.env) == r.label)], chosen


def with_defaults(runs: Sequence[Run]) -> list[Run]:
    """Give a tuned entry's runs a second label, :data:`DEFAULTS`, where that has none and the entry changes nothing of it.

    :param runs: of a study
    :return: runs with those added
    """
    own = [r for r in runs if r.label == DEFAULTS]
    if not own:
        return list(runs)
    asked, defaults = {r.env for r in own}, effective(own[0].settings)
    entries = (r for r in runs if r.label == TUNED and r.env not in asked)
    return [*runs, *(replace(r, label=DEFAULTS) for r in entries if effective(r.settings) == defaults)]


def effective(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of GRPO with the rollout as a number, and without VecNormalize's gamma where it leaves rewards alone."""
    normalize = settings.get("normalize") or {}
    if not normalize.get("norm_reward", True):
        normalize = {name: value for name, value in normalize.items() if name != "gamma"}
    n_steps = steps_per_env(settings.get("n_steps"), settings.get("n_envs", 1))
    return settings | {"n_steps": n_steps, "normalize": normalize}


def steps_text(c: Comparison, env: str) -> str:
    """The budget of env steps, which all runs on an env share."""
    return f"{c.runs[env, c.on(env)[0]][0].steps:,}"


def left_out(broken: Sequence[str]) -> list[str]:
    """A line per result file that could not be read."""
    return [f"- left out, broken: {line}" for line in broken]


def iqm_text(c: Comparison, env: str, label: str) -> str:
    """Of the final scores of an algorithm, if it ran."""
    return iqm_with_interval(c.scores(env, label)) if (env, label) in c.runs else "not run"


def iqm_with_interval(scores: np.ndarray) -> str:
    """``IQM [low, high]`` of ``[runs]``, and the number of seeds where it is not the protocol's."""
    value = number(float(statistics.iqm([scores])))
    if len(scores) == 1:
        return f"{value} (1 seed)"
    low, high = statistics.interval(statistics.iqm, [scores])
    return f"{value} [{number(float(low))}, {number(float(high))}]" + (
        "" if len(scores) == FULL else f" ({len(scores)} seeds)"
    )


def number(x: float) -> str:
    """A return: whole above 1000, else one decimal."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.1f}"


def verdict(c: Comparison, env: str, label: str) -> str:
    """What the bootstrap interval of the difference of IQMs says."""
    if (env, label) not in c.runs or (env, BAR) not in c.runs:
        return "-"
    x, y = c.scores(env, label), c.scores(env, BAR)
    difference = float(statistics.iqm([x]) - statistics.iqm([y]))
    if difference == 0.0:
        return "equal"
    side = "above" if difference > 0 else "below"
    if min(len(x), len(y)) == 1:
        return f"{side}, too few seeds"
    low, high = statistics.interval(lambda a, b: statistics.iqm(a) - statistics.iqm(b), [x], [y])
    return f"**{side}, interval too**" if float(low) > 0 or float(high) < 0 else f"{side}, not distinguishable"


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


def with_interval(row: pd.Series, name: str, digits: int = 2) -> str:
    """``value [low, high]`` of a table's row; without an interval where a task has one seed."""
    value, low, high = (row[column] for column in (name, f"{name}_low", f"{name}_high"))
    return f"{value:.{digits}f} " + ("(no interval)" if np.isnan(low) else f"[{low:.{digits}f}, {high:.{digits}f}]")


def critic_wins(c: Comparison) -> list[str]:
    """The honest cases: a line per task where the tuned entry's IQM is below the bar."""
    lines = []
    for env in c.envs:
        if {(env, TUNED), (env, BAR)} <= set(c.runs):
            mine, bar = (float(statistics.iqm([c.scores(env, label)])) for label in (TUNED, BAR))
            if mine < bar:
                lines.append(f"- {env}: {number(mine)} against {number(bar)} ({verdict(c, env, TUNED)})")
    return lines or ["- None of the tasks that ran: no IQM of the tuned entry is below PPO's."]


def ablation(entry: dict[str, Any]) -> tuple[list[str], list[Run]]:
    """One ablation: per label and task the IQM of the final scores, and of the mean over the checkpoints (speed of learning).

    :param entry: of ``ablations.yml``: ``folder`` (output of zoo.benchmark), ``title``, ``question``, ``finding`` (what its
        numbers say, written by whoever looked at them) and, if not all of them in the order of their names, ``labels``
    :return: lines, and the runs they are about
    """
    runs, broken = load([entry["folder"]])
    c = compare_runs(runs, entry.get("labels", ()))
    budgets = ", ".join(f"{env} {steps_text(c, env)}" for env in c.envs)
    seeds = sorted({r.seed for r in runs})
    rows = []
    for label in c.labels:
        there = [env for env in c.envs if (env, label) in c.runs]
        steps = [f"{np.median([r.gradient_steps for r in c.runs[env, label]]):,.0f}" for env in there]
        row = {"setting": label}
        for env in c.envs:
            row[f"{env}, end"] = iqm_text(c, env, label)
            row[f"{env}, on the way"] = iqm_with_interval(c.curves(env, label)[:, 1:].mean(1)) if env in there else "not run"
        rows.append(row | {"gradient steps": " / ".join(steps)})
    lines = [f"### {entry['title']}", "", f"{entry['question']} Env steps: {budgets}; seeds {seeds[0]} to {seeds[-1]}.", ""]
    lines += [tables.to_markdown(pd.DataFrame(rows)), ""]
    return [*lines, *left_out(broken), entry["finding"], ""], runs


def origins(runs: Sequence[Run]) -> list[str]:
    """Where the runs come from; versions and machines stand above the table where all runs share them."""
    table = tables.origins(runs)
    shared = [name for name in ("versions", "machine") if table[name].nunique() == 1]
    lines = [f"{name.capitalize()}: {table[name].iloc[0]}." for name in shared]
    return [*lines, "", tables.to_markdown(table.drop(columns=shared))]


def read_ablations(folder: Path | None) -> list[dict[str, Any]]:
    """The entries of ``ablations.yml`` whose runs exist.

    :param folder: holds it; None: no ablations
    :raises BadInput: if it cannot be read
    """
    if folder is None:
        return []
    entries = read_sections(folder / "ablations.yml", "groups: {section: Ablations, title: Groups, labels: [defaults]}")
    return [{"folder": folder / name, **entry} for name, entry in entries.items() if (folder / name).exists()]


def timing(folder: Path, pictures: Path) -> tuple[list[str], list[Run]]:
    """Seconds per run of the bar and the tuned entry, and how many times fewer the entry takes.

    :param folder: of runs of both that were made in turn on one machine
    :param pictures: folder for the picture
    :return: lines, and the runs they are about
    """
    runs, chosen, broken = measured(folder)
    c = compare_runs(runs, [TUNED, BAR], BAR)
    cost = tables.cost(c)
    seconds = cost.set_index(["env", "algorithm"])["train_wall_s"].map("{:.1f}".format)
    rows = []
    for _, row in tables.speed(c).iterrows():
        env = row["env"]
        cells = {"task": "all, geometric mean", "steps": "", "PPO": "", "PPO, s": "", "GRPO, s": ""}
        if env != "all":
            cells |= {"task": env, "steps": steps_text(c, env), "PPO": chosen[env].removeprefix("ppo-")}
            cells |= {"PPO, s": seconds[env, BAR], "GRPO, s": seconds[env, TUNED]}
        cells["times faster, clock"] = with_interval(row, "speedup")
        rows.append(cells | {"times faster, processor": with_interval(row, "cpu_speedup")})
    drawn = figures.write({"cost": cost}, [TUNED, DEFAULTS, BAR], pictures, ["training_time"])
    lines = ["## Training time on one machine", "", TIMINGS, "", tables.to_markdown(pd.DataFrame(rows)), ""]
    return [*lines, *left_out(broken), *shown_pictures(drawn)], runs


def defaults_elsewhere(folder: Path) -> tuple[list[str], list[Run]]:
    """The defaults of both, task by task, on tasks outside the study.

    :param folder: of runs of both, and of :data:`LONG` where the default discount is smaller
    :return: lines, and the runs they are about
    """
    runs, _, broken = measured(folder)
    known = {run.label for run in runs}
    c = compare_runs(runs, [label for label in (DEFAULTS, LONG, BAR) if label in known], BAR)
    times = tables.speed(c).query("algorithm == @DEFAULTS")
    faster = {row["env"]: with_interval(row, "cpu_speedup") for _, row in times.iterrows()}
    rows = []
    for env in [env for env in c.envs if {DEFAULTS, BAR} <= {*c.on(env)}]:
        row = {"task": env, "steps": steps_text(c, env), "PPO, defaults": iqm_text(c, env, BAR)}
        row |= {"GRPO, defaults": iqm_text(c, env, DEFAULTS), "against PPO": verdict(c, env, DEFAULTS)}
        if LONG in known:
            row |= {"GRPO, gamma 0.995": iqm_text(c, env, LONG) if LONG in c.on(env) else "as the defaults"}
        rows.append(row | {"times faster, processor": faster.get(env, "other processor")})
    lines = ["## Other tasks, with the defaults", "", UNTUNED, "", tables.to_markdown(pd.DataFrame(rows)), ""]
    return [*lines, *left_out(broken)], runs


def shown_pictures(names: Sequence[str]) -> list[str]:
    """Markdown of pictures that were written.

    :param names: of ``figures.ALL``
    """
    return [f"![{name.replace('_', ' ')}](img/results/{name}.png)\n" for name in names]


def page(folder: Path, timings: Path | None, untuned: Path | None, ablations: Path | None, out: Path, command: str) -> str:
    """The whole page; pictures are written on the way.

    :param folder: of the study
    :param timings: of runs of the bar and the tuned entries that were made in turn on one machine
    :param untuned: of runs of both defaults on other tasks
    :param ablations: of the ablations
    :param out: of the page
    :param command: that makes it
    """
    runs, chosen, broken = measured(folder)
    runs = with_defaults(runs)
    known = {run.label for run in runs}
    estimators = ["grpo-step", "grpo-process", "grpo-outcome"]
    order = [DEFAULTS, "grpo-gamma-0.99", TUNED, *estimators, BAR, *BAR_SETTINGS, "a2c", "trpo"]
    labels = [label for label in order if label in known]
    c = compare_runs(runs, labels, BAR)
    contestants = [label for label in labels if label != BAR]
    shown = [label for label in (TUNED, DEFAULTS, BAR) if label in known]
    pictured = compare_runs([r for r in runs if r.label in (*shown, RANDOM)], shown, BAR)
    made = {source: tables.ALL[source](pictured) for source, _ in (figures.ALL[name] for name in PICTURES)}
    pictures = out.parent / "img" / "results"
    drawn = figures.write(made, shown, pictures, PICTURES)
    counts = {label: sorted({len(c.runs[env, label]) for env in c.envs if (env, label) in c.runs}) for label in labels}
    lines = ["# Results: GRPO without a critic against PPO with one", "", f"Made by `{command}` from the raw files in "]
    lines[-1] += f"[{folder.name}](data/{folder.name}); do not edit."
    lines += [
        "",
        PROTOCOL,
        "",
        "Seeds per task and label: "
        + ", ".join(f"{label} {'-'.join(map(str, sorted({n[0], n[-1]})))}" for label, n in counts.items() if label != BAR)
        + f". The protocol asks for {FULL}; where a cell has fewer, it says so, and its interval is to be read with care. "
        "Where it has more, they were added to see whether the first ten had been lucky or to narrow the interval; no run "
        "of these settings was left out.",
        "",
    ]
    lines += left_out(broken)
    lines += ["## Task by task", "", tables.to_markdown(main_table(c, chosen)), ""]
    lines += protocol_alone(runs)
    lines += ["## Over all tasks", "", OVERALL]
    speed = tables.speed(c)
    lines += [overall(runs, label, speed) for label in contestants] + [""]
    all_runs = list(runs)
    sections = [timing(timings, pictures)] if timings else []
    sections += [defaults_elsewhere(untuned)] if untuned else []
    for section, used in sections:
        lines += section
        all_runs += used
    lines += ["## Pictures", "", *shown_pictures(drawn)]
    lines += ["## Every algorithm", "", tables.to_markdown(every_label(c)), ""]
    lines += ["## Steps to the threshold", "", "First checkpoint at or above Gymnasium's threshold, median over seeds.", ""]
    lines += [tables.to_markdown(tables.threshold(c)), ""]
    lines += ["## Where a critic wins", "", *critic_wins(c), ""]
    lines += ["## Cost", "", COST, "", tables.to_markdown(cost_table(c, speed)), ""]
    entries = read_ablations(ablations)
    for heading in dict.fromkeys(entry["section"] for entry in entries):
        lines += [f"## {heading}", ""]
        for entry in [entry for entry in entries if entry["section"] == heading]:
            section, used = ablation(entry)
            lines += section
            all_runs += used
    lines += ["## Where the runs come from", "", *origins(all_runs), ""]
    return "\n".join(lines)


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
TIMINGS = """\
The bar's setting and the tuned entry in turn, seed by seed, on one two-core machine with another training on its second
core. Median seconds of training without evaluation, at the number of steps given: what a run takes grows with its steps."""
UNTUNED = """\
The defaults of both (above) on tasks that nobody tuned for. One default has come from them since: because of what gamma 0.995
had ended at on Pusher-v5 and Reacher-v5 (its own column), the discount is smaller where episodes are cut before 200 steps.
What it should be was looked for on seeds from 100 up; with a smaller one than its default, PPO is better too on Reacher-v5
(docs/algorithm.md)."""
COST = """\
Medians over seeds. Gradient steps are calls of the optimiser, updates are SB3's count (epochs of PPO and GRPO, rollouts
of A2C and TRPO). Seconds are of training only, on the processor that most of the runs were made on; the processor's are the
steadier ones. How many times faster than PPO a run is, is taken where both ran on one kind of processor."""


def body(arguments: Sequence[str]) -> int:
    """The command.

    :param arguments: command line
    :return: 0
    """
    args = parser().parse_args(arguments)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python -m zoo.evidence", *arguments])
    args.out.write_text(page(args.folder, args.timings, args.untuned, args.ablations, args.out, command))
    print(f"Results: {args.out}")
    return 0


def main(arguments: Sequence[str]) -> int:
    """``python -m zoo.evidence``."""
    return run("zoo.evidence", body, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
