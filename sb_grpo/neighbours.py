"""Learners on one machine talk through Unix sockets: no thread is woken, so a sum takes a quarter of the time that gloo needs.

Every two of them have a socket. Who wants the sum of all sends its own numbers to all others and adds up what all have sent,
in the order of the ranks, so that all have the same sum to the last bit. A learner that has ended closes its sockets, and the
others notice at once.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch as th

#: Bytes that fit into a socket twice: up to here all send before anybody receives.
AT_ONCE = 1 << 16
#: Seconds to wait for another learner; gloo's too.
PATIENCE = 1800.0
#: Seconds to look for an answer before going to sleep: to be woken takes longer than most answers do.
AWAKE = 1e-3
LENGTH = struct.Struct("q")


class Neighbours:
    """The other learners of this machine.

    :param rank: of this one
    :param sockets: to the others, by rank
    """

    def __init__(self, rank: int, sockets: dict[int, socket.socket]) -> None:
        self.rank, self.sockets = rank, dict(sorted(sockets.items()))
        for connection in sockets.values():
            connection.settimeout(PATIENCE)

    def exchange(self, own: memoryview, sizes: list[int]) -> list[memoryview]:
        """The bytes of all ranks, in their order.

        :param sizes: of every rank's; all must know them
        :raises OSError: if one has ended
        """
        found = [memoryview(bytearray(size)) for size in sizes]
        found[self.rank] = own
        if max(sizes) <= AT_ONCE:
            for connection in self.sockets.values():
                connection.sendall(own)
            for rank, connection in self.sockets.items():
                fill(found[rank], connection)
            return found
        for rank, connection in self.sockets.items():  # by pairs: of two that only send, none would ever receive
            if self.rank < rank:
                connection.sendall(own)
            fill(found[rank], connection)
            if self.rank > rank:
                connection.sendall(own)
        return found

    def combined(self, values: th.Tensor, how: Callable[[th.Tensor, th.Tensor], th.Tensor]) -> th.Tensor:
        """A tensor of the same form on all ranks, put together.

        :param how: of two of them
        :raises OSError: if one has ended
        """
        own = values.detach().contiguous().flatten()
        if len(own) == 0:
            return values.clone()
        raw: Any = own.view(th.uint8).numpy()
        parts = self.exchange(memoryview(raw), [len(raw)] * (len(self.sockets) + 1))
        tensors = [own if rank == self.rank else th.frombuffer(part, dtype=own.dtype) for rank, part in enumerate(parts)]
        result = tensors[0]
        for other in tensors[1:]:
            result = how(result, other)
        return result.view_as(values)

    def gathered(self, value: Any) -> list[Any]:
        """The picklable values of all ranks, in their order.

        :raises OSError: if one has ended
        """
        own = memoryview(pickle.dumps(value))
        lengths = self.exchange(memoryview(LENGTH.pack(len(own))), [LENGTH.size] * (len(self.sockets) + 1))
        return [pickle.loads(part) for part in self.exchange(own, [LENGTH.unpack(length)[0] for length in lengths])]


def fill(buffer: memoryview, connection: socket.socket) -> None:
    """Receive as many bytes as there is room for.

    :raises OSError: if the other side has ended
    """
    n, until = 0, time.perf_counter() + AWAKE
    while n < len(buffer):
        try:
            received = os.readv(connection.fileno(), [buffer[n:]])
        except BlockingIOError:
            if time.perf_counter() < until:
                continue
            received = connection.recv_into(buffer[n:])
        if received == 0:
            raise ConnectionResetError("a learner has closed its socket")
        n += received


def meet(rank: int, gathered: Callable[[Any], list[Any]]) -> Neighbours | None:
    """Connect all learners, where all are on one machine that has Unix sockets; else None on all of them.

    :param gathered: picklable values of all ranks, by a slower way
    """
    folder = tempfile.mkdtemp(prefix="sb_grpo-")  # for this user's eyes only
    path = str(Path(folder, "learner"))
    try:
        with socket.socket(getattr(socket, "AF_UNIX", socket.AF_INET)) as listener:
            fine = hasattr(socket, "AF_UNIX") and len(path) < 100  # longer names do not fit
            if fine:
                listener.bind(path)
                listener.listen()
            paths = gathered(path if fine else "")
            if not all(gathered(all(map(is_here, paths)))):
                return None
            return Neighbours(rank, connected(rank, paths, listener))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_here(path: str) -> bool:
    """Whether a socket has its name on this machine."""
    return Path(path).is_socket()


def connected(rank: int, paths: list[str], listener: socket.socket) -> dict[int, socket.socket]:
    """Sockets to all others: each calls those before it, and says who it is."""
    found = {}
    for other in range(rank):
        found[other] = socket.socket(socket.AF_UNIX)
        found[other].connect(paths[other])
        found[other].sendall(LENGTH.pack(rank))
    for _ in range(rank + 1, len(paths)):
        connection, _ = listener.accept()
        name = memoryview(bytearray(LENGTH.size))
        fill(name, connection)
        found[LENGTH.unpack(name)[0]] = connection
    return found
