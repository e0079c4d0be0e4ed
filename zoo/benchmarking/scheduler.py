"""Runs in processes of their own, a few at a time: started, watched, shown in a table, and never left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ..benchmarking.results import read_run
from ..benchmarking.specs import Spec
from ..common.command_line import PACKAGE

POLL_S = 0.2
DONE, RUNNING, FAILED, LEFT = "done", "running", "failed", "left"


class Worker:
    """A run in its process. The process ends when this side of its standard input closes.

    :param spec: the run
    :param options: ``{out, keep, device, gym_packages, command}``
    """

    def __init__(self, spec: Spec, options: dict[str, object]) -> None:
        self.spec, self.started, self.took = spec, time.perf_counter(), 0.0
        self.result = spec.file(Path(str(options["out"])))
        self.folder = self.result.with_suffix(".run")
        self.log = self.result.with_suffix(".failed.log")
        self.keep, self.complaint = bool(options["keep"]), ""
        self.log.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        command = [sys.executable, "-m", f"{PACKAGE}.benchmarking.lifeline", json.dumps(asdict(spec))]
        with (self.folder / "log.txt").open("w") as log:
            self.process = subprocess.Popen(
                [*command, json.dumps({**options, "folder": str(self.folder)})],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **one_thread},
            )

    def outcome(self) -> tuple[str, str]:
        """State after the process ended, and the line that says how it went."""
        name, self.took = f"{self.spec.env} {self.spec.label} seed {self.spec.seed}", time.perf_counter() - self.started
        if self.process.returncode != 0:
            shutil.copy(self.folder / "log.txt", self.log)
            lines = self.log.read_text().strip().splitlines() or ["no output"]
            line = self.complaint = f"{name} failed with code {self.process.returncode}: {lines[-1]} (log: {self.log})"
        else:
            line = f"{name}: mean return {read_run(self.result).score:.1f} in {self.took:.0f} s"
        self._tidy()
        return (FAILED if self.process.returncode else DONE), line

    def stop(self) -> None:
        """End the process and leave nothing behind."""
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


def table(states: dict[Spec, str]) -> Table:
    """What is done and what is left, envs by labels.

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


def work(states: dict[Spec, str], jobs: int, options: dict[str, object]) -> list[Worker]:
    """Do what is left.

    :param states: of every run; changed as the runs go on
    :param jobs: runs at a time
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
                while waiting and len(running) < jobs:
                    running.append(Worker(waiting.pop(0), options))
                    states[running[-1].spec] = RUNNING
                if view is not None:
                    view.update(table(states))
                for worker in _wait_for_any(running):
                    running.remove(worker)
                    ended.append(worker)
                    states[worker.spec], line = worker.outcome()
                    left = len(waiting) + len(running)
                    minutes = left * sum(worker.took for worker in ended) / len(ended) / jobs / 60
                    line += f"; {left} left" + (f", about {minutes:.0f} min" if left else "")
                    console.print(line, soft_wrap=True, highlight=False, markup=False)
        finally:
            for worker in running:
                states[worker.spec] = LEFT
                worker.stop()
    return [worker for worker in ended if states[worker.spec] == FAILED]


def _wait_for_any(running: list[Worker]) -> list[Worker]:
    while not (ended := [worker for worker in running if worker.process.poll() is not None]):
        time.sleep(POLL_S)
    return ended
