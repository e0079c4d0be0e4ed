"""Launchers of runs: local processes, a Ray cluster, or the queue of a SLURM cluster by submitit."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ..benchmarking import errand
from ..benchmarking.errand import Brought
from ..benchmarking.specs import RunOptions, Spec
from ..benchmarking.workers import LocalWorker, MachineGone, Promise, RemoteWorker, Worker
from ..common.cluster import Launch, Resources, connect_ray, room_in
from ..common.command_line import BadInput, one_line

if TYPE_CHECKING:
    from submitit import Job

#: Jobs in a SLURM queue at a time, by default: schedulers limit the jobs of one user.
MOST_SUBMITTED = 100


class Launcher(ABC):
    """Starts runs, up to a number at a time."""

    @abstractmethod
    def room(self) -> int:
        """Runs at a time."""

    @abstractmethod
    def start(self, spec: Spec, options: RunOptions) -> Worker:
        """Begin a run."""

    @abstractmethod
    def close(self) -> None:
        """Release the launcher's resources after the last run."""


class LocalLauncher(Launcher):
    """Processes of this machine.

    :param jobs: runs at a time
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def room(self) -> int:
        return self.jobs

    def start(self, spec: Spec, options: RunOptions) -> Worker:
        return LocalWorker(spec, options)

    def close(self) -> None:
        """Do nothing: the workers have ended."""


class RemoteLauncher(Launcher):
    """Base of launchers on other machines, which counts machines that died by run."""

    def __init__(self) -> None:
        self._started: dict[Spec, RemoteWorker] = {}

    def start(self, spec: Spec, options: RunOptions) -> Worker:
        before = self._started.get(spec)
        worker = RemoteWorker(spec, options, self.send(spec, options), before.losses if before else 0)
        self._started[spec] = worker
        return worker

    @abstractmethod
    def send(self, spec: Spec, options: RunOptions) -> Promise:
        """Submit a run, and return its future result."""


class RayLauncher(RemoteLauncher):
    """Tasks of a Ray cluster: machines may come and go while it works.

    :param launch: the cluster, and the resources of a run
    :param jobs: runs at a time; None: as many as the cluster has room for
    :raises BadInput: if there is no cluster, or no room in it for one run
    """

    def __init__(self, launch: Launch, jobs: int | None) -> None:
        super().__init__()
        self.ray = connect_ray(launch)
        self.resources = launch.resources
        self.jobs = jobs
        # Retries by Ray would be invisible here: the benchmark restarts lost runs itself.
        self._task = self.ray.remote(errand.run).options(max_retries=0, **self.resources.for_ray())

    def room(self) -> int:
        return self.jobs or room_in(self.ray, self.resources)

    def send(self, spec: Spec, options: RunOptions) -> Promise:
        return RayPromise(self.ray, self._task.remote(spec, options))

    def close(self) -> None:
        self.ray.shutdown()


class RayPromise:
    """Future result of a Ray task."""

    def __init__(self, ray: ModuleType, reference: object) -> None:
        self._ray = ray
        self._reference = reference

    def done(self) -> bool:
        return bool(self._ray.wait([self._reference], timeout=0)[0])

    def result(self) -> Brought:
        try:
            brought: Brought = self._ray.get(self._reference)
            return brought
        except self._ray.exceptions.RayTaskError:
            raise  # an error of the run itself
        except self._ray.exceptions.RayError as error:
            raise MachineGone(type(error).__name__) from error

    def cancel(self) -> None:
        self._ray.cancel(self._reference, force=True)


class SubmititLauncher(RemoteLauncher):
    """Jobs of a SLURM cluster; without SLURM, processes of this machine.

    :param folder: for submitit's scripts and logs; removed at the end. All machines must see it
    :param resources: of a run
    :param jobs: jobs in the queue at a time; None: ``MOST_SUBMITTED``, or one per core without SLURM
    :raises BadInput: if submitit is missing or does not support the resources
    """

    def __init__(self, folder: Path, resources: Resources, jobs: int | None) -> None:
        super().__init__()
        wanted = resources.for_submitit()
        import submitit

        self.folder = folder.absolute()
        try:
            self.executor = submitit.AutoExecutor(self.folder)
            self.executor.update_parameters(name="sb_grpo", **wanted)
        except (RuntimeError, ValueError, OSError) as error:
            raise BadInput(f"--launcher submitit: {one_line(error)}") from error
        self.gone = submitit.core.utils.UncompletedJobError
        self.jobs = jobs or (MOST_SUBMITTED if self.executor.cluster == "slurm" else os.cpu_count() or 1)

    def room(self) -> int:
        return self.jobs

    def send(self, spec: Spec, options: RunOptions) -> Promise:
        there = replace(options, out=str(Path(options.out).absolute()))
        return SubmititPromise(self.executor.submit(errand.run_and_deliver, spec, there), self.gone)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class SubmititPromise:
    """Future result of a submitit job."""

    def __init__(self, job: Job[Brought], gone: type[Exception]) -> None:
        self._job = job
        self._gone = gone

    def done(self) -> bool:
        return bool(self._job.done())

    def result(self) -> Brought:
        try:
            return self._job.result()
        except self._gone as error:
            raise MachineGone(f"job {self._job.job_id}, {self._job.state}") from error

    def cancel(self) -> None:
        self._job.cancel()


def open_launcher(launch: Launch, jobs: int | None, out: Path) -> Launcher:
    """Make the launcher of the command line.

    :param jobs: runs at a time; None: as many as there is room for
    :param out: output folder
    """
    if launch.launcher == "ray":
        return RayLauncher(launch, jobs)
    if launch.launcher == "submitit":
        return SubmititLauncher(out / ".submitit", launch.resources, jobs)
    return LocalLauncher(jobs or os.cpu_count() or 1)
