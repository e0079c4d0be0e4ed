"""SB3 VecEnv with envs in Ray actors on other machines, several envs per actor."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import gymnasium as gym

from sb_grpo.envs.env_batch import EnvBatch
from sb_grpo.envs.worker_vec_env import Ticket, WorkerDied, WorkerVecEnv

#: Timeout in seconds for a cluster's address; Ray itself would wait for minutes.
PATIENCE_S = 5.0
#: Seconds that actors may wait for cores until a message, and until an error.
SILENT_S = 10.0
START_S = 120.0
#: Timeout of Ray's compiled graphs: none.
FOR_EVER = -1
START_ONE = "start one with 'ray start --head', or give no address to use this machine alone"
ITS_TOKEN = "if it asks for a token ('ray start' says so), copy ~/.ray/auth_token from the machine that it was started on"


def check_answers(address: str) -> None:
    """Check that a server listens at the address of a Ray cluster.

    :param address: ``HOST:PORT`` or ``ray://HOST:PORT``
    :raises ValueError: if none does
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"address {address!r} of a Ray cluster is not HOST:PORT; {START_ONE}.")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"no Ray cluster answers at address {address!r} ({error}); {START_ONE}.") from error


def imported(address: str | None) -> ModuleType:
    """Import ``ray``, with the token of this machine's user if there is one.

    ``ray start`` requires the token if it exists, but ``ray.init`` with an address sends it only if an environment variable is
    set before the import. A cluster without a token ignores it.

    :param address: of a cluster; None: this machine
    :raises ImportError: if Ray is not installed
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    there = (Path.home() / ".ray" / "auth_token").exists() or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if address and there:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    return import_module("ray")


def enter(ray: ModuleType, address: str | None, show_output: bool = False) -> None:
    """Join a cluster, or start one on this machine that ends with this process.

    :param address: of the cluster; None: start one
    :param said: print the output of its processes here
    """
    here = {} if address else {"include_dashboard": False}
    ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=show_output, **here)


def joined(address: str | None) -> ModuleType:
    """Import ``ray`` and connect: to the current cluster if there is one, else to the address, else to this machine.

    :raises ImportError: if Ray is not installed
    :raises ValueError: if no cluster is at the address
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    try:
        ray = imported(address)
    except ImportError as error:
        raise ImportError("RayVecEnv needs Ray. Install it: pip install 'sb_grpo[scale]'") from error
    if ray.is_initialized():
        return ray
    if address and address != "auto":
        check_answers(address)
    try:
        enter(ray, address)
    except (ConnectionError, RuntimeError) as error:
        raise ValueError(f"address {address!r}: {error}; {ITS_TOKEN}.") from error
    return ray


class _Batch:
    """Actor with an :class:`~sb_grpo.envs.env_batch.EnvBatch` in one thread; arguments and results are bytes.

    Ray's general serialisation of arrays and infos would take ten times as long.
    """

    def __init__(self, env_fns: list[Callable[[], gym.Env]], threaded: bool) -> None:
        self.env_fns = env_fns
        self.threaded = threaded
        self.batch: EnvBatch | None = None

    def answer(self, call: bytes) -> bytes:
        """Call a method.

        :param call: method and arguments, pickled
        :return: its result, pickled
        """
        method, args = pickle.loads(call)
        self.batch = self.batch or EnvBatch(self.env_fns, self.threaded)
        found = getattr(self.batch, method)(*args)
        try:
            return pickle.dumps(found)
        except (pickle.PicklingError, AttributeError, TypeError):  # a class or function that cannot be imported by name
            return bytes(cloudpickle.dumps(found))


class RayVecEnv(WorkerVecEnv):
    """Envs in the actors of a Ray cluster, for steps that take milliseconds; a call costs half a millisecond.

    Works with every SB3 algorithm; resets take the seeds of GRPO's groups. A dead actor is replaced
    (:class:`~sb_grpo.envs.worker_vec_env.WorkerVecEnv`).

    :param env_fns: functions that make the envs, one each
    :param n_actors: number of processes; None: as many as the cluster has room for
    :param cpus_per_actor: cores per actor; with fractions, actors share one
    :param address: ``HOST:PORT`` of the cluster; None: ``RAY_ADDRESS``, or else this machine
    :param restart_workers: replace a dead actor; False: raise
    :param max_restarts: replacements in all
    :param threaded: step the envs of one actor in threads: for envs that wait or release the GIL
    :param timeout: seconds after which an actor that does not answer a call (a step, a reset) is killed and counts as dead.
        None: no timeout
    :raises ImportError: if Ray is not installed
    :raises ValueError: if no cluster is at the address, it has no room for the actors, or its cores are in use
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env]],
        n_actors: int | None = None,
        cpus_per_actor: float = 1.0,
        address: str | None = None,
        restart_workers: bool = True,
        max_restarts: int = 100,
        threaded: bool = False,
        timeout: float | None = None,
    ) -> None:
        if cpus_per_actor < 0:
            raise ValueError(f"cpus_per_actor={cpus_per_actor} must be a number from 0 on.")
        self.threaded = threaded
        self.cpus_per_actor = cpus_per_actor
        self._ray = joined(address)
        room = _room(self._ray, cpus_per_actor, len(env_fns))
        n_actors = min(room, len(env_fns)) if n_actors is None else n_actors
        if n_actors > room:
            raise ValueError(
                f"n_actors={n_actors} with cpus_per_actor={cpus_per_actor}: the Ray cluster has cores for {room}. Choose "
                "fewer actors, each has several envs, or fewer cores for each."
            )
        self._actor_class = self._ray.remote(_Batch).options(num_cpus=cpus_per_actor)
        logging.getLogger("ray.dag.compiled_dag_node").setLevel(logging.CRITICAL)  # else a death is logged three times
        self._actors: dict[int, Any] = {}
        self._lines: dict[int, Any] = {}  #: worker -> its compiled graph
        self._by_client = import_module(
            "ray.util.client"
        ).ray.is_connected()  #: connected by ``ray://``, without compiled graphs
        super().__init__(env_fns, n_actors, restart_workers, max_restarts, timeout)

    def _start(self, worker: int, env_fns: list[Callable[[], gym.Env]]) -> None:
        self._actors[worker] = self._actor_class.remote(env_fns, self.threaded)

    def _await_start(self) -> None:
        """Wait until the actors have started; they need free cores.

        :raises ValueError: if the cores are still in use after the timeout
        """
        ray = self._ray
        waiting = [actor.__ray_ready__.remote() for actor in self._actors.values()]
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=SILENT_S)
        n = len(waiting)
        free = _free(ray)
        if not waiting or free >= self.cpus_per_actor:  # started, or still starting
            return
        have = f"{n} of {len(self._actors)} Ray actors wait for cores: of the cluster's, {free:g} are free, and each asks for"
        have = f"{have} cpus_per_actor={self.cpus_per_actor:g}"
        warnings.warn(f"{have}. Waiting {START_S:g} s for others to end.", UserWarning, stacklevel=2)
        _, waiting = ray.wait(waiting, num_returns=n, timeout=START_S)
        if waiting and _free(ray) < self.cpus_per_actor:
            for worker in self._actors:
                self._stop(worker)
            raise ValueError(
                f"{have}. End what holds them ('ray status' says how much is in use), pass a smaller n_actors, as one actor "
                "steps several envs, or fewer cpus_per_actor (fractions share a core)."
            )

    def _line(self, worker: int) -> Any:
        """Compiled graph of one call, which uses shared memory; an ordinary task of Ray takes three times as long."""
        if worker not in self._lines:
            with import_module("ray.dag").InputNode() as call:
                self._lines[worker] = self._actors[worker].answer.bind(call).experimental_compile()
        return self._lines[worker]

    def _ask(self, worker: int, method: str, *args: object) -> Ticket:
        dumps = pickle.dumps if method == "step" else cloudpickle.dumps  # a step sends an array, others anything
        call = dumps((method, args))
        answer = None
        try:
            answer = self._actors[worker].answer.remote(call) if self._by_client else self._line(worker).execute(call)
        except self._ray.exceptions.RayError as error:
            answer = error  # it will not answer
        return Ticket(worker, method, self._deadline(worker), answer)

    def _answer(self, ticket: Ticket) -> Any:
        worker, method, deadline, answer = ticket
        left: float | None = None if self._by_client else FOR_EVER
        if deadline is not None:
            left = max(deadline - time.monotonic(), 0.0)
        try:
            if isinstance(answer, Exception):
                raise answer
            return pickle.loads(self._ray.get(answer, timeout=left))
        except self._ray.exceptions.RayTaskError:
            raise  # of the env
        except (self._ray.exceptions.GetTimeoutError, self._ray.exceptions.RayChannelTimeoutError) as error:
            self._ray.kill(self._actors[worker])
            raise self._overdue(method) from error
        except self._ray.exceptions.RayError as error:
            raise WorkerDied(self._cause(worker, error)) from error

    def _cause(self, worker: int, error: Exception) -> str:
        """Describe the fate of an actor; the error of its graph only reports that it is closed."""
        try:
            self._ray.get(self._actors[worker].__ray_ready__.remote(), timeout=PATIENCE_S)
        except self._ray.exceptions.RayError as failure:
            error = failure
        return f"{type(error).__name__}, {str(error).strip().splitlines()[-1].strip()}"

    def _stop(self, worker: int) -> None:
        if worker in self._lines:
            self._lines.pop(worker).teardown(kill_actors=True)
        self._ray.kill(self._actors[worker])

    def _name(self, worker: int) -> str:
        return f"Ray actor {worker}"


def _free(ray: ModuleType) -> float:
    """Number of free cores of the cluster."""
    return float(ray.available_resources().get("CPU", 0.0))


def _room(ray: ModuleType, cpus: float, most: int) -> int:
    """Number of actors that fit on the machines of a cluster, at most ``most``."""
    if cpus == 0:
        return most
    return min(sum(int(node["Resources"].get("CPU", 0) / cpus) for node in ray.nodes() if node["Alive"]), most)
