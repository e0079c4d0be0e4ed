"""Compare the algorithms of a benchmark: one Markdown report, a CSV per table, PNG and SVG figures.

``python -m zoo.compare results --baseline ppo --out report``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from sb_grpo import files

from .benchmarking.results import find_results
from .common.command_line import BadInput, Parser, add_untrusted, check_has_runs, run
from .common.folders import check_place
from .common.plain_files import read_mapping
from .common.tracking import check_wandb, log_report
from .comparing import figures, tables
from .comparing.comparison import Comparison, compare_runs, load

#: Section -> (description, tables in the text, figures). Curves, profile and single runs are only in their CSV files.
SECTIONS: dict[str, tuple[str, list[str], list[str]]] = {
    "Learning curves": (
        "Mean over seeds of the evaluations during training; shaded: 95 % bootstrap interval of that mean.",
        [],
        ["learning_curves"],
    ),
    "Final evaluation": (
        "A run's score is the mean return of its final evaluation. IQM with its 95 % bootstrap interval, mean, standard "
        "deviation, median, worst and best are over the scores of the seeds. Success rate: share of all final episodes at or "
        "above the threshold below. Convergence steps: median over seeds of the checkpoint from which on a run keeps 90 % of "
        "the rise from its first to its best checkpoint.",
        ["summary"],
        [],
    ),
    "Time to threshold": (
        "First checkpoint whose mean return is at or above the threshold: median over seeds; a seed that never is counts as "
        "infinitely late. Seconds are of training only.",
        ["threshold"],
        [],
    ),
    "Over all tasks": (
        "Scores normalised so that the lower reference is 0 and the upper 1. Intervals: 95 %, stratified bootstrap over "
        "seeds. Optimality gap: mean shortfall below 1.",
        ["aggregate", "references"],
        ["aggregates", "performance_profile", "sample_efficiency"],
    ),
    "Probability of improvement": (
        "Probability that a run of the first algorithm has a higher score than a run of the second on the same task, ties "
        "counted half, averaged over tasks, with 95 % stratified bootstrap interval.",
        ["improvement"],
        ["probability_of_improvement"],
    ),
    "Tests": (
        "Difference of mean scores with Welch's 95 % interval; p values of Welch's t-test, raw and after Holm's correction "
        "over the pairs of the task; Cohen's d with pooled standard deviation. Second table: the same differences pair by "
        "pair, since runs of one seed are evaluated on the same starts: paired t-test, Holm, Wilcoxon's signed-rank test from "
        "6 pairs on. Variance saved: 1 - Var(difference) / sum of the two variances, of scores over seeds and of episodes "
        "within their seeds. Last: one-way ANOVA over a task's algorithms.",
        ["pairwise", "paired", "anova"],
        [],
    ),
    "Stability": (
        "Within a run: what its last checkpoint is below its best one, and the mean height of its curve (area over steps, by "
        "trapezoids). Means over seeds with 95 % bootstrap intervals; largest drop: of all seeds.",
        ["stability"],
        [],
    ),
    "Worst task": (
        "Over the tasks that all algorithms have run, of mean normalised scores: the worst, the best, worst over best, and "
        "the Gini coefficient (0: all tasks are served alike), with 95 % stratified bootstrap intervals; scores below 0 "
        "count as 0.",
        ["fairness"],
        [],
    ),
    "Ranking": ("Rank by IQM on each task, 1 is best; ties share their mean rank.", ["ranking"], []),
    "Cost": (
        "Medians over seeds. Training time without evaluations; it compares only within one machine and one number of jobs.",
        ["cost", "speed"],
        ["training_time"],
    ),
    "Where the runs come from": ("Settings as used stand in [tables/settings.csv](tables/settings.csv).", ["provenance"], []),
}


def parser() -> Parser:
    """Make the parser of the command line."""
    it = Parser("zoo.compare", "Compare the algorithms of a benchmark: Markdown report, CSV tables, PNG and SVG figures.")
    add = it.add_argument
    add("folders", nargs="+", metavar="FOLDER", help="output of zoo.benchmark, or parts; run folders and models: [LABEL=]PATH")
    add("--out", type=Path, default=Path("comparison"), metavar="FOLDER", help="report.md, tables/, figures/")
    add("--envs", nargs="+", default=[], metavar="ID", help="on which envs; nothing: all")
    add("--labels", nargs="+", default=[], metavar="LABEL", help="which algorithms, in which order; nothing: all, by name")
    add("--baseline", metavar="LABEL", help="measure the others against this one; its mean is 1 of normalised scores")
    add("--threshold", nargs="+", default=[], metavar="ID:VALUE", help="return that solves an env, in place of Gymnasium's")
    add("--references", type=Path, metavar="FILE", help="YAML: env -> [low, high] of normalised scores")
    add("--episodes", type=int, default=50, help="of run folders and models, which are evaluated on common seeds first")
    add_untrusted(it)
    add("--allow-unequal", action="store_true", help="compare runs with unequal step budgets all the same")
    add("--no-figures", action="store_true", help="report and tables alone, in a fraction of the time")
    add("--track", action="store_true", help="tables and pictures to Weights & Biases, too")
    add("--wandb-project-name", default="sb3", help="of --track")
    return it


def parse_thresholds(texts: Sequence[str]) -> dict[str, float]:
    """Parse ``ID:VALUE`` ... to a mapping.

    :param texts: of the command line
    :raises BadInput: for anything else
    """
    table = {}
    for text in texts:
        env, _, value = text.rpartition(":")
        try:
            table[env] = float(value)
        except ValueError:
            raise BadInput(f"--threshold {text!r} is not ID:VALUE") from None
    return table


def read_references(path: Path | None) -> dict[str, tuple[float, float]]:
    """Read references from a YAML file.

    :param path: None: no references
    :raises BadInput: if it is not ``env: [low, high]``
    """
    if path is None:
        return {}
    table = read_mapping(path, "CartPole-v1: [20, 500]")
    try:
        return {str(env): _reference(values) for env, values in table.items()}
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path} must hold lines such as 'CartPole-v1: [20, 500]'") from error


def _reference(values: object) -> tuple[float, float]:
    if not isinstance(values, list):
        raise TypeError(values)
    low, high = values
    return float(low), float(high)


def write(comparison: Comparison, broken: Sequence[str], out: Path, with_figures: bool = True) -> Path:
    """Write report, tables and figures.

    :param comparison: to report
    :param broken: a line per result file that was left out
    :param out: folder
    :param with_figures: pictures too
    :return: path of the report
    """
    made = {name: table(comparison) for name, table in tables.ALL.items()}
    made = {name: table for name, table in made.items() if len(table)}
    for name, table in made.items():
        text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        files.write(out / "tables" / f"{name}.csv", text)
    drawn = figures.write(made, comparison.labels, out / "figures") if with_figures else []
    return files.write(out / "report.md", _report(comparison, broken, made, drawn))


def _report(comparison: Comparison, broken: Sequence[str], made: dict[str, pd.DataFrame], drawn: Sequence[str]) -> str:
    n_runs = sum(map(len, comparison.runs.values()))
    lines = [f"# {' against '.join(comparison.labels)}", ""]
    lines += [f"{n_runs} runs on {len(comparison.envs)} task(s); baseline: {comparison.baseline or 'none'}.", ""]
    notes = [*comparison.notes, *(f"Left out, broken: {line}" for line in broken)]
    lines += [f"- {note}" for note in notes] + ([""] if notes else [])
    for title, (text, shown, pictures) in SECTIONS.items():
        present = [name for name in shown if name in made]
        pictured = [name for name in pictures if name in drawn]
        if not present and not pictured:
            continue
        lines += [f"## {title}", "", text, ""]
        for name in present:
            lines += [tables.to_markdown(made[name]), "", f"[tables/{name}.csv](tables/{name}.csv)", ""]
        for name in pictured:
            lines += [f"![{name.replace('_', ' ')}](figures/{name}.png)", ""]
    rest = [name for name in made if not any(name in shown for _, shown, _ in SECTIONS.values())]
    lines += ["Further tables: " + ", ".join(f"[{name}](tables/{name}.csv)" for name in rest) + "."]
    return "\n".join(lines) + "\n"


def results_of(places: Sequence[str], episodes: int, out: Path, untrusted: bool = False) -> list[Path]:
    """Find folders of result files: the given ones, and those from an evaluation of the saved models among them.

    :param places: of the command line
    :param episodes: per model
    :param out: folder of the report; the evaluation goes into a folder in it
    :param untrusted: of saved models, as ``zoo.evaluate`` takes it
    """
    unknown = [place for place in places if place.endswith(".zip") or not _has_results(Path(place))]
    if not unknown:
        return [Path(place) for place in places]
    from .evaluate import is_saved  # imports rl_zoo3, which results do not need

    saved = [place for place in unknown if is_saved(place)]
    plain = [Path(place) for place in places if place not in saved]
    if not saved:
        return plain
    from .evaluate import main as evaluate

    evaluate([*saved, "--episodes", str(episodes), "--out", str(out / "evaluation"), *["--untrusted"] * untrusted])
    return [*plain, out / "evaluation" / "results"]


def _has_results(path: Path) -> bool:
    return path.exists() and bool(find_results([path]))


def main(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: 0
    """
    args = parser().parse_args(arguments)
    check_place("--out", args.out, is_folder=True)
    if args.track:
        check_wandb()
    thresholds = parse_thresholds(args.threshold)
    references = read_references(args.references)
    runs, broken = load(results_of(args.folders, args.episodes, args.out, args.untrusted))
    for line in broken:
        print(f"zoo.compare: broken result file left out: {line}", file=sys.stderr)
    check_has_runs("--envs", args.envs, {run.env for run in runs})
    runs = [run for run in runs if run.env in (args.envs or [run.env])]
    comparison = compare_runs(runs, args.labels, args.baseline, thresholds, references, args.allow_unequal)
    comparison.notes += tables.pairing_notes(comparison)
    for note in comparison.notes:
        print(note)
    print(f"Report: {write(comparison, broken, args.out, not args.no_figures)}")
    if args.track:
        about = {"envs": comparison.envs, "labels": comparison.labels, "baseline": comparison.baseline}
        log_report(args.out, args.wandb_project_name, about)
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.compare", main, sys.argv[1:]))
