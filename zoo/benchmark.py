"""Run every env with every algorithm on every seed: one process and one result file per run, resumable at any time.

``python -m zoo.benchmark --envs CartPole-v1 --algos grpo ppo --seeds 0-9 --steps 50000 --out results``
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

from .benchmarking.launchers import DONE, FAILED, LEFT, RUNNING, Launcher, Worker, open_launcher
from .benchmarking.results import LINES, read_all
from .benchmarking.specs import RunOptions, Spec, read_variants, settings_for, swept
from .benchmarking.worker import BAD_SETTINGS
from .common.cluster import Launch, add_launcher, read_launch
from .common.command_line import INTERRUPTED, BadInput, Parser, call, check_at_least, known_env, parse_grid, run
from .common.folders import alone_in, check_place, make_folder

POLL_S = 0.2


def progress(states: dict[Spec, str]) -> Table:
    """Table of finished and remaining runs, envs by labels.

    :param states: of every run
    """
    labels = list(dict.fromkeys(spec.label for spec in states))
    view = Table("env", *labels, title="runs done / all")
    counts = Counter((spec.env, spec.label, state) for spec, state in states.items())
    for env in dict.fromkeys(spec.env for spec in states):
        cells = []
        for label in labels:
            n = {state: counts[env, label, state] for state in (DONE, RUNNING, FAILED, LEFT)}
            notes = [f"{n[state]} {state}" for state in (RUNNING, FAILED) if n[state]]
            cells.append(f"{n[DONE]}/{sum(n.values())}" + (f" ({', '.join(notes)})" if notes else ""))
        view.add_row(env, *cells)
    return view


def work(states: dict[Spec, str], launcher: Launcher, options: RunOptions) -> list[Worker]:
    """Run the remaining runs. If the machine of a run dies, the run is queued again.

    :param states: of every run; updated in place
    :param launcher: runs them
    :param options: of the workers
    :return: the workers that failed
    """
    console = Console()
    waiting = [spec for spec, state in states.items() if state == LEFT]
    running: list[Worker] = []
    ended: list[Worker] = []
    view = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
    with view or nullcontext():
        try:
            while waiting or running:
                while waiting and len(running) < launcher.room():
                    running.append(launcher.start(waiting.pop(0), options))
                    states[running[-1].spec] = RUNNING
                if view is not None:
                    view.update(progress(states))
                for worker in _wait_for_any(running):
                    running.remove(worker)
                    ended.append(worker)
                    states[worker.spec], line = worker.outcome()
                    waiting += [worker.spec] if states[worker.spec] == LEFT else []
                    left = len(waiting) + len(running)
                    minutes = left * sum(worker.took for worker in ended) / len(ended) / launcher.room() / 60
                    line += f"; {left} left" + (f", about {minutes:.0f} min" if left else "")
                    console.print(line, soft_wrap=True, highlight=False, markup=False)
        finally:
            for worker in running:
                states[worker.spec] = LEFT
                worker.stop()
    return [worker for worker in ended if worker.complaint]


def _wait_for_any(running: list[Worker]) -> list[Worker]:
    while not (ended := [worker for worker in running if worker.has_ended()]):
        time.sleep(POLL_S)
    return ended


# ---------------------------------------------------------------- command line

LOG_WIDTH = 200  # a table in a log file need not fit a terminal


def parser(name: str = "zoo.benchmark") -> Parser:
    """Make the parser of the command line.

    :param name: of the command, for messages
    """
    it = Parser(name, "Train every algorithm on every env with every seed. Existing results are skipped.")
    add = it.add_argument
    add("--envs", nargs="+", required=True, metavar="ID", help="Gymnasium ids")
    algos = "algorithms of rl_zoo3, grpo, random, or labels of --variants; nothing: all labels of --variants"
    add("--algos", nargs="+", default=[], metavar="NAME", help=algos)
    variants = "YAML: label -> {algo, conf_file, hyperparams}; conf_file 'sb3-defaults': the constructor's defaults"
    add("--variants", type=Path, metavar="FILE", help=variants)
    sweep = "every algorithm (grpo if none is named) with every combination of these settings"
    add("--sweep", nargs="+", default=[], metavar="NAME=V,V", help=sweep)
    add("--seeds", default="0-9", help="such as 0-9, 3 or 0,2,5-7")
    add("--steps", nargs="+", required=True, metavar="N", help="env steps per run: one number, or ID:N for each env")
    add("--out", type=Path, required=True, metavar="FOLDER", help="for FOLDER/<env>/<label>/seed_<s>.json")
    add("--jobs", type=int, help="runs at a time, one torch thread each (default: as many as there are cores)")
    add_launcher(it, "local", "ray", "submitit")
    add("--evaluations", type=int, default=20, help="checkpoints, evenly spaced after the one at step 0")
    add("--eval-episodes", type=int, default=10, help="episodes per checkpoint")
    add("--final-episodes", type=int, default=50, help="episodes of the final evaluation")
    add("--gym-packages", nargs="+", default=[], metavar="PACKAGE", help="packages to import because they register envs")
    add("--device", default="auto", help="torch device of the runs")
    add("--keep-models", action="store_true", help="keep each run's folder: model, VecNormalize, monitor files")
    return it


def parse_seeds(text: str) -> list[int]:
    """Parse seeds from ``0-9``, ``3`` or ``0,2,5-7``.

    :param text: numbers and ranges, both ends included
    :return: the seeds, in order, each once
    :raises BadInput: for anything else
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise BadInput(f"--seeds {text!r} is not a list of seeds; write 0-9, 3 or 0,2,5-7")
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))


def parse_steps(texts: Sequence[str], envs: Sequence[str], evaluations: int = 1) -> dict[str, int]:
    """Parse the budget of each env from ``N`` or ``ID:N`` ...

    :param texts: of the command line
    :param envs: ids
    :param evaluations: checkpoints that the budget must have room for
    :raises BadInput: if an env has no budget, or for an invalid number
    """
    table = {env: number for env, _, number in (text.rpartition(":") for text in texts)}
    for env in table:
        if env and env not in envs:
            raise BadInput(f"--steps names {env!r}, which is not in --envs")
    steps = {}
    for env in envs:
        text = table.get(env, table.get(""))
        if text is None:
            raise BadInput(f"--steps says nothing about {env}")
        try:
            steps[env] = int(float(text))
        except (ValueError, OverflowError):
            raise BadInput(f"--steps {text!r} is no number") from None
        if steps[env] < evaluations:
            raise BadInput(f"--steps {text} is too few for {evaluations} evaluations (--evaluations)")
    return steps


class Request(NamedTuple):
    """Parsed command line."""

    specs: list[Spec]
    out: Path  #: output folder
    launch: Launch
    jobs: int | None  #: runs at a time
    options: RunOptions


def make_specs(arguments: Sequence[str]) -> Request:
    """Make the cross product, seeds outermost, so that an interrupted study is balanced.

    :param arguments: command line
    """
    args = parser().parse_args(arguments)
    check_at_least(args, jobs=1, evaluations=1, eval_episodes=1, final_episodes=1)
    launch = read_launch(args)
    if args.sweep and not args.algos and args.variants is None:
        args.algos = ["grpo"]
    if not args.algos and args.variants is None:
        raise BadInput("nothing to run: give --algos, --variants or both")
    envs = []
    packages = args.gym_packages
    for env in dict.fromkeys(args.envs):
        plain, packages = known_env(env, packages)
        envs.append(plain)
    steps = parse_steps(args.steps, envs, args.evaluations)
    variants = swept(read_variants(args.variants, args.algos), parse_grid("--sweep", args.sweep))
    settings = {(env, v.label): settings_for(v, env) for env in envs for v in variants}
    size = (args.evaluations, args.eval_episodes, args.final_episodes)
    specs = [
        Spec(env, v.label, v.algo, seed, steps[env], *size, *settings[env, v.label])
        for seed in parse_seeds(args.seeds)
        for env in envs
        for v in variants
    ]
    for (env, label), (_, source) in settings.items():
        if ": " in source and not source.endswith(f": {env}"):
            print(f"{env} {label}: settings of {source}")
    command = f"{call('benchmark')} {shlex.join(arguments)}"
    options = RunOptions(str(args.out), command, args.keep_models, args.device, packages)
    return Request(specs, args.out, launch, args.jobs, options)


def states_of(specs: Sequence[Spec], out: Path) -> dict[Spec, str]:
    """State of each run of a resumed benchmark: ``done`` or ``left``. Broken files are named; their runs are left to do.

    :param specs: the runs
    :param out: output folder; a run is a file in it, or a line of one
    :raises BadInput: if the file of a run has other settings
    """
    places = {place for place in (spec.file(out) for spec in specs) if place.exists()}
    runs, broken = read_all(sorted({*places, *out.glob(f"*{LINES}")}))
    for line in broken:
        print(f"broken result file, run again: {line}", flush=True)
    found = {run.file: run for run in runs}
    for spec in [spec for spec in specs if spec.file(out) in found]:
        run = found[spec.file(out)]
        if other := spec.difference(run.spec):
            remedy = "choose another --out or label, or remove it"
            raise BadInput(f"{run.path} holds a run with other settings ({other}); {remedy}")
    return {spec: DONE if spec.file(out) in found else LEFT for spec in specs}


def main(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: exit code of :func:`carry_out`
    """
    return carry_out(make_specs(arguments))


def carry_out(request: Request) -> int:
    """Execute the remaining runs.

    :param request: of the command line
    :return: 0; 1 if a run crashed, 2 if a model refused its settings, 130 if interrupted
    """
    specs, out, launch, jobs, options = request
    check_place("--out", out, is_folder=True)
    make_folder("--out", out)
    with alone_in(out, f"another benchmark is writing to {out}"):  # two would run everything twice
        for folder in out.rglob("seed_*.run"):  # of runs that were killed
            shutil.rmtree(folder, ignore_errors=True)
        states = states_of(specs, out)
        left = sum(state == LEFT for state in states.values())
        with closing(open_launcher(launch, jobs, out)) as launcher:
            print(f"{len(specs)} runs, {len(specs) - left} done before, {left} to do, {launcher.room()} at a time", flush=True)
            try:
                failed = work(states, launcher, options)
            except KeyboardInterrupt:
                print("interrupted: the same command goes on from here", file=sys.stderr)
                return INTERRUPTED
        Console(width=None if sys.stdout.isatty() else LOG_WIDTH).print(progress(states))
    for worker in failed:
        print(f"zoo.benchmark: {worker.complaint}", file=sys.stderr)
    return max((BAD_SETTINGS if worker.code == BAD_SETTINGS else 1 for worker in failed), default=0)


if __name__ == "__main__":
    sys.exit(run("zoo.benchmark", main, sys.argv[1:]))
