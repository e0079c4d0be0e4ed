"""Train, evaluate, compare and draw in one go: ``zoo.benchmark``, then ``zoo.compare``, then ``zoo.plot``.

``python -m zoo.workflow --n-runs 3 --envs CartPole-v1 --algos grpo ppo --steps 20000 --out study``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from . import benchmark, compare, plot
from .benchmarking.results import find_results
from .benchmarking.worker import BAD_SETTINGS
from .common.command_line import BadInput, Parser, run

#: Exit codes of a benchmark that has come to its end: all well, some runs crashed, some were refused by their model.
FINISHED = (0, 1, BAD_SETTINGS)


def parser() -> Parser:
    """The command line."""
    text = (
        "zoo.benchmark, zoo.compare and zoo.plot in a row. All further options are those of python -m zoo.benchmark: --envs, "
        "--algos, --variants, --steps, --jobs, ... The same command goes on after an interruption."
    )
    it = Parser("zoo.workflow", text)
    it.add_argument("--n-runs", type=int, default=3, help="seeds per algorithm and env: 0 to n-1")
    it.add_argument("--baseline", metavar="LABEL", help="zoo.compare's: measure the others against this one")
    it.add_argument("--out", type=Path, default=Path("study"), metavar="FOLDER", help="results/ and report/")
    return it


def body(arguments: Sequence[str]) -> int:
    """The command.

    :param arguments: command line
    :return: exit code of the benchmark: where runs have failed, the report is about the others
    """
    args, rest = parser().parse_known_args(arguments)
    if args.n_runs < 1:
        raise BadInput("--n-runs must be at least 1")
    if "--seeds" in rest:
        raise BadInput("--n-runs N takes the place of --seeds (seeds 0 to N-1)")
    results, report = args.out / "results", args.out / "report"
    failed = benchmark.body([*rest, "--seeds", f"0-{args.n_runs - 1}", "--out", str(results)])
    if failed not in FINISHED or not find_results([results]):
        return failed
    compare.body([str(results), "--out", str(report), *(["--baseline", args.baseline] if args.baseline else [])])
    plot.body([str(results), "--out", str(report / "figures" / "curves")])
    if failed:
        print("zoo.workflow: the report is without the runs that failed", file=sys.stderr)
    return failed


def main(arguments: Sequence[str]) -> int:
    """``python -m zoo.workflow``."""
    return run("zoo.workflow", body, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
