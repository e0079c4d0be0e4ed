"""The results page: GRPO against PPO with its critic, and the ablations, from raw result files.

``python -m scripts.studies.results docs/studies/data/study --timings docs/studies/data/timings
--untuned docs/studies/data/untuned --ablations docs/studies/data/ablations --out docs/studies/results.md``
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from scripts.studies.results.ablations import ablation, read_ablations
from scripts.studies.results.bar import BAR, BAR_SETTINGS, CONTROL, DEFAULTS, TUNED, measured, with_defaults
from scripts.studies.results.beside import defaults_elsewhere, timing
from scripts.studies.results.cells import FULL, left_out, shown_pictures
from scripts.studies.results.critic import critic_wins
from scripts.studies.results.first_screen import first_screen
from scripts.studies.results.runs_behind import runs_behind
from scripts.studies.results.same_settings import pairs, same_settings
from scripts.studies.results.study import (
    cost_table,
    every_label,
    main_table,
    overall,
    overall_table,
    protocol_alone,
    sooner,
)
from scripts.studies.results.summary import in_short
from scripts.studies.results.texts import history, text
from zoo.benchmarking.results import RANDOM
from zoo.common.command_line import Parser, run
from zoo.comparing import figures, tables
from zoo.comparing.comparison import compare_runs

NAME = "scripts.studies.results"
PICTURES = ("learning_curves", "aggregates", "performance_profile", "probability_of_improvement")


def parser() -> Parser:
    """The command line."""
    it = Parser(NAME, "Write the results page: GRPO against PPO with its critic, and the ablations.")
    add = it.add_argument
    add("folder", type=Path, help="output of zoo.benchmark with the labels of zoo/variants/critic_free.yml")
    add("--timings", type=Path, metavar="FOLDER", help="more output of it: PPO, the control and the tuned entries in turn")
    add("--untuned", type=Path, metavar="FOLDER", help="more output of it: both defaults on other tasks")
    add("--ablations", type=Path, metavar="FOLDER", help="ablations.yml and the folders of zoo.benchmark it names")
    add("--text-alone", action="store_true", help="leave the pictures as they are")
    add(
        "--out",
        type=Path,
        default=Path("docs/studies/results.md"),
        metavar="FILE",
        help="the page; pictures: img/results beside it",
    )
    return it


def page(
    folder: Path,
    timings: Path | None,
    untuned: Path | None,
    ablations: Path | None,
    out: Path,
    command: str,
    with_pictures: bool = True,
) -> dict[Path, str]:
    """The page, and the one about its runs; pictures are written on the way.

    :param folder: of the study
    :param timings: of runs of the bar and the tuned entries that were made in turn on one machine
    :param untuned: of runs of both defaults on other tasks
    :param ablations: of the ablations
    :param out: of the page
    :param command: that makes it
    :param with_pictures: draw them, too
    """
    runs, chosen, broken = measured(folder)
    runs = with_defaults(runs)
    known = {run.label for run in runs}
    estimators = ["grpo-step", "grpo-process", "grpo-outcome"]
    order = [DEFAULTS, "grpo-groups-of-8", "grpo-gamma-0.99", TUNED, *estimators, BAR, *BAR_SETTINGS, CONTROL, "a2c", "trpo"]
    labels = [label for label in order if label in known]
    c = compare_runs(runs, labels, BAR)
    contestants = [label for label in labels if label != BAR]
    shown = [label for label in (TUNED, DEFAULTS, BAR) if label in known]
    pictured = compare_runs([r for r in runs if r.label in (*shown, RANDOM)], shown, BAR)
    made = {source: tables.ALL[source](pictured) for source, _ in (figures.ALL[name] for name in PICTURES)}
    pictures = out.parent / "img" / "results" if with_pictures else None
    drawn = figures.write(made, shown, pictures, PICTURES)
    counts = {label: sorted({len(c.runs[env, label]) for env in c.envs if (env, label) in c.runs}) for label in labels}
    lines = ["# Results: GRPO without a critic against PPO with one", "", f"Made by `{command}` from the raw files in "]
    lines[-1] += f"[{folder.name}]({os.path.relpath(folder, out.parent)}); do not edit."
    lines += [
        "",
        *first_screen(folder.parent, pictures),
        "## The study of ten tasks",
        "",
        text("protocol"),
        "",
        "Seeds per task and label: "
        + ", ".join(f"{label} {'-'.join(map(str, sorted({n[0], n[-1]})))}" for label, n in counts.items() if label != BAR)
        + f". The protocol asks for {FULL}; where a cell has fewer, it says so, and its interval is to be read with care. "
        "Where it has more, they were added to see whether the first ten had been lucky or to narrow the interval. No run "
        "of these settings was left out; runs of entries that were replaced are in the history of git (*How the entries came "
        "about*).",
        "",
    ]
    lines += left_out(broken)
    timed = timing(timings, pictures) if timings else None
    elsewhere = defaults_elsewhere(untuned) if untuned else None
    same = pairs(runs)
    totals = {label: overall(runs, label) for label in contestants}
    lines += in_short(c, totals, same, timed)
    lines += ["## Task by task", "", tables.to_markdown(main_table(c, chosen)), "", *sooner(c)]
    lines += protocol_alone(runs)
    speed = tables.speed(c)
    lines += ["## Over all tasks", "", text("overall"), "", tables.to_markdown(overall_table(totals, speed)), ""]
    lines += same_settings(same)
    lines += ["## How the entries came about", "", history(), ""]
    lines += timed.lines if timed else []
    lines += elsewhere.lines if elsewhere else []
    lines += ["## Where a critic wins", "", *critic_wins(*([c, elsewhere.comparison] if elsewhere else [c])), ""]
    lines += ["## Pictures", "", *shown_pictures(drawn)]
    lines += ["## Every algorithm", "", tables.to_markdown(every_label(c)), ""]
    lines += ["## Cost", "", text("cost"), "", tables.to_markdown(cost_table(c, speed)), ""]
    all_runs = [*runs, *(timed.runs if timed else []), *(elsewhere.runs if elsewhere else [])]
    entries = read_ablations(ablations)
    for heading in dict.fromkeys(entry["section"] for entry in entries):
        lines += [f"## {heading}", ""]
        for entry in [entry for entry in entries if entry["section"] == heading]:
            section, used = ablation(entry, pictures)
            lines += section
            all_runs += used
    behind = out.with_name(f"{out.stem}_runs.md")
    lines += ["## Where the runs come from", "", f"[{behind.name}]({behind.name}), where steps to thresholds are too.", ""]
    each_once = compare_runs(runs, contestants)
    return {out: "\n".join(lines), behind: runs_behind(f"Made by `{command}`; do not edit.", out.name, each_once, all_runs)}


def body(arguments: Sequence[str]) -> int:
    """The command.

    :param arguments: command line
    :return: 0
    """
    args = parser().parse_args(arguments)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join([f"python -m {NAME}", *(argument for argument in arguments if argument != "--text-alone")])
    made = page(args.folder, args.timings, args.untuned, args.ablations, args.out, command, not args.text_alone)
    for file, content in made.items():
        file.write_text(content)
    print(f"Results: {args.out}")
    return 0


def main(arguments: Sequence[str]) -> int:
    """``python -m scripts.studies.results``."""
    return run(NAME, body, arguments)
