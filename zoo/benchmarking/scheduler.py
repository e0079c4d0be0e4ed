"""Scheduler of runs: a launcher starts a few at a time; they are monitored, shown in a table, and always ended."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ..benchmarking.launchers import Launcher
from ..benchmarking.specs import RunOptions, Spec
from ..benchmarking.workers import DONE, FAILED, LEFT, RUNNING, Worker

POLL_S = 0.2


def table(states: dict[Spec, str]) -> Table:
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
                    view.update(table(states))
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
