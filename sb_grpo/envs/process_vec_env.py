"""Envs in processes of this machine, several to each, that are named when they die, or replaced."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper, VecEnv

from sb_grpo.envs.env_batch import EnvBatch
from sb_grpo.envs.worker_vec_env import Ticket, WorkerDied, WorkerVecEnv

#: Errors of a pipe whose other side is gone.
BROKEN = (EOFError, BrokenPipeError, ConnectionError)


def serve(pipe: Connection, env_fns: CloudpickleWrapper, threaded: bool) -> None:
    """Run a worker: answer calls until the other side is gone. An exception of an env is an answer.

    :param pipe: gives ``(method, args)``, takes ``(well, answer or exception)``
    :param env_fns: for its :class:`~sb_grpo.envs.env_batch.EnvBatch`
    :param threaded: for it too
    """
    batch: EnvBatch | None = None
    while True:
        try:
            method, args = pipe.recv()
        except (*BROKEN, KeyboardInterrupt):
            return
        try:
            batch = batch or EnvBatch(env_fns.var, threaded)
            pipe.send((True, getattr(batch, method)(*args)))
        except Exception as error:  # the env's
            pipe.send((False, error))


def cause(process: BaseProcess) -> str:
    """Why a process has ended."""
    process.join(timeout=5)
    code = process.exitcode
    if code is not None and code < 0:
        return f"killed by signal {-code}" + (", as the system does when memory is short" if code == -9 else "")
    return f"its process ended with code {code}"


@contextmanager
def naming_the_dead(env: VecEnv) -> Iterator[None]:
    """Name the dead worker of SB3's ``SubprocVecEnv``, and the cause; its own error is the end of a pipe, and no more.

    :raises RuntimeError: in the place of a pipe's error
    """
    try:
        yield
    except BROKEN as error:
        processes = getattr(env.unwrapped, "processes", None)
        if not isinstance(processes, list):
            raise
        ended = wait([process.sentinel for process in processes], timeout=5)  # the pipe breaks before the process is gone
        for k, process in enumerate(processes):
            if process.sentinel in ended:
                raise RuntimeError(
                    f"Worker {k} of {type(env.unwrapped).__name__} (process {process.pid}) with env {k} (of {env.num_envs}) "
                    f"died: {cause(process)}. sb_grpo.envs.ProcessVecEnv(..., restart_workers=True) replaces such a worker "
                    "(docs/scale.md)."
                ) from error
        raise


class ProcessVecEnv(WorkerVecEnv):
    """SB3's ``SubprocVecEnv`` with several envs per process, seeded resets, and processes that may die.

    :param env_fns: make the envs
    :param n_workers: processes that they are dealt out to; None: one for each
    :param restart_workers: replace a process that died; False: raise, and say which and how
    :param max_restarts: replacements in all
    :param threaded: step the envs of one at the same time, in threads: for envs that wait, or let go of the GIL
    :param start_method: of ``multiprocessing``; None: forkserver where there is one, else spawn
    :param preload: modules that the fork server imports, once, in place of each worker: torch and SB3 take seconds. It counts
        where no server runs yet; None: those of ``multiprocessing.set_forkserver_preload``
    :param timeout: seconds after which a process that does not answer a call (a step, a reset) is killed, and so has died:
        it is named, or replaced. None: it is waited for without end
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env]],
        n_workers: int | None = None,
        restart_workers: bool = False,
        max_restarts: int = 100,
        threaded: bool = False,
        start_method: str | None = None,
        preload: Sequence[str] | None = ("sb_grpo.envs.preloaded",),
        timeout: float | None = None,
    ) -> None:
        usual = "forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn"
        self.threaded = threaded
        self._context: Any = mp.get_context(start_method or usual)
        if preload is not None:
            self._context.set_forkserver_preload(["__main__", *preload])
        self._pipes: dict[int, Connection] = {}
        self.processes: dict[int, BaseProcess] = {}  #: by number of the worker
        n_workers = len(env_fns) if n_workers is None else n_workers
        super().__init__(env_fns, n_workers, restart_workers, max_restarts, timeout)

    def _start(self, worker: int, env_fns: list[Callable[[], gym.Env]]) -> None:
        self._pipes[worker], far = self._context.Pipe()
        process = self._context.Process(target=serve, args=(far, CloudpickleWrapper(env_fns), self.threaded), daemon=True)
        process.start()
        far.close()
        self.processes[worker] = process

    def _ask(self, worker: int, method: str, *args: object) -> Ticket:
        with suppress(*BROKEN):  # it will not answer
            self._pipes[worker].send((method, args))
        return Ticket(worker, method, self._deadline(worker))

    def _answer(self, ticket: Ticket) -> Any:
        worker, method, deadline, _ = ticket
        try:
            if deadline is not None and not self._pipes[worker].poll(max(deadline - time.monotonic(), 0.0)):
                self.processes[worker].kill()
                raise self._overdue(method)
            well, answer = self._pipes[worker].recv()
        except BROKEN as error:
            raise WorkerDied(self._cause(worker)) from error
        if not well:
            raise answer
        return answer

    def _cause(self, worker: int) -> str:
        return cause(self.processes[worker])

    def _stop(self, worker: int) -> None:
        self._pipes[worker].close()  # a worker that lives ends with its pipe
        self.processes[worker].join(timeout=5)
        self.processes[worker].kill()

    def _name(self, worker: int) -> str:
        return f"Worker {worker} of ProcessVecEnv (process {self.processes[worker].pid})"
