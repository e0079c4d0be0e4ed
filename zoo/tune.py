"""Search hyperparameters: an Optuna study that can be interrupted, continued and shared.

``python -m zoo.tune --env CartPole-v1 --n-timesteps 20000 --n-trials 30`` writes to ``logs/tune/grpo_CartPole-v1_20000/``:
the study's journal, the best settings as a YAML for ``python -m zoo.train --conf-file``, a table of all trials, and plots.
The same command once more adds 30 trials; ``--max-total-trials 30`` stops at 30 in all. Several processes may run at once.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import optuna
import yaml
from matplotlib.ticker import LogLocator, NullFormatter
from optuna.importance import get_param_importances
from optuna.pruners import BasePruner
from optuna.samplers import GridSampler
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as as_picture
from optuna.visualization import (
    plot_contour,
    plot_optimization_history,
    plot_parallel_coordinate,
    plot_param_importances,
    plot_slice,
)
from plotly.offline import get_plotlyjs

from sb_grpo import GRPO, files
from sb_grpo.types import Kwargs

from .common.cluster import Launch, add_launcher, connect_ray, read_launch, room_in, search_here
from .common.command_line import (
    INTERRUPTED,
    BadInput,
    Grid,
    Parser,
    Settings,
    add_gym_packages,
    add_torch,
    call,
    check_at_least,
    default_threads,
    how_many,
    known_env,
    parse_grid,
    program,
    run,
    use_threads,
)
from .common.episodes import close
from .common.folders import make_folder
from .common.plain_files import HYPERPARAMS
from .common.provenance import command, without_passwords
from .training.experiment import Experiment, register
from .training.settings import check_settings
from .tuning.objective import Objective
from .tuning.search_space import AS_IT_STANDS, SPACES, grid_space, grpo_space, grpo_start, widened
from .tuning.study import (
    PRUNERS,
    SAMPLERS,
    SeededByTrial,
    check_source,
    counted,
    enqueue_interrupted,
    failure,
    give_back_surplus,
    note_source,
    open_storage,
    retire_abandoned,
)

# ---------------------------------------------------------------- workers


#: Number of dead workers until the search gives up, because the study itself may kill them.
MAX_LOSSES = 10


def search_together(launch: Launch, n_workers: int | None, arguments: Sequence[str]) -> int:
    """Let workers search until the study has its trials. One whose machine dies costs its trial, and another takes its place.

    :param launch: the cluster, and the resources of a worker
    :param n_workers: at a time; None: as many as the cluster has room for
    :param arguments: command line of a worker
    :return: exit code: that of the first worker that failed, 130 if the user has interrupted it
    """
    ray = connect_ray(launch, show_output=True)
    task = ray.remote(search_here).options(max_retries=0, **launch.resources.for_ray())
    number = {task.remote(arguments, os.getcwd()): n + 1 for n in range(n_workers or room_in(ray, launch.resources))}
    running = list(number)
    losses = 0
    failed = 0
    try:
        while running:
            (ended, *_), running = ray.wait(running)
            try:
                code = _failure(number[ended], ray.get(ended))
                failed = failed or code
            except ray.exceptions.RayTaskError:
                raise  # the task itself is at fault
            except ray.exceptions.RayError as error:
                losses += 1
                print(f"A worker is gone ({type(error).__name__}): its trial is lost.", flush=True)
                if losses < MAX_LOSSES:
                    running.append(task.remote(arguments, os.getcwd()))
                    number[running[-1]] = number[ended]
        return failed
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        ray.shutdown()  # ends the workers that are left


def _failure(number: int, code: int) -> int:
    """Name a worker that has failed; why stands above, as it has said it.

    :param code: that it ended with; below 0 a signal
    :return: exit code that says as much; 0 if it has not failed
    """
    if code == 0:
        return 0
    print(f"{program('tune')}: worker {number} ended with code {code}", file=sys.stderr, flush=True)
    return max(code, 1)


# ---------------------------------------------------------------- report


#: So many completed trials are too few for a landscape.
FEW = 6
#: Parameters that slice and parallel-coordinate plots, and contour plots, show: the most important ones.
SHOWN = 6
SHOWN_IN_CONTOUR = 3
VALUE = "mean return at the end"
SIZES = {"slice": (20.0, 4.5), "parallel_coordinate": (16.0, 5.0), "contour": (13.0, 10.0)}


def write_report(study: Study, storage: str, folder: Path, plots: bool = True) -> bool:
    """Write everything and print where it is.

    :return: whether any trial has completed
    """
    files.write(folder / "trials.csv", study.trials_dataframe().to_csv(index=False))
    by_state = {state: study.get_trials(deepcopy=False, states=(state,)) for state in TrialState}
    completed = by_state[TrialState.COMPLETE]
    crashed = [t for t in by_state[TrialState.FAIL] if failure(t)]
    counts = ", ".join(f"{len(trials)} {state.name.lower()}" for state, trials in by_state.items() if trials)
    print(f"\nStudy {study.study_name}: {counts}")
    if crashed:
        reasons = sorted({str(failure(t)) for t in crashed})
        where = "(tracebacks: user attribute 'traceback' in trials.csv)"
        print(f"{how_many(len(crashed), 'trial')} FAILED: {'; '.join(reasons[:3])} {where}")
    print(f"Trials:    {folder / 'trials.csv'}")
    if completed:
        path = files.write(folder / "best.yml", best_as_yaml(study))
        print(f"Best:      trial {study.best_trial.number}, {VALUE} {study.best_value:.1f}")
        print(f"Train it:  {call('train')} {shlex.join([*study.user_attrs['train_options'], '--conf-file', str(path)])}")
    if plots and len(completed) > 1:
        with warnings.catch_warnings():  # of few trials per parameter, and of plots that may change
            warnings.simplefilter("ignore")
            draw(study, folder)
        print(f"Plots:     {folder}/*.html, *.png")
    elif plots:
        print("Plots:     none, they need two completed trials")
    print(f"Dashboard: optuna-dashboard {without_passwords(storage)}")
    return bool(completed)


def best_as_yaml(study: Study) -> str:
    """The best trial's settings as an entry that ``zoo.train --conf-file`` reads, and where they come from."""
    best = study.best_trial
    about = study.user_attrs
    settings = {name: value for name, value in best.user_attrs["settings"].items() if value is not None}
    return (
        f"# Trial {best.number} of {len(study.trials)} in study {study.study_name}: {VALUE} {best.value:.1f} over "
        f"{how_many(about['eval_episodes'], 'episode')},\n"
        f"# {how_many(about['n_seeds'], 'training')} (seeds {best.user_attrs['training_seeds']}). Tuned by:\n"
        f"# {about['command']}\n" + yaml.safe_dump({about["env"]: settings}, sort_keys=True)
    )


def draw(study: Study, folder: Path) -> None:
    """Importance, history, slice, parallel coordinate and contour: Plotly as HTML, Matplotlib as PNG (without a browser).

    Six or fewer completed trials get no contour: a landscape between so few points would be an invention.
    """
    importance = list(get_param_importances(study))
    shown = importance[:SHOWN]
    contour = importance[:SHOWN_IN_CONTOUR]
    figures: dict[str, tuple[Callable, Callable, Kwargs]] = {
        "importance": (plot_param_importances, as_picture.plot_param_importances, {}),
        "history": (plot_optimization_history, as_picture.plot_optimization_history, {"target_name": VALUE}),
        "slice": (plot_slice, as_picture.plot_slice, {"params": shown, "target_name": VALUE}),
        "parallel_coordinate": (
            plot_parallel_coordinate, as_picture.plot_parallel_coordinate, {"params": shown, "target_name": VALUE},
        ),
    }  # fmt: skip
    if len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))) > FEW:
        figures["contour"] = (plot_contour, as_picture.plot_contour, {"params": contour, "target_name": VALUE})
    files.write(folder / "plotly.min.js", get_plotlyjs())
    for name, (as_html, as_png, options) in figures.items():
        files.write(folder / f"{name}.html", as_html(study, **options).to_html(include_plotlyjs="directory"))
        as_png(study, **options)
        figure = plt.gcf()
        figure.set_size_inches(SIZES.get(name, (8.0, 5.0)))
        for axes in figure.axes:
            left, right = axes.get_xlim()
            if axes.get_xscale() == "log" and right / left < 100:  # where Matplotlib's labels would lie on each other
                axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
                axes.xaxis.set_major_formatter("{x:g}")
                axes.xaxis.set_minor_formatter(NullFormatter())
        with files.replacing(folder / f"{name}.png") as unfinished:
            figure.savefig(unfinished, dpi=80, bbox_inches="tight")
        plt.close(figure)


# ---------------------------------------------------------------- command line


GRID = "grid"
#: Algorithms whose space is numbers without conditions, where a Gaussian process is at its best.
NUMBERS_ONLY = {"ars"}


def make_parser() -> Parser:
    parser = Parser("zoo.tune", __doc__)
    add = parser.add_argument
    add("--algo", default="grpo", choices=list(SPACES), help="grpo, or another with rl_zoo3's space of it")
    add("--env", default="CartPole-v1", help="env id")
    add("-n", "--n-timesteps", type=int, default=-1, help="steps of a training (-1: the YAML's)")
    add("--n-seeds", type=int, default=5, help="trainings in a trial; its value is their mean")
    add("--n-trials", type=int, default=30, help="trials that this process adds")
    add("--max-total-trials", type=int, help="trials of the whole study, whoever runs them; goes before --n-trials")
    add("--n-jobs", type=int, default=1, help="trials at once, in threads; processes that share a storage are faster")
    samplers = "who draws the settings; auto: grid with --grid, else gp where the space is numbers only, else tpe"
    add("--sampler", default="auto", choices=[*SAMPLERS, GRID, "auto"], help=samplers)
    add("--grid", nargs="+", default=[], metavar="NAME=V,V", help="settings to search, every combination of their values")
    add("--pruner", default="median", choices=list(PRUNERS), help="who stops hopeless trials")
    add("--n-startup-trials", type=int, default=10, help="random trials before sampler and pruner begin to judge")
    add("--n-evaluations", type=int, default=4, help="evaluations in a training, the last at its end")
    add("--eval-episodes", type=int, default=20, help="episodes of each evaluation")
    add("--storage", help="journal file (.log) or URL of a database; default: journal.log in the study's folder")
    add("--study-name", help="default: ALGO_ENV_STEPS")
    add("--seed", type=int, default=0, help="of the study; with --n-jobs 1 in one go, the same seed gives the same study")
    add("-f", "--log-folder", default="logs", help="root of all logs")
    add("-conf", "--conf-file", help="YAML (or Python) with the settings that are not searched; default: the algorithm's own")
    add("-params", "--hyperparams", nargs="+", action=Settings, default={}, help="settings to fix: name:value, not searched")
    add("--env-kwargs", nargs="+", action=Settings, default={}, help="arguments of the env")
    add(
        "--eval-env-kwargs", nargs="+", action=Settings, help="arguments of the env in evaluations; default: those of training"
    )
    add_gym_packages(parser)
    add("--vec-env", default="dummy", choices=["dummy", "subproc"], help="envs in this process or in their own")
    add_torch(parser)
    add("--no-optim-plots", action="store_true", help="no plots")
    add_launcher(parser, "local", "ray")
    add(
        "--workers",
        type=int,
        help="with --launcher ray: processes that search at a time (default: all that there is room for)",
    )
    add("--in-team", action="store_true", help=argparse.SUPPRESS)  # one of those
    return parser


def prepare(args: Namespace, grid: Grid) -> tuple[Objective, dict[str, object] | None, str]:
    """Make the objective, and try it once without training, so that general faults are reported before the first trial.

    :param grid: values by name, if a grid is searched
    :return: the objective; the parameters of a new study's first trial, if the space contains the entry's settings; a message
        about that trial
    :raises BadInput: for an invalid setting
    """
    config = args.conf_file or (str(HYPERPARAMS) if args.algo == "grpo" else None)
    options = {
        "env_kwargs": args.env_kwargs, "eval_env_kwargs": args.eval_env_kwargs, "vec_env_type": args.vec_env,
        "device": args.device, "config": config,
    }  # fmt: skip
    entry = Experiment(argparse.Namespace(), args.algo, args.env, "", hyperparams=args.hyperparams, verbose=0, **options)
    _, base = entry.read_hyperparameters()
    for name, values in grid.items():
        if name in args.hyperparams:
            raise BadInput(f"--grid searches {name}, which --hyperparams fixes.")
        for value in values:
            check_settings(args.algo, {**base, name: value}, lambda name: "--grid" if name in grid else str(config))
    of_entry = base["n_timesteps"]
    assert isinstance(of_entry, int | float)  # read_hyperparameters has checked it
    n_timesteps = args.n_timesteps if args.n_timesteps > 0 else int(of_entry)
    objective = Objective(
        args.algo, args.env, dict(base), args.hyperparams, n_timesteps, args.n_seeds, args.n_evaluations, args.eval_episodes,
        args.seed, options,
    )  # fmt: skip
    model = objective.build(objective.base, args.seed)[1]
    env = model.get_env()
    assert env is not None
    close(env)
    if grid:
        objective.draw = partial(grid_space, grid=grid)
    elif isinstance(model, GRPO):
        space, start, messages = widened(grpo_start(model, objective.base))
        objective.draw = partial(grpo_space, space=space)
        return objective, start, f"The first trial is the entry as it stands. {'; '.join(messages)}".strip()
    else:
        return objective, None, f"The entry's own settings are no trial: rl_zoo3's space of {args.algo} cannot say them."
    return objective, None, ""


def sampler_of(args: Namespace, grid: Grid) -> SeededByTrial:
    """Make the sampler.

    :raises BadInput: for a grid without a grid sampler, or the reverse
    """
    name = args.sampler
    if name == "auto":
        name = GRID if grid else "gp" if args.algo in NUMBERS_ONLY else "tpe"
    if (name == GRID) != bool(grid):
        raise BadInput("--sampler grid and --grid NAME=VALUE,VALUE need each other.")
    if name == GRID:
        # Its seed numbers the points, so all trials need the same one.
        return SeededByTrial(lambda _: GridSampler(grid, seed=args.seed), args.seed)
    return SeededByTrial(lambda seed: SAMPLERS[name](seed, args.n_startup_trials), args.seed)


def train_options(args: Namespace) -> list[str]:
    """Options of ``zoo.train`` for a training like the trials', without their settings."""
    options = ["--algo", args.algo, "--env", args.env]
    for name in ("env_kwargs", "eval_env_kwargs"):
        if getattr(args, name):
            options += [f"--{name.replace('_', '-')}", *(f"{k}:{v!r}" for k, v in getattr(args, name).items())]
    if args.gym_packages:
        options += ["--gym-packages", *args.gym_packages]
    for name, default in (("vec_env", "dummy"), ("device", "auto"), ("num_threads", default_threads())):
        if getattr(args, name) != default:
            options += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    return options


def open_study(args: Namespace, objective: Objective, start: dict[str, object] | None, of_start: str, grid: Grid) -> Study:
    """Create the study, or continue it.

    :param start: parameters of a new study's first trial
    :param of_start: message about that trial
    :param grid: values by name, if a grid is searched
    :raises BadInput: if a study of this name is about something else
    """
    storage = open_storage(args.storage)
    sampler = sampler_of(args, grid)
    pruner = PRUNERS[args.pruner](args.n_startup_trials, args.n_seeds * args.n_evaluations)
    if args.in_team:
        return _load_study(args, storage, sampler, pruner)
    try:
        study = optuna.create_study(
            storage=storage, study_name=args.study_name, sampler=sampler, pruner=pruner, direction="maximize"
        )
        if start is not None:  # by the one process that has created it
            study.enqueue_trial(start, user_attrs={AS_IT_STANDS: True})
        if of_start:
            print(of_start)
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(study_name=args.study_name, storage=storage, sampler=sampler, pruner=pruner)
    about = {
        "algo": args.algo,
        "env": args.env,
        "n_timesteps": objective.n_timesteps,
        "n_seeds": args.n_seeds,
        "n_evaluations": args.n_evaluations,
        "eval_episodes": args.eval_episodes,
        "fixed": {name: str(value) for name, value in args.hyperparams.items()},
        "env_kwargs": args.env_kwargs,
        "eval_env_kwargs": args.eval_env_kwargs,
        "entry": objective.base,
        "grid": grid,
    }
    about = json.loads(json.dumps(about, default=str))  # as the storage gives it back
    for name, value in about.items():
        there = study.user_attrs.get(name, value)
        if there != value:
            raise BadInput(
                f"study {args.study_name} in {without_passwords(args.storage)} was begun with "
                f"{difference(name, there, value)}: values would not be comparable. Choose another --study-name."
            )
        study.set_user_attr(name, value)
    study.set_user_attr("train_options", train_options(args))
    study.set_user_attr("command", command())
    return study


def _load_study(args: Namespace, storage: BaseStorage, sampler: SeededByTrial, pruner: BasePruner) -> Study:
    """The study that the command has begun, as one of its workers finds it.

    :raises BadInput: where the storage is another one on this machine
    """
    try:
        return optuna.load_study(study_name=args.study_name, storage=storage, sampler=sampler, pruner=pruner)
    except KeyError:
        raise BadInput(
            f"--storage {without_passwords(args.storage)} on {socket.gethostname()} has no study {args.study_name}: "
            "all machines must see the same one. Use a database (docs/scale.md), or a folder that they share."
        ) from None


def team_arguments(arguments: Sequence[str], args: Namespace, study: Study) -> list[str]:
    """The command line of a worker: later options win."""
    storage = args.storage if "://" in args.storage else str(Path(args.storage).absolute())
    total = args.max_total_trials or counted(study) + args.n_trials
    options = {"launcher": "local", "ray-address": "", "resources": "", "storage": storage, "study-name": args.study_name}
    pairs = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [*arguments, *pairs, "--max-total-trials", str(total), "--in-team"]


def difference(name: str, there: object, here: object) -> str:
    """Describe the difference of a study's attribute; for a mapping, the differing entries."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = [k for k in {**there, **here} if there.get(k) != here.get(k)]
        there, here = ({k: x[k] for k in names if k in x} for x in (there, here))
    return f"{name}={there!r}, not {here!r}"


class Progress:
    """One line per finished trial, and the end of a study that has a total."""

    def __init__(self, max_total: int | None) -> None:
        self.max_total = max_total

    def __call__(self, study: Study, trial: FrozenTrial) -> None:
        value = f"{trial.value:.1f}" if trial.state == TrialState.COMPLETE and trial.value is not None else ""
        message = {TrialState.COMPLETE: value, TrialState.PRUNED: "pruned"}.get(trial.state, f"FAILED: {failure(trial)}")
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        best = f", best {study.best_value:.1f} in trial {study.best_trial.number}" if done else ""
        seconds = trial.duration.total_seconds() if trial.duration else 0.0
        of = f" of {self.max_total}" if self.max_total else ""
        print(f"trial {trial.number}{of}: {message} ({seconds:.0f} s){best}", flush=True)
        if self.max_total is not None and counted(study) >= self.max_total:
            study.stop()


def search(study: Study, objective: Objective, args: Namespace) -> bool:
    """Run trials; a crash is recorded as FAILED with its traceback and the study goes on.

    :return: False if the user has interrupted it
    """
    retired = retire_abandoned(study)
    if retired:
        print(f"Trials {retired} had been left by a process that is gone: marked as failed, to be tried again.")
    if args.max_total_trials is not None and counted(study) >= args.max_total_trials:
        print(f"{args.study_name} already has {counted(study)} trials.")
        return True
    n_trials = None if args.max_total_trials is not None else args.n_trials

    def within_total(trial: optuna.Trial) -> float:
        give_back_surplus(trial, args.max_total_trials)
        return objective(trial)

    try:
        study.optimize(
            within_total, n_trials, n_jobs=args.n_jobs, callbacks=[Progress(args.max_total_trials)], catch=(Exception,),
            gc_after_trial=True,
        )  # fmt: skip
    except KeyboardInterrupt:
        print(f"Interrupted: trials {enqueue_interrupted(study)} will be tried again when the study goes on.")
        return False
    return True


def main(arguments: Sequence[str]) -> int:
    """Search, then report.

    :param arguments: command line without the program's name
    :return: exit code: 1 if no trial has completed, 130 after Ctrl-C; that of a worker which has failed
    """
    args = make_parser().parse_args(arguments)
    check_at_least(args, n_trials=1, n_jobs=1, n_seeds=1, n_evaluations=1, eval_episodes=1, max_total_trials=1, workers=1)
    launch = read_launch(args)
    if args.workers is not None and launch.launcher != "ray" and not args.in_team:  # of whom the command line speaks there
        raise BadInput(f"--workers {args.workers} needs --launcher ray; on one machine start the command several times.")
    register()
    args.env, args.gym_packages = known_env(args.env, args.gym_packages)
    use_threads(args)
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # Progress speaks
    grid = parse_grid("--grid", args.grid)
    objective, start, of_start = prepare(args, grid)
    args.study_name = args.study_name or f"{args.algo}_{args.env.replace('/', '-')}_{objective.n_timesteps}"
    folder = Path(args.log_folder, "tune", args.study_name)
    args.storage = args.storage or str(folder / "journal.log")
    if not args.in_team:
        make_folder("--log-folder", folder)
        check_source(folder, args.storage)
    study = open_study(args, objective, start, of_start, grid)
    if not args.in_team:
        note_source(folder, args.storage)
    try:
        if launch.launcher == "ray":
            code = search_together(launch, args.workers, team_arguments(arguments, args, study))
        else:
            code = 0 if search(study, objective, args) else INTERRUPTED
    finally:
        objective.evaluation_envs.close()
    if args.in_team:
        return 0
    completed = write_report(study, args.storage, folder, plots=not args.no_optim_plots)
    return code or (0 if completed else 1)


if __name__ == "__main__":
    sys.exit(run("zoo.tune", main, sys.argv[1:]))
