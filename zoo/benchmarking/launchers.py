"""Launchers of a benchmark's runs: local processes, a Ray cluster, or the queue of a SLURM cluster by submitit.

A run on another machine leaves no files there: its results return as bytes. The machines need the same packages, and no common
file system.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tempfile
import time
import zipfile
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from json import dumps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from sb_grpo import files

from ..common.cluster import Launch, Resources, connect_ray, room_in, start_part, wait_for
from ..common.command_line import BadInput, one_line
from .results import read_run
from .specs import RunOptions, Spec

if TYPE_CHECKING:
    from submitit import Job


@dataclass(frozen=True)
class Brought:
    """Files and exit code of a remote run.

    :param code: exit code of the run
    :param log: its output
    :param result: its result file; empty: none
    :param folder: its folder as a zip, if it is to be kept; else empty
    """

    code: int
    log: str
    result: bytes = b""
    folder: bytes = b""


def start_process(spec: Spec, options: RunOptions, folder: Path) -> subprocess.Popen[bytes]:
    """Start a run in a new process, which ends when its standard input is closed.

    :param spec: the run
    :param folder: for its log and other files
    """
    given = dumps({**asdict(options), "folder": str(folder)})
    with (folder / "log.txt").open("w") as log:
        return start_part("benchmarking.worker", dumps(asdict(spec)), given, log=log)


def run_here(spec: Spec, options: RunOptions) -> Brought:
    """Execute a run here. It ends with this process, also if that is killed.

    :param spec: the run
    :param options: ``out`` is ignored
    """
    with tempfile.TemporaryDirectory(prefix="sb_grpo_") as scratch:
        out = Path(scratch, "out")
        folder = Path(scratch, "run")
        folder.mkdir()
        code = wait_for(start_process(spec, replace(options, out=str(out)), folder))
        result = spec.file(out)
        log = (folder / "log.txt").read_text()
        if code != 0:
            return Brought(code, log)
        return Brought(code, log, result.read_bytes(), _packed(folder) if options.keep else b"")


def _packed(folder: Path) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", strict_timestamps=False) as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, path.relative_to(folder))
    return archive.getvalue()


def deliver(brought: Brought, result: Path) -> None:
    """Write the files of a remote run to the places of a local run.

    :param result: path of the result file; the kept folder is written beside it
    """
    if brought.folder:
        folder = result.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(io.BytesIO(brought.folder)) as packed:  # unlike tarfile's, safe on every Python
            packed.extractall(folder)
    result.parent.mkdir(parents=True, exist_ok=True)
    files.write(result, brought.result)  # last: a run with a result file is done


def run_here_and_deliver(spec: Spec, options: RunOptions) -> Brought:
    """Execute a run here, on a machine with access to the output folder: the result is written even without the caller.

    :param spec: the run
    :param options: with an absolute path as ``out``
    :return: exit code and log without the files
    """
    brought = run_here(spec, options)
    if brought.code == 0:
        deliver(brought, spec.file(Path(options.out)))
    return Brought(brought.code, brought.log)


# ---------------------------------------------------------------- running runs

DONE = "done"
RUNNING = "running"
FAILED = "failed"
LEFT = "left"
#: A run is not retried after this many dead machines, because it may kill them.
MAX_LOSSES = 3


class Worker(ABC):
    """Base of running runs.

    :param spec: the run
    """

    def __init__(self, spec: Spec, options: RunOptions) -> None:
        self.spec = spec
        self.started = time.perf_counter()
        self.took = 0.0
        self.complaint = ""
        self.result = spec.file(Path(options.out))
        self.log = self.result.with_suffix(".failed.log")
        self.log.unlink(missing_ok=True)
        self.code: int | None = None  #: exit code, once the run has ended

    @property
    def name(self) -> str:
        return f"{self.spec.env} {self.spec.label} seed {self.spec.seed}"

    @abstractmethod
    def has_ended(self) -> bool:
        """Whether :meth:`outcome` is available."""

    @abstractmethod
    def bring(self) -> str:
        """Put the files of the ended run in their places, and set ``code``.

        :return: its output
        """

    @abstractmethod
    def stop(self) -> None:
        """End the run and leave nothing behind."""

    def outcome(self) -> tuple[str, str]:
        """State after the run has ended, and a line for the log."""
        self.took = time.perf_counter() - self.started
        printed = self.bring()
        if self.code == 0:
            return DONE, f"{self.name}: mean return {read_run(self.result).score:.1f} in {self.took:.0f} s"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text(printed)
        last = (printed.strip().splitlines() or ["no output"])[-1]
        self.complaint = f"{self.name} failed with code {self.code}: {last} (log: {self.log})"
        return FAILED, self.complaint


class LocalWorker(Worker):
    """Run in a local process, which ends when its standard input is closed."""

    def __init__(self, spec: Spec, options: RunOptions) -> None:
        super().__init__(spec, options)
        self.folder = self.result.with_suffix(".run")
        self.keep = options.keep
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = start_process(spec, options, self.folder)

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def bring(self) -> str:
        self.code = self.process.returncode
        printed = (self.folder / "log.txt").read_text()
        self._tidy()
        return printed

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._tidy()

    def _tidy(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.keep and self.process.returncode == 0:
            kept = self.folder.with_suffix("")
            shutil.rmtree(kept, ignore_errors=True)
            self.folder.rename(kept)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


class MachineGone(Exception):
    """Error: the machine or the process died without a result."""


class RemoteWorker(Worker):
    """Base of runs on other machines, or in a launcher's process.

    :param losses: number of machines that have died during this run
    """

    def __init__(self, spec: Spec, options: RunOptions, losses: int) -> None:
        super().__init__(spec, options)
        self.losses = losses

    @abstractmethod
    def brought(self) -> Brought:
        """Wait for the files of the run.

        :raises MachineGone: if there will be none
        """

    def bring(self) -> str:
        brought = self.brought()
        self.code = brought.code
        if brought.result:
            deliver(brought, self.result)
        return brought.log

    def outcome(self) -> tuple[str, str]:
        try:
            return super().outcome()
        except MachineGone as gone:
            self.losses += 1
            if self.losses < MAX_LOSSES:
                return LEFT, f"{self.name}: its machine is gone ({gone}), so it begins anew"
            self.code = 1
            self.complaint = f"{self.name} failed: {self.losses} machines have died under it, the last with: {gone}"
            return FAILED, self.complaint


class RayWorker(RemoteWorker):
    """Task of a Ray cluster.

    :param reference: Ray's, to the result
    """

    def __init__(self, spec: Spec, options: RunOptions, losses: int, ray: ModuleType, reference: object) -> None:
        super().__init__(spec, options, losses)
        self.ray = ray
        self.reference = reference

    def has_ended(self) -> bool:
        return bool(self.ray.wait([self.reference], timeout=0)[0])

    def brought(self) -> Brought:
        try:
            brought: Brought = self.ray.get(self.reference)
            return brought
        except self.ray.exceptions.RayTaskError:
            raise  # an error of the run itself
        except self.ray.exceptions.RayError as error:
            raise MachineGone(type(error).__name__) from error

    def stop(self) -> None:
        self.ray.cancel(self.reference, force=True)


class SubmititWorker(RemoteWorker):
    """Job of submitit.

    :param gone: type of the error of a job without a result
    """

    def __init__(self, spec: Spec, options: RunOptions, losses: int, job: Job[Brought], gone: type[Exception]) -> None:
        super().__init__(spec, options, losses)
        self.job = job
        self.gone = gone

    def has_ended(self) -> bool:
        return bool(self.job.done())

    def brought(self) -> Brought:
        try:
            return self.job.result()
        except self.gone as error:
            raise MachineGone(f"job {self.job.job_id}, {self.job.state}") from error

    def stop(self) -> None:
        self.job.cancel()


# ---------------------------------------------------------------- launchers

#: Jobs in a SLURM queue at a time, by default: schedulers limit the jobs of one user.
MOST_SUBMITTED = 100


class Launcher(ABC):
    """Starts runs, up to a number at a time.

    :param jobs: that number; None: as many as there is room for
    """

    def __init__(self, jobs: int | None) -> None:
        self.jobs = jobs or os.cpu_count() or 1

    def room(self) -> int:
        """Runs at a time."""
        return self.jobs

    @abstractmethod
    def start(self, spec: Spec, options: RunOptions) -> Worker:
        """Begin a run."""

    @abstractmethod
    def close(self) -> None:
        """Release the launcher's resources after the last run."""


class LocalLauncher(Launcher):
    """Processes of this machine."""

    def start(self, spec: Spec, options: RunOptions) -> Worker:
        return LocalWorker(spec, options)

    def close(self) -> None:
        """Do nothing: the workers have ended."""


class RemoteLauncher(Launcher):
    """Base of launchers on other machines, which counts machines that died by run."""

    def __init__(self, jobs: int | None) -> None:
        super().__init__(jobs)
        self._started: dict[Spec, RemoteWorker] = {}

    def start(self, spec: Spec, options: RunOptions) -> Worker:
        before = self._started.get(spec)
        self._started[spec] = self.send(spec, options, before.losses if before else 0)
        return self._started[spec]

    @abstractmethod
    def send(self, spec: Spec, options: RunOptions, losses: int) -> RemoteWorker:
        """Submit a run."""


class RayLauncher(RemoteLauncher):
    """Tasks of a Ray cluster: machines may come and go while it works.

    :param launch: the cluster, and the resources of a run
    :param jobs: runs at a time; None: as many as the cluster has room for
    :raises BadInput: if there is no cluster, or no room in it for one run
    """

    def __init__(self, launch: Launch, jobs: int | None) -> None:
        super().__init__(jobs)
        self.limit = jobs
        self.ray = connect_ray(launch)
        self.resources = launch.resources
        # Retries by Ray would be invisible here: the benchmark restarts lost runs itself.
        self._task = self.ray.remote(run_here).options(max_retries=0, **self.resources.for_ray())

    def room(self) -> int:
        return self.limit or room_in(self.ray, self.resources)

    def send(self, spec: Spec, options: RunOptions, losses: int) -> RemoteWorker:
        return RayWorker(spec, options, losses, self.ray, self._task.remote(spec, options))

    def close(self) -> None:
        self.ray.shutdown()


class SubmititLauncher(RemoteLauncher):
    """Jobs of a SLURM cluster; without SLURM, processes of this machine.

    :param folder: for submitit's scripts and logs; removed at the end. All machines must see it
    :param resources: of a run
    :param jobs: jobs in the queue at a time; None: ``MOST_SUBMITTED``, or one per core without SLURM
    :raises BadInput: if submitit is missing or does not support the resources
    """

    def __init__(self, folder: Path, resources: Resources, jobs: int | None) -> None:
        super().__init__(jobs)
        wanted = resources.for_submitit()
        import submitit

        self.folder = folder.absolute()
        try:
            self.executor = submitit.AutoExecutor(self.folder)
            self.executor.update_parameters(name="sb_grpo", **wanted)
        except (RuntimeError, ValueError, OSError) as error:
            raise BadInput(f"--launcher submitit: {one_line(error)}") from error
        self.gone = submitit.core.utils.UncompletedJobError
        if jobs is None and self.executor.cluster == "slurm":
            self.jobs = MOST_SUBMITTED

    def send(self, spec: Spec, options: RunOptions, losses: int) -> RemoteWorker:
        there = replace(options, out=str(Path(options.out).absolute()))
        job = self.executor.submit(run_here_and_deliver, spec, there)
        return SubmititWorker(spec, options, losses, job, self.gone)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def open_launcher(launch: Launch, jobs: int | None, out: Path) -> Launcher:
    """Make the launcher of the command line.

    :param jobs: runs at a time; None: as many as there is room for
    :param out: output folder
    """
    if launch.launcher == "ray":
        return RayLauncher(launch, jobs)
    if launch.launcher == "submitit":
        return SubmititLauncher(out / ".submitit", launch.resources, jobs)
    return LocalLauncher(jobs)
