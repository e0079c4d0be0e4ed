"""One study, many workers: Ray tasks that search side by side until the study has its trials."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..benchmarking.launchers import ONE_THREAD
from ..common.cluster import Launch, connect_ray, room_in
from ..common.command_line import INTERRUPTED, PACKAGE, program

#: Number of dead workers until the search gives up, because the study itself may kill them.
MAX_LOSSES = 10


def worker(arguments: Sequence[str], folder: str) -> int:
    """Search here, in a process that ends with this one.

    :param arguments: command line of ``zoo.tune``
    :param folder: where the command was given; paths count from there, if this machine has it
    :return: exit code
    """
    process = subprocess.Popen(
        [sys.executable, "-m", f"{PACKAGE}.common.lifeline", "tune", *arguments],
        stdin=subprocess.PIPE,
        cwd=folder if Path(folder).is_dir() else None,
        env={**os.environ, **ONE_THREAD},
    )
    try:
        return process.wait()
    finally:
        process.kill()
        process.communicate()


def search_together(launch: Launch, n_workers: int | None, arguments: Sequence[str]) -> int:
    """Let workers search until the study has its trials. One whose machine dies costs its trial, and another takes its place.

    :param launch: the cluster, and the resources of a worker
    :param n_workers: at a time; None: as many as the cluster has room for
    :param arguments: command line of a worker
    :return: exit code: that of the first worker that failed, 130 if the user has interrupted it
    """
    ray = connect_ray(launch, said=True)
    task = ray.remote(worker).options(max_retries=0, **launch.resources.for_ray())
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
