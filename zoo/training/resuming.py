"""``zoo.train --resume RUN``: a run of GRPO that was stopped or killed goes on as if it had not been, in its own folder."""

from __future__ import annotations

import io
import math
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypedDict

from rl_zoo3.utils import StoreDict
from stable_baselines3.common.callbacks import BaseCallback

from sb_grpo import GRPO, distributed, files
from sb_grpo.checkpoint import read_run

from ..common.command_line import BadInput
from .run_files import Unreadable, check_links, is_run_folder, read_run_files

#: In the run's settings folder.
FILE = "run.zip"
#: Options allowed with ``--resume``; all others are the run's own.
MAY_BE_GIVEN = ("resume", "verbose", "progress", "untrusted", "gym_packages")
#: Options that a run that is not trusted may set; the others leave its folder, or are code.
OF_STRANGERS = (
    "algo", "env", "seed", "n_timesteps", "eval_freq", "eval_episodes", "n_eval_envs", "save_freq", "log_interval", "device",
    "num_threads", "vec_env", "verbose", "progress", "health", "recover", "env_kwargs", "eval_env_kwargs",
)  # fmt: skip
#: Seconds after which the state at a rollout's end is kept in memory once more, and written once more.
KEEP_EVERY = 5.0
WRITE_EVERY = 60.0
SET_ASIDE = "before_"


def take_up_run(given: Namespace, parser: ArgumentParser, not_ours: Collection[str]) -> None:
    """Take all options from the run that goes on.

    :param given: options; changed
    :param parser: that knows their defaults
    :param not_ours: options of rl_zoo3 that are for something else
    :raises BadInput: if there is nothing to go on with, or options are given that the run has decided
    """
    folder = Path(given.resume)
    if distributed.announced().size > 1:
        raise BadInput("--resume goes on with one learner: start it with python -m, not with torchrun.")
    others = [name for name, value in vars(given).items() if name not in MAY_BE_GIVEN and value != parser.get_default(name)]
    if others:
        raise BadInput(
            f"--resume goes on with the run's own options: leave --{others[0].replace('_', '-')} out, or begin a new run from "
            "its model with -i MODEL --continue."
        )
    if not is_run_folder(folder):
        raise BadInput(f"--resume {folder} is no run folder: pass one such as logs/grpo/CartPole-v1_1.")
    (config,) = folder.glob("*/config.yml")
    if not config.with_name(FILE).is_file():
        raise BadInput(
            f"--resume {folder}: there is no {config.parent.name}/{FILE} in it. A run of GRPO writes it once its first "
            f"rollout has been learnt from, and deletes it when it has come to its end; {another_way(folder)}"
        )
    check_links(folder)
    try:
        settings, options = read_run_files(config.parent, not given.untrusted)
        check_kinds(options, parser)
    except BadInput as error:
        message = f"{str(error).rstrip('.')}. Put the file back as it was. Without it: {another_way(folder)}"
        raise BadInput(f"--resume {folder}: {message}") from error
    if given.untrusted:
        options = {name: value for name, value in options.items() if name in OF_STRANGERS}
    arguments = options.get("env_kwargs")
    for name, value in {**options, **settings, **(arguments if isinstance(arguments, dict) else {})}.items():
        if isinstance(value, Unreadable) and name != "hyperparams":
            raise BadInput(f"--resume {folder}: its settings have a Python object as {name}, which no file can say.")
    kept = {name: getattr(given, name) for name in MAY_BE_GIVEN if getattr(given, name) != parser.get_default(name)}
    kept["untrusted"] = given.untrusted
    options = {name: value for name, value in options.items() if name not in not_ours}
    vars(given).update({**options, **kept, "hyperparams": settings, "trial_id": None, "profile": None, "continue_run": False})
    given.trained_agent = str(config.with_name(FILE))
    _stay_beside(folder, given)


def check_kinds(options: Mapping[str, object], parser: ArgumentParser) -> None:
    """See that options are of the kinds that the command line makes of them.

    :raises BadInput: naming the first that is not
    """
    for action in parser._actions:
        value = options.get(action.dest)
        option = f"--{action.dest.replace('_', '-')}"
        if value is None or isinstance(value, Unreadable):
            continue
        kind: type = bool if action.const is True else object
        if action.nargs == "+":
            kind = dict if isinstance(action, StoreDict) else list
        elif action.nargs == "?":
            kind = str
        elif action.type is not None:  # a function of ours makes what the default is
            kind = action.type if isinstance(action.type, type) else type(action.default)
        fits = isinstance(value, (int, float) if kind is float else kind)
        if kind in (int, float) and isinstance(value, bool):
            fits = False
        if not fits or (action.choices is not None and value not in list(action.choices)):
            raise BadInput(f"args.yml has {action.dest}={value!r:.80}, which is no value of {option}")


def _stay_beside(folder: Path, given: Namespace) -> None:
    """Keep the places of files outside the run's folder, also in another working directory.

    :param given: options of the run; updated in place
    """
    below = Path(given.log_folder, "tensorboard")
    given.log_folder = os.path.normpath(folder / ".." / "..")
    if given.untrusted:
        check_links(Path(given.log_folder, "tensorboard"), itself=True)
    if given.tensorboard_log and Path(given.tensorboard_log) == below:
        given.tensorboard_log = None  # the parser puts it beside the runs


def another_way(folder: Path) -> str:
    """Remedy for a run that cannot be resumed exactly.

    :param folder: of the run
    """
    models = sorted(folder.glob("*.zip"), key=lambda model: model.stat().st_mtime)
    if not models:
        return "no model of it was saved either, so there is nothing to go on from: start it anew."
    return f"begin a new run from its model with -i {models[-1]} --continue -n STEPS."


class Known(TypedDict):
    """State of :class:`RunSaves`."""

    seconds: float
    monitors: dict[str, int]


class RunSaves(BaseCallback):
    """Saves the run once its first rollout has been learnt from, every minute, with every checkpoint, and when it is stopped.

    A stop comes in the middle of a rollout, when there is nothing whole to save: so how a rollout ended is kept in memory, at
    most every five seconds, and written then.

    :param every: vector steps; 0 or less: no checkpoints
    :param folder: of the run
    :param path: of the file
    """

    def __init__(self, every: int, folder: Path, path: Path) -> None:
        super().__init__()
        self.every = every
        self.folder = folder
        self.path = path
        self.seconds_before = 0.0  #: that the run took before it was resumed
        self.start = self.kept_at = time.monotonic()
        self.written_at = -math.inf
        self.kept: list[io.BytesIO] = []
        self.due = False

    @property
    def seconds(self) -> float:
        """That the run has taken in all."""
        return self.seconds_before + time.monotonic() - self.start

    def _on_step(self) -> bool:
        self.due |= self.every > 0 and self.n_calls % self.every == 0
        return True

    def _on_rollout_end(self) -> None:
        assert isinstance(self.model, GRPO)
        now = time.monotonic()
        if self.due or now - self.written_at > WRITE_EVERY:
            self.due = False
            self.written_at = now
            self.kept_at = now
            self.kept = []
            self.model.save_run(self.path)
        elif now - self.kept_at > KEEP_EVERY or not self.kept:
            self.kept_at = now
            self.kept = [*self.kept[-1:], io.BytesIO()]
            self.model.save_run(self.kept[-1])

    def stopped(self) -> None:
        """Write the state after the last complete rollout, unless already done."""
        whole = [kept for kept in self.kept if kept.getbuffer().nbytes]
        try:
            if whole:
                files.write(self.path, whole[-1].getvalue())
        except OSError as error:
            print(f"{self.path} cannot be written ({error.strerror}): it is as it was saved before.")
        if self.path.exists():
            print(f"The run can go on: --resume {self.folder}")

    def finished(self) -> None:
        """There is nothing to go on with any more."""
        self.path.unlink(missing_ok=True)

    def state_dict(self) -> Known:
        """Seconds, and how long the monitor files were."""
        sizes = {path.name: path.stat().st_size for path in self.folder.glob("*.monitor.csv")}
        return {"seconds": self.seconds, "monitors": sizes}

    def load_state_dict(self, state: Known) -> None:
        """Count the seconds on; :func:`set_monitors_aside` is for the rest."""
        self.seconds_before = state["seconds"]


def set_monitors_aside(folder: Path, run: Path, device: str) -> None:
    """Rename the run's monitor files, without the rows after the save; new files begin beside them.

    :param folder: of the run
    :param run: its saved state
    :raises BadInput: if the saved state is broken
    """
    try:
        state = read_run(run, device)
    except (ValueError, RuntimeError) as error:  # RuntimeError: torch knows no such device
        raise BadInput(f"{str(error).rstrip('.')}. Without it: {another_way(folder)}") from error
    try:
        found = [callback["known"] for callback in state["loop"]["callbacks"] if callback["kind"].endswith(RunSaves.__name__)]
        sizes = {str(name): int(size) for name, size in found[0]["monitors"].items()} if found else {}
        mark = f"{SET_ASIDE}{int(state['own']['_total_timesteps'])}_{int(state['loop']['iteration'])}."
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{run}: the state of the run is broken ({error!r}). Without it: {another_way(folder)}") from error
    for path in sorted(folder.glob("*.monitor.csv")):
        aside = path if path.name.startswith(SET_ASIDE) else path.with_name(mark + path.name)
        # A resume that was killed before it saved anything has set them aside already.
        known = path.name if path.name in sizes else path.name.removeprefix(mark)
        if known not in sizes or (aside != path and aside.exists()):
            path.unlink()  # all of it came after the save
            continue
        with open(path, "rb") as file:
            kept = file.read(max(sizes[known], 0))
        files.write(aside, kept)  # a new file, because the old name may be a link
        if aside != path:
            path.unlink()
