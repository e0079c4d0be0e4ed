"""Additional results: training times on one machine, the defaults on other tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from scripts.studies.results.bar import BAR, BAR_SETTINGS, CONTROL, DEFAULTS, DISCOUNTS, TUNED, measured
from scripts.studies.results.cells import iqm_text, left_out, shown_pictures, steps_text, verdict, with_interval
from scripts.studies.results.texts import text
from zoo.benchmarking.results import Run
from zoo.comparing import figures, tables
from zoo.comparing.comparison import Comparison, compare_runs


class Timing(NamedTuple):
    """Runs of the bar, the control and the tuned entry that were made in turn on one machine."""

    lines: list[str]
    runs: list[Run]
    bar: pd.DataFrame  # of tables.speed: how many times less time the tuned entry takes than the bar
    control: pd.DataFrame  # than PPO with the same settings; empty if that was not measured


def timing(folder: Path, pictures: Path | None) -> Timing:
    """Seconds per run of the bar, the control and the tuned entry, and how many times fewer the entry takes.

    :param folder: of the runs
    :param pictures: folder for the picture; None: it is not drawn
    """
    runs, chosen, broken = measured(folder)
    c = compare_runs(runs, [TUNED, BAR], BAR)
    seeds = sorted({len(of_one) for of_one in c.runs.values()})
    how_many = f"{'-'.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} runs of each."
    settings = {env: label.removeprefix("ppo-") for env, label in chosen.items()}
    bar = tables.speed(c)
    control = pd.DataFrame()
    lines = ["## Training time on one machine", "", f"{text('timings')} {how_many}", "", _seconds(c, bar, settings), ""]
    known = {run.label for run in runs}
    if CONTROL in known:
        same = compare_runs(runs, [TUNED, CONTROL], CONTROL)
        control = tables.speed(same)
        lines += [text("price"), "", _seconds(same, control, dict.fromkeys(same.envs, "GRPO's settings")), ""]
    shown = [label for label in (TUNED, CONTROL, BAR) if label in known]
    drawn = figures.write({"cost": tables.cost(compare_runs(runs, shown, BAR))}, shown, pictures, ["training_time"])
    return Timing([*lines, *left_out(broken), *shown_pictures(drawn)], runs, bar, control)


def _seconds(c: Comparison, times: pd.DataFrame, settings: Mapping[str, str]) -> str:
    """Compare the tuned entry with the baseline per task.

    :param times: of tables.speed
    :param settings: env -> description of PPO's settings
    """
    medians = tables.cost(c).set_index(["env", "algorithm"])
    seconds = medians["train_wall_s"].map("{:.1f}".format)
    steps = medians["gradient_steps"]
    rows = []
    for _, row in times.iterrows():
        env = row["env"]
        cells = dict.fromkeys(("task", "steps", "PPO", "PPO, s", "GRPO, s", "gradient steps, PPO / GRPO"), "")
        cells["task"] = "all, geometric mean"
        if env != "all":
            cells |= {"task": env, "steps": steps_text(c, env), "PPO": settings[env]}
            cells |= {"PPO, s": seconds[env, c.baseline], "GRPO, s": seconds[env, TUNED]}
            cells["gradient steps, PPO / GRPO"] = f"{steps[env, c.baseline]:,.0f} / {steps[env, TUNED]:,.0f}"
        cells["times faster, clock"] = with_interval(row, "speedup")
        rows.append(cells | {"times faster, processor": with_interval(row, "cpu_speedup")})
    return tables.to_markdown(pd.DataFrame(rows))


class Elsewhere(NamedTuple):
    """The defaults of both on tasks outside the study."""

    lines: list[str]
    runs: list[Run]
    comparison: Comparison


def defaults_elsewhere(folder: Path) -> Elsewhere:
    """The defaults of both, task by task, on tasks outside the study.

    :param folder: of runs of both, and of :data:`DISCOUNTS` where that was asked
    """
    runs, _, broken = measured(folder)
    known = {run.label for run in runs}
    c = compare_runs(runs, [label for label in (DEFAULTS, *DISCOUNTS, BAR, *BAR_SETTINGS) if label in known], BAR)
    times = tables.speed(c).query("algorithm == @DEFAULTS")
    faster = {row["env"]: with_interval(row, "cpu_speedup") for _, row in times.iterrows()}
    rows = []
    for env in [env for env in c.envs if {DEFAULTS, BAR} <= {*c.on(env)}]:
        row = {"task": env, "steps": steps_text(c, env), "PPO, defaults": iqm_text(c, env, BAR)}
        row |= {"GRPO, defaults": iqm_text(c, env, DEFAULTS), "against PPO": verdict(c, env, DEFAULTS)}
        others = [f"{gamma}: {iqm_text(c, env, label)}" for label, gamma in DISCOUNTS.items() if label in c.on(env)]
        row |= {"GRPO, other discounts": "; ".join(others) or "-"}
        rows.append(row | {"times faster, processor": faster.get(env, "other processor")})
    lines = ["## Other tasks, with the defaults", "", text("untuned"), "", tables.to_markdown(pd.DataFrame(rows)), ""]
    return Elsewhere([*lines, *left_out(broken)], runs, c)
