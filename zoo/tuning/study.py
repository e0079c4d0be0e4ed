"""A study that survives its processes: where trials are stored, who is at work on them, how each is drawn."""

from __future__ import annotations

import json
import os
import re
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import optuna
import psutil
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError

from sb_grpo import files

from ..common.command_line import BadInput, did_you_mean
from ..common.plain_files import Hyperparams
from ..common.provenance import without_passwords
from .search_space import AS_IT_STANDS


def mend(path: Path) -> int:
    """Drop an incomplete last line after a crash; the next append would otherwise make a broken line in the middle.

    No other process can be writing it, because every write takes the journal's lock, which is held here.

    :param path: of the journal
    :return: number of dropped bytes
    """
    if not path.exists() or _ends_well(path):
        return 0
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        rest = content[whole:]
        if not rest:
            return 0
        with path.open("r+b") as file:
            if _is_json(rest):  # but for its end
                file.seek(0, 2)
                file.write(b"\n")
                return 0
            file.truncate(whole)
        return len(rest)
    finally:
        lock.release()


def _ends_well(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - 1, 0))
        return file.read(1) in (b"", b"\n")


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats and the grouped TPE are, by name, since 2020

MAX_RETRIES = 2
#: Attribute of trials that do not count: see :func:`give_back_surplus`.
SURPLUS = "surplus"
#: Evaluations of a trial, counted from 1, that the median pruner lets pass.
UNJUDGED = 1
#: Seconds after which a trial without a worker's name counts as abandoned: naming it is the first thing a worker does.
NAMING = 60.0

SAMPLERS: dict[str, Callable[[int, int], BaseSampler]] = {
    "tpe": lambda seed, startup: TPESampler(
        seed=seed, n_startup_trials=startup, multivariate=True, group=True, constant_liar=True
    ),
    "gp": lambda seed, startup: GPSampler(seed=seed, n_startup_trials=startup),
    "random": lambda seed, startup: RandomSampler(seed=seed),
}
PRUNERS: dict[str, Callable[[int, int], BasePruner]] = {
    "median": lambda startup, n_reports: MedianPruner(startup, n_warmup_steps=1 + UNJUDGED),
    "halving": lambda startup, n_reports: SuccessiveHalvingPruner(min_resource=1, reduction_factor=4),
    "hyperband": lambda startup, n_reports: HyperbandPruner(min_resource=1, max_resource=n_reports),
    "none": lambda startup, n_reports: NopPruner(),
}


def derived_seed(*numbers: int) -> int:
    """A seed that is a pure function of the numbers and shares nothing with its neighbours'."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 1


class SeededByTrial(BaseSampler):
    """A sampler whose draws depend on (seed, number of the trial) and the study's history alone.

    One seed for the whole sampler would make a continued study, and every further process, draw the first trials again.

    :param make: builds the real sampler from a seed
    :param seed: of the study
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self.make = make
        self.seed = seed
        self._samplers: dict[int, BaseSampler] = {}

    def _sampler(self, trial: FrozenTrial) -> BaseSampler:
        if trial.number not in self._samplers:
            self._samplers[trial.number] = self.make(derived_seed(self.seed, trial.number))
        return self._samplers[trial.number]

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._sampler(trial).before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        return self._sampler(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        return self._sampler(trial).sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._samplers.pop(trial.number, self.make(0)).after_trial(study, trial, state, values)


#: Of the address of a proxy.
PROXY = "grpc://"
FORMS = f"give a journal file that ends in .log, the URL of a database such as sqlite:///study.db, or {PROXY}HOST:PORT"


def open_storage(storage: str) -> BaseStorage:
    """A journal file, any database that SQLAlchemy has a driver for, or one behind ``optuna.storages.run_grpc_proxy_server``.

    :param storage: path that ends in ``.log``, or a URL such as ``sqlite:///study.db`` or ``grpc://host:13000``
    :raises BadInput: if it cannot be opened
    """
    try:
        if storage.startswith(PROXY):
            return _open_proxy(storage.removeprefix(PROXY))
        if "://" in storage:
            return _open_database(storage)
        if storage.endswith(".log"):
            Path(storage).parent.mkdir(parents=True, exist_ok=True)
            if lost := mend(Path(storage)):
                print(f"{storage} was cut inside its last line: {lost} bytes dropped, all before them kept.")
            return JournalStorage(JournalFileBackend(storage))
    except Exception as error:  # each driver has its own
        no_url = isinstance(error, ArgumentError | ValueError) and not isinstance(error, BadInput)
        reason = FORMS if no_url else f"{error}."  # a message about a URL may show parts of it
        raise BadInput(f"--storage {without_passwords(storage)}: {reason}") from error
    raise BadInput(f"--storage {storage} is no storage: {FORMS}.")


def _open_proxy(address: str) -> BaseStorage:
    from optuna.storages import GrpcStorageProxy  # needs grpcio, of the extra [scale]

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"write {PROXY}HOST:PORT, where optuna.storages.run_grpc_proxy_server listens")
    _wait_for(host, int(port))  # Optuna itself would wait for ever
    return GrpcStorageProxy(host=host, port=int(port))


def _wait_for(host: str, port: int, patience: float = 5.0) -> None:
    """See that somebody listens, or soon does.

    :param patience: seconds
    :raises OSError: if nobody does
    """
    until = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host, port), timeout=patience).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _open_database(url: str) -> RDBStorage:
    patience = [1.0, 2.0, 4.0]
    while True:
        try:
            # A worker on another machine that falls silent is found by its missing heartbeat.
            return RDBStorage(url, heartbeat_interval=60, grace_period=180, heartbeat_stale_trial_callback=enqueue_again)
        except (IntegrityError, OperationalError):
            # Optuna does not guard the creation of the tables: of two processes that begin at once one fails.
            if not patience:
                raise
            time.sleep(patience.pop(0))


def worker() -> list[str | float]:
    """Identity of this worker: host, process id and start time, because ids are reused."""
    return [socket.gethostname(), os.getpid(), psutil.Process().create_time()]


def _abandoned(trial: FrozenTrial) -> bool:
    host, pid, started = trial.user_attrs.get("worker", [None, 0, 0.0])
    if host is None:
        return trial.datetime_start is not None and (time.time() - trial.datetime_start.timestamp()) > NAMING
    if host != socket.gethostname():
        return False  # heartbeats tell
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) > 1.0 or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def enqueue_again(study: Study, trial: FrozenTrial) -> None:
    """Put an abandoned trial's settings back into the queue, unless it took its process with it several times."""
    first = trial.user_attrs.get("first_try", trial.number)
    if len([t for t in study.get_trials(deepcopy=False) if t.user_attrs.get("first_try") == first]) < MAX_RETRIES:
        kept = {AS_IT_STANDS: True} if AS_IT_STANDS in trial.user_attrs else {}
        study.enqueue_trial(trial.params, user_attrs={"first_try": first, "retry_of": trial.number, **kept})


def retire_abandoned(study: Study) -> list[int]:
    """Mark trials whose process is gone as failed, and enqueue them again.

    :return: their numbers
    """
    retired = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if not _abandoned(trial):
            continue
        try:
            study.tell(trial.number, state=TrialState.FAIL)
        except (ValueError, UpdateFinishedTrialError):
            continue  # another process that shares the study was faster
        enqueue_again(study, trial)
        retired.append(trial.number)
    return retired


def enqueue_interrupted(study: Study) -> list[int]:
    """Enqueue the trials of this process again that Ctrl-C has ended: Optuna has marked them as failed.

    :return: their numbers
    """
    trials = study.get_trials(deepcopy=False)
    again = _tried_again(study)
    ended = [t for t in trials if t.state == TrialState.FAIL and failure(t) is None and t.number not in again]
    mine = [t for t in ended if t.user_attrs.get("worker") == worker()]
    for trial in mine:
        enqueue_again(study, trial)
    return [trial.number for trial in mine]


def _tried_again(study: Study) -> set[int]:
    return {t.user_attrs["retry_of"] for t in study.get_trials(deepcopy=False) if "retry_of" in t.user_attrs}


def counted(study: Study) -> int:
    """Trials that are done or under way; one that was abandoned counts where it is tried again."""
    return len(_counted(study))


def _counted(study: Study) -> list[int]:
    """Their numbers."""
    trials = study.get_trials(deepcopy=False)
    again = _tried_again(study)
    left_out = {t.number for t in trials if SURPLUS in t.user_attrs or t.state == TrialState.WAITING}
    left_out |= {t.number for t in trials if t.state == TrialState.FAIL and t.number in again}
    return [t.number for t in trials if t.number not in left_out]


def give_back_surplus(trial: optuna.Trial, max_total: int | None) -> None:
    """End a trial at once that the study has no place for: processes that looked for one at the same time have begun too many.

    :param max_total: trials that the study is to have; None: any number
    :raises optuna.TrialPruned: if as many were begun before it; it does not count then
    """
    if max_total is None or sum(number < trial.number for number in _counted(trial.study)) < max_total:
        return
    trial.set_user_attr(SURPLUS, True)
    trial.study.stop()
    raise optuna.TrialPruned(f"The study has its {max_total} trials.")


def failure(trial: FrozenTrial) -> str | None:
    """Cause of a crashed trial: the first line of its exception's message."""
    text: str | None = trial.user_attrs.get("traceback")
    if not text:
        return None
    frames, *message = text.strip().rpartition("Traceback (most recent call last):")[2].splitlines()
    return next((line for line in message if not line.startswith(" ")), frames)


def load_study(storage: str, name: str) -> Study:
    """A study that is there.

    :raises BadInput: if there is none of that name
    """
    if "://" not in storage and not Path(storage).exists():
        raise BadInput(f"--storage {storage}: there is no such file.")
    opened = open_storage(storage)
    names = optuna.get_all_study_names(opened)
    if name not in names:
        raise BadInput(f"--study-name {name}: not in {without_passwords(storage)}.{did_you_mean(name, names)}")
    return optuna.load_study(study_name=name, storage=opened)


#: Beside a study's results: where its trials are stored.
SOURCE = "storage.txt"


def check_source(folder: Path, storage: str) -> None:
    """See that the results in a study's folder are not those of a study of the same name in another storage.

    :param folder: of the study; one without the note, of a version before it was kept, is anybody's
    :raises BadInput: if results would be overwritten
    """
    note = folder / SOURCE
    here = _source(folder, storage)
    noted = note.read_text().strip() if note.exists() else here
    if noted != here:
        raise BadInput(
            f"{folder} holds the results of the study of this name in {noted}, and that in {here} would overwrite them: "
            f"choose another --study-name, or another folder with -f. If both are one place, delete {note}."
        )


def note_source(folder: Path, storage: str) -> None:
    """Write the file for :func:`check_source` in a study's folder."""
    files.write(folder / SOURCE, f"{_source(folder, storage)}\n")


def _source(folder: Path, storage: str) -> str:
    """A storage as it is found again: files with their whole path, but for those in the folder, which may be moved with it."""
    scheme, path = re.fullmatch(r"(sqlite[^:]*:///)?(.*)", storage, re.DOTALL).groups(default="")  # type: ignore[union-attr]
    if not scheme and "://" in path:
        return without_passwords(storage)
    whole = Path(path).resolve()
    home = folder.resolve()
    return f"{scheme}{whole.relative_to(home) if whole.is_relative_to(home) else whole}"


def settings_of_trial(study: Study, number: int) -> Hyperparams:
    """All settings of a trial of ``zoo.tune``, in the form of an entry.

    :raises BadInput: if there are none
    """
    trials = study.get_trials(deepcopy=False)
    name = study.study_name
    if not 0 <= number < len(trials) or "settings" not in trials[number].user_attrs:
        raise BadInput(f"--trial-id {number}: {name} has no such trial with settings of zoo.tune.")
    settings: Hyperparams = trials[number].user_attrs["settings"]
    if not isinstance(settings, dict):
        raise BadInput(f"--trial-id {number}: the settings of {name} are {type(settings).__name__}, not a mapping.")
    return settings
