"""Running runs, in local processes or on other machines: monitored, collected, or stopped."""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol

from ..benchmarking.errand import Brought, deliver, start
from ..benchmarking.results import read_run
from ..benchmarking.specs import RunOptions, Spec

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
        self.process = start(spec, options, self.folder)

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


class Promise(Protocol):
    """Interface: future result of a submitted run."""

    def done(self) -> bool:
        """Whether :meth:`result` would return at once."""

    def result(self) -> Brought:
        """Wait for the result.

        :raises MachineGone: if there will be none
        """

    def cancel(self) -> None:
        """End it."""


class RemoteWorker(Worker):
    """Run on another machine, or in a launcher's process.

    :param promise: its future result
    :param losses: number of machines that have died during this run
    """

    def __init__(self, spec: Spec, options: RunOptions, promise: Promise, losses: int) -> None:
        super().__init__(spec, options)
        self.promise = promise
        self.losses = losses

    def has_ended(self) -> bool:
        return self.promise.done()

    def bring(self) -> str:
        brought = self.promise.result()
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

    def stop(self) -> None:
        self.promise.cancel()
