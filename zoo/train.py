"""Train an agent: rl_zoo3's command line with GRPO in it.

``python -m zoo.train --env CartPole-v1`` trains GRPO with the settings of ``zoo/hyperparams/grpo.yml``; ``--algo ppo`` and
the other algorithms of rl_zoo3 use its own. The run's folder gets the model, its settings, evaluations, a learning curve
and ``metrics.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import rl_zoo3.train
from stable_baselines3.common.base_class import BaseAlgorithm

from sb_grpo import distributed
from sb_grpo.profiles import PROFILES
from sb_grpo.types import Breakdown

from .common.command_line import (
    INTERRUPTED,
    BadInput,
    Parser,
    Settings,
    add_untrusted,
    call,
    check_at_least,
    check_seed,
    default_threads,
    drop_dead_outputs,
    known_env,
    one_line,
    run,
)
from .common.plain_files import HYPERPARAMS
from .common.provenance import without_passwords
from .common.tracking import check_wandb, is_of_wandb, not_begun
from .common.tracking import finish as finish_tracking
from .training.experiment import HEALTH, Experiment, register
from .training.resuming import check_kinds, take_up_run
from .training.run_files import Unreadable, read_run_files


def check_learners(given: Namespace) -> None:
    """Check that the run supports several learners, and give all of them one seed.

    :param given: options; updated in place
    :raises BadInput: for another algorithm than GRPO
    """
    rank, n = distributed.announced()
    if n == 1:
        return
    if given.algo != "grpo":
        raise BadInput(f"--algo {given.algo} has one learner, but torchrun has started {n}: start it with python -m.")
    if rank > 0:
        given.track = given.progress = False
    if given.seed < 0:
        distributed.join(given.device)
        given.seed = distributed.gathered(int(np.random.randint(2**31)))[0]


class Follower(Experiment):
    """The run of a rank that neither logs nor saves nor evaluates; whatever needs a folder has one that goes with it."""

    def create_log_folder(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.save_path = self._folder.name
        self.params_path = f"{self.save_path}/{self.env_name}"
        Path(self.params_path).mkdir()

    def create_callbacks(self) -> None:
        self.save_freq = self.eval_freq = -1
        self.show_progress = False
        self.tensorboard_log = None
        super().create_callbacks()

    def save_trained_model(self, model: BaseAlgorithm) -> None:
        """Rank 0 has done it."""


#: Options of rl_zoo3's search, which zoo.tune has in their place.
SEARCH = frozenset(
    "--optimize-hyperparameters --optimization-log-path --n-trials --max-total-trials --n-jobs --sampler --pruner "
    "--n-startup-trials --n-evaluations --no-optim-plots".split()
)


def times(text: str) -> int:
    """A whole number from 0.

    :raises ValueError: for anything else
    """
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


class TrainParser(Parser):
    """rl_zoo3's parser with further options, other defaults, and checks before the start."""

    def __init__(self) -> None:
        self.of_a_search: dict[str, tuple[str, object]] = {}  #: by destination: option, and rl_zoo3's default
        super().__init__("zoo.train", __doc__)
        self.add_argument(
            "--profile",
            choices=list(PROFILES),
            help="how bold a policy step is (sb_grpo/profiles.py), laid over the env's entry; --hyperparams goes over both",
        )

        self.add_argument(
            "--health", choices=list(HEALTH), help="watch the training; exit code 3 if a rule is broken at its end"
        )
        self.add_argument(
            "--recover",
            type=times,
            default=0,
            metavar="N",
            help="after a breakdown go back to the last healthy weights and halve the learning rate, at most N times",
        )
        self.add_argument(
            "--continue",
            dest="continue_run",
            action="store_true",
            help="the run of --trained-agent goes on: its settings, step count and schedules, up to -n steps in all",
        )
        self.add_argument(
            "--resume",
            metavar="RUN",
            help="folder of a run of grpo that was stopped or killed: it goes on there as if it had not been (docs/saving.md)",
        )
        add_untrusted(self)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Options of a search are known, so that they can be refused, but not shown."""
        if not SEARCH.intersection(names):
            return super().add_argument(*names, **options)
        unless_given = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
        action = super().add_argument(*names, **{**options, **unless_given})
        self.of_a_search[action.dest] = names[-1], options.get("default")
        return action

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.set_defaults(algo="grpo", tensorboard_log=None, num_threads=default_threads())
        given = super().parse_args(args, namespace)
        if given.resume:
            take_up_run(given, self, self.of_a_search)
        if given.tensorboard_log is None:
            given.tensorboard_log = str(Path(given.log_folder, "tensorboard"))
        for dest, (name, default) in self.of_a_search.items():
            if hasattr(given, dest):
                raise BadInput(f"{name}: the search is a command of its own, {call('tune')}.")
            setattr(given, dest, default)
        given.env, given.gym_packages = known_env(given.env, given.gym_packages)
        _check_options(given)
        check_learners(given)
        if given.continue_run:
            go_on(given, self)
        if given.profile:
            given.hyperparams = {**PROFILES[given.profile], **(given.hyperparams or {})}
        if given.trial_id is not None:
            take_up_trial(given)
        if given.conf_file is None and given.algo == "grpo":
            given.conf_file = str(HYPERPARAMS)
        return given


def _check_options(given: Namespace) -> None:
    """Refuse options that rl_zoo3 would answer with a traceback, or silently ignore.

    :raises BadInput: naming the remedy
    """
    if given.n_timesteps == 0 or given.n_timesteps < -1:
        raise BadInput(f"--n-timesteps {given.n_timesteps}: at least 1; without it, the settings' own number.")
    if given.log_interval == 0 or given.log_interval < -2:
        raise BadInput(f"--log-interval {given.log_interval}: at least 1; -1: the algorithm's own; -2: no tables.")
    check_at_least(given, n_eval_envs=1, eval_episodes=1)
    check_seed(given.seed, least=-math.inf)
    if given.trained_agent and not (given.trained_agent.endswith(".zip") and Path(given.trained_agent).is_file()):
        raise BadInput(f"--trained-agent {given.trained_agent}: there is no such .zip file.")
    if given.continue_run and not given.trained_agent:
        raise BadInput("--continue needs --trained-agent: the model of the run that goes on.")
    _check_untrusted(given)
    for name in ("profile", "health", "recover"):
        if getattr(given, name) and given.algo != "grpo":
            raise BadInput(f"--{name} {getattr(given, name)} is for grpo, not for {given.algo}.")
    if given.trial_id is not None and not (given.storage and given.study_name):
        raise BadInput("--trial-id needs --storage and --study-name.")
    if given.trial_id is None and (given.storage or given.study_name) and not given.resume:
        raise BadInput("--storage and --study-name say where the settings of --trial-id are from: give it, or leave them out.")
    _check_tracking(given)


def _check_untrusted(given: Namespace) -> None:
    """See that there is something that can be read without running any of it.

    :raises BadInput: for other algorithms, and for settings that are a program
    """
    if given.untrusted and (given.algo != "grpo" or not (given.trained_agent or given.conf_file)):
        raise BadInput(
            "--untrusted says how --trained-agent and --conf-file are read, and only models of grpo can be read like that."
        )
    if given.untrusted and given.conf_file and not given.conf_file.endswith((".yml", ".yaml")):
        raise BadInput(f"--untrusted: --conf-file {given.conf_file} is a program, which would run: pass a .yml file.")


def _check_tracking(given: Namespace) -> None:
    """Check that the package for tracking is installed.

    :raises BadInput: naming the missing package
    """
    if given.track:
        check_wandb()
        os.environ.setdefault("WANDB_DIR", given.log_folder)  # beside the runs, not in the working directory
        Path(os.environ["WANDB_DIR"]).mkdir(parents=True, exist_ok=True)
        if getattr(given, "wandb_run", None):  # of --resume
            os.environ.update(WANDB_RUN_ID=given.wandb_run["id"], WANDB_RESUME="allow")


def go_on(given: Namespace, parser: Parser) -> None:
    """Fill missing options from the run to continue.

    :param given: options; updated in place
    :param parser: knows the types of the options
    :raises BadInput: if the model has no run or another env, or if its settings cannot be stored in a file
    """
    folder = Path(given.trained_agent).parent
    found = list(folder.glob("*/config.yml"))
    if len(found) != 1:
        raise BadInput(f"--continue: {given.trained_agent} is in no run folder; without --continue a new run begins from it.")
    settings, options = read_run_files(found[0].parent, not given.untrusted)
    check_kinds(options, parser)
    if options.get("env", given.env) != given.env or options.get("algo", given.algo) != given.algo:
        raise BadInput(f"--continue: the run is of --algo {options.get('algo')} --env {options.get('env')}: say so.")
    given.hyperparams = {**settings, **(given.hyperparams or {})}
    for name, value in given.hyperparams.items():
        if isinstance(value, Unreadable):
            raise BadInput(f"--continue: {found[0]} has a Python object as {name}: pass --hyperparams {name}:VALUE.")
    for name in ("env_kwargs", "eval_env_kwargs"):
        vars(given)[name] = vars(given)[name] or options.get(name)
    if given.n_timesteps == -1:
        given.n_timesteps = options.get("n_timesteps", -1)


def take_up_trial(given: Namespace) -> None:
    """Take settings, and the env's arguments if they are not given, from a trial of ``zoo.tune``.

    :param given: options; changed
    :raises BadInput: if there is no such trial, or it was of something else
    """
    from .tuning.study import load_study, settings_of_trial  # with the database drivers

    if given.conf_file is not None or given.continue_run:
        other = "--continue" if given.conf_file is None else f"--conf-file {given.conf_file}"
        raise BadInput(f"--trial-id {given.trial_id}: a trial has all its settings: leave {other} out.")
    study = load_study(given.storage, given.study_name)
    settings = settings_of_trial(study, given.trial_id)
    about = study.user_attrs
    there = {name: about.get(name, getattr(given, name)) for name in ("algo", "env")}
    if there != {name: getattr(given, name) for name in there}:
        raise BadInput(
            f"--trial-id {given.trial_id}: study {given.study_name} is of --algo {there['algo']} --env {there['env']}, not "
            f"--algo {given.algo} --env {given.env}: say so, or take a study of that."
        )
    given.hyperparams = {**settings, **(given.hyperparams or {})}
    for name in ("env_kwargs", "eval_env_kwargs"):
        vars(given)[name] = vars(given)[name] or about.get(name)
    given.storage = without_passwords(given.storage)  # of no more use than to say where the settings are from


#: Exit code of a training at whose end a rule of ``--health`` is broken, or that broke down.
UNHEALTHY = 3


def stop(signum: int, frame: FrameType | None) -> None:
    """Do as Ctrl-C does: SIGTERM comes from a queue or ``kill``, SIGHUP from a terminal that was closed; the second one ends
    the process at once."""
    signal.signal(signum, signal.SIG_DFL)
    drop_dead_outputs()
    raise KeyboardInterrupt


@contextlib.contextmanager
def silence(arguments: Sequence[str]) -> Iterator[None]:
    """Suppress all prints with ``--verbose 0`` and on all ranks but 0; errors and warnings still appear.

    A progress bar with ``--verbose 0`` shows the bar and the result, without tables.

    :param arguments: command line
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--verbose", type=int, default=1)
    parser.add_argument("-P", "--progress", action="store_true")
    try:
        given = parser.parse_known_args(list(arguments))[0]
        heard = given.verbose != 0 or given.progress
    except argparse.ArgumentError:
        heard = True  # said by the real parser
    if heard and distributed.announced().rank == 0:
        yield
        return
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        yield


def main(arguments: Sequence[str]) -> int:
    """Run rl_zoo3's ``train`` with our parser and our experiment.

    :param arguments: command line without the program's name
    :return: exit code
    """
    register()
    experiments: list[Experiment] = []

    def experiment(*args: Any, **kwargs: Any) -> Experiment:
        kind = Follower if distributed.announced().rank > 0 else Experiment
        experiments.append(kind(*args, **kwargs))
        return experiments[-1]

    rl_zoo3.train.argparse = SimpleNamespace(ArgumentParser=TrainParser)  # type: ignore
    rl_zoo3.train.StoreDict = Settings  # type: ignore[attr-defined]
    rl_zoo3.train.ExperimentManager = experiment  # type: ignore
    sys.argv = [call("train"), *arguments]
    # nohup has SIGHUP ignored, which stays so.
    requested = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in requested}
    try:
        with silence(arguments):
            rl_zoo3.train.train()
    except KeyboardInterrupt:  # not while it trained
        print("zoo.train: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Breakdown as error:  # the model is still saved
        print(f"zoo.train: {one_line(error)}", file=sys.stderr)
        return UNHEALTHY
    except Exception as error:
        if experiments or not is_of_wandb(error):  # rl_zoo3 begins wandb's run before it makes the experiment
            raise
        raise not_begun(error) from error
    finally:
        for one in experiments:
            one.let_go()
        if experiments and experiments[-1].args.track:
            finish_tracking()
        for number, handler in before.items():
            signal.signal(number, handler)
    health = experiments[-1].health
    return UNHEALTHY if health is not None and not health.ok else 0


if __name__ == "__main__":
    sys.exit(run("zoo.train", main, sys.argv[1:]))
