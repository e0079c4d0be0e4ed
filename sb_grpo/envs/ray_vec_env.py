"""Envs on other machines: an SB3 VecEnv whose slots are in Ray actors, several to each."""

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
from typing import Any

import cloudpickle
import gymnasium as gym

from sb_grpo.envs.env_batch import EnvBatch
from sb_grpo.envs.worker_vec_env import WorkerDied, WorkerVecEnv

#: Seconds in which a cluster's address must answer; Ray itself would wait for minutes.
PATIENCE_S = 5.0
#: Seconds that actors may wait for cores before something is said, and then until it is given up.
SILENT_S = 10.0
START_S = 120.0
#: Of Ray's compiled graphs: wait as long as it takes.
FOR_EVER = -1
START_ONE = "start one with 'ray start --head', or give no address to use this machine alone"
ITS_TOKEN = "if it asks for a token ('ray start' says so), copy ~/.ray/auth_token from the machine that it was started on"


def check_answers(address: str) -> None:
    """See that somebody listens at the address of a Ray cluster.

    :param address: ``HOST:PORT`` or ``ray://HOST:PORT``
    :raises ValueError: if nobody does
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"address {address!r} of a Ray cluster is not HOST:PORT; {START_ONE}.")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"no Ray cluster answers at address {address!r} ({error}); {START_ONE}.") from error


def imported(address: str | None) -> Any:
    """The module ``ray``, told to show a cluster the token of this machine's user, if there is one.

    ``ray start`` asks for it as soon as there is one, and ``ray.init`` with an address does not send it unless it is told to,
    before the import. A cluster that asks for none does not mind.

    :param address: of a cluster; None: this machine will be one
    :raises ImportError: if Ray is not installed
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    there = (Path.home() / ".ray" / "auth_token").exists() or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if address and there:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    return import_module("ray")


def enter(ray: Any, address: str | None, said: bool = False) -> None:
    """Join a cluster, or start one on this machine that ends with this process.

    :param address: of the cluster; None: start one
    :param said: show here what its processes print
    """
    here = {} if address else {"include_dashboard": False}
    ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=said, **here)


def joined(address: str | None) -> Any:
    """The module ``ray``, in a cluster: the one that this process is in already, or that at an address, or this machine.

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
    """What an actor is: an :class:`~sb_grpo.envs.env_batch.EnvBatch` that one thread makes and calls, as bytes.

    Ray would pickle arrays and infos with the means that it has for everything, which takes ten times as long.
    """

    def __init__(self, env_fns: list[Callable[[], gym.Env]], threaded: bool) -> None:
        self.env_fns = env_fns
        self.threaded = threaded
        self.batch: EnvBatch | None = None

    def answer(self, call: bytes) -> bytes:
        """Make a call.

        :param call: method and arguments, pickled
        :return: what it gives, pickled
        """
        method, args = pickle.loads(call)
        self.batch = self.batch or EnvBatch(self.env_fns, self.threaded)
        found = getattr(self.batch, method)(*args)
        try:
            return pickle.dumps(found)
        except (pickle.PicklingError, AttributeError, TypeError):  # a class or function that has no name to be found by
            return bytes(cloudpickle.dumps(found))


class RayVecEnv(WorkerVecEnv):
    """Envs in the actors of a Ray cluster, for envs whose steps take milliseconds; a call costs half of one.

    Works wherever SB3 takes a VecEnv; the resets take the seeds of GRPO's groups. An actor that dies, with its machine or
    alone, is replaced (:class:`~sb_grpo.envs.worker_vec_env.WorkerVecEnv`).

    :param env_fns: make the envs, one per slot
    :param n_actors: processes that they are dealt out to; None: as many as the cluster has room for
    :param cpus_per_actor: cores that an actor asks for; fractions let actors share one
    :param address: ``HOST:PORT`` of the cluster; None: ``RAY_ADDRESS``, or else this machine
    :param restart_workers: replace an actor that died; False: raise
    :param max_restarts: replacements in all
    :param threaded: step the envs of one at the same time, in threads: for envs that wait, or let go of the GIL
    :param timeout: seconds after which an actor that does not answer a call (a step, a reset) is killed, and so has died.
        None: it is waited for without end
    :raises ImportError: if Ray is not installed
    :raises ValueError: if no cluster is at the address, or has no room for the actors, or others hold its cores
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
        logging.getLogger("ray.dag.compiled_dag_node").setLevel(logging.CRITICAL)  # else a death is told three times
        self._actors: dict[int, Any] = {}
        self._lines: dict[int, Any] = {}  #: worker -> its standing call
        self._by_client = import_module("ray.util.client").ray.is_connected()  #: through a ``ray://``, where no call stands
        super().__init__(env_fns, n_actors, restart_workers, max_restarts, timeout)

    def _start(self, worker: int, env_fns: list[Callable[[], gym.Env]]) -> None:
        self._actors[worker] = self._actor_class.remote(env_fns, self.threaded)

    def _await_start(self) -> None:
        """An actor starts when its cores are free; if others hold them, say so, and do not wait for ever.

        :raises ValueError: if they have not been let go of in time
        """
        ray = self._ray
        waiting = [actor.__ray_ready__.remote() for actor in self._actors.values()]
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=SILENT_S)
        n = len(waiting)
        free = _free(ray)
        if not waiting or free >= self.cpus_per_actor:  # all are there, or still starting
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
        """A call that stands: a graph of one node, compiled, so that what is sent goes through memory that both sides share.
        A task of Ray's own takes three times as long."""
        if worker not in self._lines:
            with import_module("ray.dag").InputNode() as call:
                self._lines[worker] = self._actors[worker].answer.bind(call).experimental_compile()
        return self._lines[worker]

    def _ask(self, worker: int, method: str, *args: Any) -> Any:
        dumps = pickle.dumps if method == "step" else cloudpickle.dumps  # a step sends an array, others anything
        call = dumps((method, args))
        answer = None
        try:
            answer = self._actors[worker].answer.remote(call) if self._by_client else self._line(worker).execute(call)
        except self._ray.exceptions.RayError as error:
            answer = error  # it will not answer
        return worker, method, self._deadline(worker), answer

    def _answer(self, ticket: Any) -> Any:
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
        """What has become of an actor; the error of its line says no more than that it is closed."""
        try:
            self._ray.get(self._actors[worker].__ray_ready__.remote(), timeout=PATIENCE_S)
        except self._ray.exceptions.RayError as said:
            error = said
        return f"{type(error).__name__}, {str(error).strip().splitlines()[-1].strip()}"

    def _stop(self, worker: int) -> None:
        if worker in self._lines:
            self._lines.pop(worker).teardown(kill_actors=True)
        self._ray.kill(self._actors[worker])

    def _name(self, worker: int) -> str:
        return f"Ray actor {worker}"


def _free(ray: Any) -> float:
    """Cores of the cluster that nothing holds."""
    return float(ray.available_resources().get("CPU", 0.0))


def _room(ray: Any, cpus: float, most: int) -> int:
    """Actors that the machines of a cluster hold, at most so many."""
    if cpus == 0:
        return most
    return min(sum(int(node["Resources"].get("CPU", 0) / cpus) for node in ray.nodes() if node["Alive"]), most)
