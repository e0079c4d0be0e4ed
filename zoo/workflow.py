"""Train, evaluate, compare and draw in one go: ``zoo.benchmark``, then ``zoo.compare``, then ``zoo.plot``.

``python -m zoo.workflow --n-runs 3 --envs CartPole-v1 --algos grpo ppo --steps 20000 --out study``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from . import benchmark, compare, plot
from .benchmarking.results import RANDOM, Run, find_results, read_all
from .benchmarking.specs import Spec
from .benchmarking.worker import BAD_SETTINGS
from .common.command_line import BadInput, Parser, did_you_mean, run

#: Exit codes of a benchmark that has come to its end: all well, some runs crashed, some were refused by their model.
FINISHED = (0, 1, BAD_SETTINGS)
#: Seeds per algorithm and env, unless the command line says how many or which.
N_RUNS = 3


def parser() -> Parser:
    """The command line."""
    text = (
        "zoo.benchmark, zoo.compare and zoo.plot in a row. All further options are those of python -m zoo.benchmark: --envs, "
        "--algos, --variants, --steps, --jobs, ... The same command goes on after an interruption."
    )
    it = Parser("zoo.workflow", text)
    it.add_argument("--n-runs", type=int, help=f"seeds per algorithm and env: 0 to n-1; without it and --seeds: {N_RUNS}")
    it.add_argument("--baseline", metavar="LABEL", help="zoo.compare's: measure the others against this one")
    it.add_argument("--out", type=Path, default=Path("study"), metavar="FOLDER", help="results/ and report/")
    return it


def read(arguments: Sequence[str]) -> tuple[benchmark.Request, str | None, Path]:
    """Parse the command line, and check it as far as possible before any training.

    :param arguments: command line
    :return: the benchmark, the baseline's label, the folder of the report
    :raises BadInput: if the report cannot be written
    """
    args, rest = parser().parse_known_args(arguments)
    rest += ["--out", str(args.out / "results")]
    of_benchmark = benchmark.parser("zoo.workflow")
    of_benchmark.set_defaults(seeds=None)
    if of_benchmark.parse_args(rest).seeds is None:
        n_runs = N_RUNS if args.n_runs is None else args.n_runs
        if n_runs < 1:
            raise BadInput(f"--n-runs {n_runs} must be at least 1.")
        rest += ["--seeds", f"0-{n_runs - 1}"]
    elif args.n_runs is not None:
        raise BadInput("--n-runs N means --seeds 0 to N-1: give one of the two.")
    request = benchmark.make_specs(rest)
    _check_labels(request, args.baseline)
    return request, args.baseline, args.out / "report"


def _check_labels(request: benchmark.Request, baseline: str | None) -> None:
    """See that there will be something to compare, and that the baseline is among it."""
    runs: list[Spec | Run] = [*request.specs, *read_all(find_results([request.out]))[0]]
    labels = sorted({run.label for run in runs if run.algo != RANDOM})
    if not labels:
        raise BadInput("only runs of the random policy: nothing to compare. Name an algorithm in --algos too.")
    if baseline is not None and baseline not in labels:
        raise BadInput(
            f"--baseline {baseline}: it has no runs.{did_you_mean(baseline, labels)} (there will be: {', '.join(labels)})"
        )


def main(arguments: Sequence[str]) -> int:
    """The command.

    :param arguments: command line
    :return: exit code of the benchmark: where runs have failed, the report is about the others
    """
    request, baseline, report = read(arguments)
    failed = benchmark.carry_out(request)
    if failed not in FINISHED or not find_results([request.out]):
        return failed
    compare.main([str(request.out), "--out", str(report), *(["--baseline", baseline] if baseline else [])])
    plot.main([str(request.out), "--out", str(report / "figures" / "curves")])
    if failed:
        print("zoo.workflow: the report is without the runs that failed", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(run("zoo.workflow", main, sys.argv[1:]))
