"""Solve a scheduling or routing problem from a file: a plan and its picture, and how far rules, CP-SAT and a model are apart.

``python -m zoo.solve --problem jobshop --jobs jobs.csv`` writes the best schedule as CSV and JSON, and a Gantt chart. A CSV
has the columns job, machine, duration; release and weight are optional. ``--cv 0.3`` makes the durations uncertain.
``--problem tsp --cities cities.csv`` (columns x, y) draws a tour; ``cvrp`` needs the columns demand and capacity, too.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sb_grpo import GRPO, files
from sb_grpo.policies.encoding import SetPolicy
from sb_grpo.tasks.instances import PUBLIC, Cities, Jobs, public, read_cities, read_jobs
from sb_grpo.tasks.item_policy import ItemPolicy
from sb_grpo.tasks.routing import TSP
from sb_grpo.tasks.solving import Solution, cp_sat, make_problem, solve
from sb_grpo.types import Kwargs

from .common.command_line import (
    BadInput,
    Parser,
    add_torch,
    add_untrusted,
    check_at_least,
    check_seed,
    drawn,
    run,
    use_threads,
)
from .common.folders import check_place

#: Envs of a training, and its settings: whole groups of attempts with the same noise.
N_ENVS = 64
TRAINING: Kwargs = dict(group_size=8, n_groups=16, learning_rate=1e-3, batch_size=512, n_epochs=4, gamma=1.0)


def make_parser() -> Parser:
    parser = Parser("zoo.solve", __doc__)
    add = parser.add_argument
    add("--problem", required=True, choices=["jobshop", "tsp", "cvrp"])
    names = ", ".join(PUBLIC)
    add("--jobs", metavar="FILE", help=f"CSV, OR-Library or Taillard file, or a public instance ({names})")
    add("--cities", metavar="FILE", help=f"CSV, TSPLIB or CVRPLIB file, or a public instance ({names})")
    add("--cv", type=float, default=0.0, help="jobshop: coefficient of variation of the durations; 0: known")
    add("--breakdowns", type=float, default=0.0, help="jobshop: probability of a breakdown during an operation")
    add("--repair", type=float, default=0.0, help="jobshop: mean time of a repair")
    add("--spread", type=float, default=0.0, help="cvrp: demands are uniform within expected x (1 -+ spread); 0: known")
    add("--draws", type=int, default=20, help="uncertain data: number of futures to average over")
    add("--model", type=Path, metavar="FILE", help="trained model (.zip) of GRPO, beside rules and CP-SAT")
    add("--train", type=int, metavar="STEPS", help="train a model on this instance first, for so many env steps")
    add("--save", type=Path, metavar="FILE", help="place for the trained model")
    add("--samples", type=int, default=64, help="known data: attempts of the model, of which the best counts")
    add("--seconds", type=float, default=10.0, help="limit of CP-SAT per plan; 0: no CP-SAT")
    add("--seed", type=int, default=0, help="of luck and training")
    add("--out", type=Path, default=Path("solution"), metavar="FOLDER", help="place for the files")
    add_untrusted(parser)
    add_torch(parser, with_device=False)
    return parser


def read_instance(args: Namespace) -> Jobs | Cities:
    """Read the instance that the options name.

    :raises BadInput: for a missing or superfluous option, and a malformed file
    """
    option, other = ("jobs", "cities") if args.problem == "jobshop" else ("cities", "jobs")
    name = getattr(args, option)
    if name is None or getattr(args, other) is not None:
        raise BadInput(f"--problem {args.problem} takes --{option} FILE, and not --{other}.")
    try:
        found = public(name) if name in PUBLIC else (read_jobs if option == "jobs" else read_cities)(name)
    except (ValueError, OSError) as error:
        raise BadInput(f"--{option} {name}: {error}") from error
    kind = "jobshop" if isinstance(found, Jobs) else "tsp" if found.demand is None else "cvrp"
    if kind != args.problem:
        raise BadInput(f"--{option} {name} is an instance of {kind}: pass --problem {kind}.")
    return found


def noise_of(args: Namespace) -> Kwargs:
    """Arguments of the env that make its data uncertain."""
    if args.problem == "jobshop":
        return {"cv": args.cv, "breakdowns": args.breakdowns, "repair": args.repair}
    return {"spread": args.spread} if args.problem == "cvrp" else {}


def train(args: Namespace, given: Jobs | Cities) -> GRPO:
    """Train a model on the instance: each group draws a future of its own, which its members share."""
    noise: Kwargs = noise_of(args)
    if args.problem == "tsp":
        noise["multi_start"] = True
    env = make_problem([given] * N_ENVS, **noise)
    policy = SetPolicy if isinstance(env, TSP) else ItemPolicy
    model = GRPO(policy, env, advantage="outcome", seed=args.seed, device="cpu", **TRAINING)
    model.learn(args.train)
    if args.save is not None:
        model.save(args.save)
        print(f"Model: {args.save}")
    return model


def load(args: Namespace) -> GRPO:
    try:
        return GRPO.load(args.model, device="cpu", trusted=not args.untrusted)
    except Exception as error:  # a broken zip, another algorithm's model, missing classes
        raise BadInput(f"--model {args.model} cannot be loaded as a GRPO model: {error}") from error


def answers(args: Namespace, given: Jobs | Cities, model: GRPO | None) -> dict[str, list[Solution]]:
    """Solve by every method, each under the same futures.

    :param model: trained; None: rules and CP-SAT alone
    :return: method -> one solution per future
    """
    noise: Kwargs = noise_of(args)
    env: Any = make_problem([given], **noise)
    uncertain = getattr(env, "uncertain", False)
    futures = [given] * (args.draws if any(noise.values()) else 1)
    found = {rule: solve(rule, futures, seed=args.seed, **noise) for rule in getattr(env, "rules", ())}
    if args.seconds > 0:
        found |= by_cp_sat(args, given, futures, uncertain, noise)
    if model is not None:
        found["model, greedy"] = solve(model, futures, seed=args.seed, **noise)
        if not uncertain:
            found["model, all starts"] = solve(model, futures, starts="all", **noise)
            found[f"model, best of {args.samples}"] = solve(model, futures, decode="sample", samples=args.samples, **noise)
    return found


def by_cp_sat(
    args: Namespace, given: Jobs | Cities, futures: list[Jobs | Cities], uncertain: bool, noise: Kwargs
) -> dict[str, list[Solution]]:
    """Solve by CP-SAT: exactly, or with expected durations once and again at every event."""
    ways = {"CP-SAT": {"resolve": False}}
    if uncertain and isinstance(given, Jobs):
        ways = {"CP-SAT, one plan": {"resolve": False}, "CP-SAT, planned again": {"resolve": True}}
        if (given.release > 0).any():
            del ways["CP-SAT, one plan"]
    elif uncertain:
        print("CP-SAT is left out: it has no plan for demands that show on arrival.")
        return {}
    try:
        return {name: cp_sat(futures, args.seconds, seed=args.seed, **way, **noise) for name, way in ways.items()}
    except ImportError as error:
        print(f"CP-SAT is left out. {error}")
        return {}


def table(found: dict[str, list[Solution]], optimum: float | None) -> list[str]:
    """Lines with mean cost, gap to the best method or the proven optimum, and seconds per answer."""
    mean = {name: float(np.mean([one.cost for one in each])) for name, each in found.items()}
    proven = optimum is not None or any(each[0].optimal for each in found.values())
    best = optimum if optimum is not None else min(mean.values())
    head = "optimum" if proven else "best"
    lines = [f"{'method':24} {'cost':>12} {'above ' + head:>15} {'seconds':>9}"]
    for name, cost in sorted(mean.items(), key=lambda row: row[1]):
        gap = f"{100 * (cost - best) / abs(best):.1f} %" if best else ""
        seconds = np.mean([one.seconds for one in found[name]])
        lines.append(f"{name:24} {cost:12,.2f} {gap:>15} {seconds:9.3f}")
    return lines


def write_schedule(folder: Path, solution: Solution) -> Path:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["job", "operation", "machine", "start", "end"])
    writer.writerows(solution.schedule)
    return files.write(folder / "schedule.csv", text.getvalue())


def draw(folder: Path, given: Jobs | Cities, solution: Solution, method: str) -> Path:
    """Draw a Gantt chart with one row per machine, or the tour."""
    import matplotlib.pyplot as plt

    from .comparing import figures

    if isinstance(given, Jobs):
        figure, axes = plt.subplots(figsize=(9, 1 + 0.5 * len(given.machine_names)), layout="constrained")
        colours = plt.get_cmap("tab20")
        for row in solution.schedule:
            y = given.machine_names.index(row.machine)
            colour = colours(given.job_names.index(row.job) % colours.N)
            axes.barh(y, row.end - row.start, left=row.start, color=colour, edgecolor="white")
            axes.text((row.start + row.end) / 2, y, row.job, ha="center", va="center", fontsize=7, clip_on=True)
        axes.set_yticks(range(len(given.machine_names)), given.machine_names)
        axes.set(xlabel="time", ylabel="machine", title=f"{given.name}: {solution.cost:,.1f} by {method}")
        return figures.save(figure, folder / "gantt.png")[0]
    figure, axes = plt.subplots(figsize=(6, 6), layout="constrained")
    tour = solution.actions
    way = given.xy[[*tour, tour[0]] if given.demand is None else [0, *tour, 0]]
    axes.plot(way[:, 0], way[:, 1], "o-", color=figures.OKABE_ITO[0], markersize=4)
    axes.plot(*given.xy[0], "s", color=figures.OKABE_ITO[1])
    axes.set_aspect("equal")
    axes.set(title=f"{given.name}: {solution.cost:,.1f} by {method}")
    return figures.save(figure, folder / "tour.png")[0]


def write(args: Namespace, given: Jobs | Cities, found: dict[str, list[Solution]]) -> None:
    """Print the table, and write the files of the best method."""
    uncertain = len(next(iter(found.values()))) > 1
    print("\n".join(table(found, None if uncertain else given.optimum)))
    method = min(found, key=lambda name: float(np.mean([one.cost for one in found[name]])))
    solution = found[method][0]
    args.out.mkdir(parents=True, exist_ok=True)
    if uncertain:
        print(f"Means over {args.draws} futures; the files show the first one.")
    document = {
        "problem": args.problem,
        "instance": given.name,
        "method": method,
        "cost": solution.cost,
        "optimal": any(each[0].optimal and each[0].cost <= solution.cost for each in found.values()),
        "costs": {name: [one.cost for one in each] for name, each in found.items()},
    }
    if isinstance(given, Jobs):
        document["schedule"] = [row._asdict() for row in solution.schedule]
        print(f"Schedule: {write_schedule(args.out, solution)}")
    else:
        document["tour"] = solution.actions
    print(f"All of it: {files.write(args.out / 'solution.json', json.dumps(document, indent=1) + chr(10))}")
    picture = drawn("picture", lambda: draw(args.out, given, solution, method))
    if picture is not None:
        print(f"Picture: {picture}")


def main(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: 0
    """
    args = make_parser().parse_args(arguments)
    check_at_least(args, draws=1, samples=1, train=1)
    check_seed(args.seed)
    if args.model is not None and args.train is not None:
        raise BadInput("--model has been trained: leave out --train, or the model.")
    if args.save is not None:
        check_place("--save", args.save)
    check_place("--out", args.out, is_folder=True)
    use_threads(args)
    given = read_instance(args)
    try:
        model = load(args) if args.model is not None else train(args, given) if args.train is not None else None
        if model is None:
            print("No model (--model FILE, --train STEPS): the answer is the best of the rules and CP-SAT.")
        found = answers(args, given, model)
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(str(error)) from error
    if not found:
        raise BadInput(f"--seconds 0 leaves no method for {args.problem}: give CP-SAT time, or a model.")
    write(args, given, found)
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.solve", main, sys.argv[1:]))
