"""Barriers of the ranks of a run: an all-reduce of MPI, or a socket of their launcher.

The ranks of a training job sum gradients after each step. The demo does that with MPI. The bench
needs only a barrier: over MPI where an MPI launcher started the ranks, else over `SocketBarrier`.

Waiting ranks sleep rather than spin, since there may be more ranks than cores. Each wait has a
deadline, after which the error names the barrier. The process that started the ranks ends them all
when one of them fails.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py import MPI

_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

# Pauses between two looks at an MPI request [s]: short at first, and never so long that they show
# beside a step.
_FIRST_PAUSE_S = 20e-6
_MAX_PAUSE_S = 1e-4


def wait(request: MPI.Request, what: str, deadline_s: float) -> None:
    """Wait for a nonblocking operation of MPI, sleeping.

    Raises
    ------
    TimeoutError
        If it is not complete after `deadline_s` seconds.
    """
    end, pause = time.monotonic() + deadline_s, _FIRST_PAUSE_S
    while not request.Test():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: a rank has not answered for {deadline_s:.0f} s")
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_S)


def check_world(comm: MPI.Intracomm) -> None:
    """Exit where another MPI's launcher made N worlds of one rank each."""
    for name in _SIZE_VARIABLES:
        size = os.environ.get(name)
        if size is not None and int(size) != comm.size:
            sys.exit(
                f"MPI world: expected {size} ranks ({name}), found {comm.size}\n"
                "hint: mpiexec and mpi4py belong to different MPIs; install one MPI only"
            )


class Barrier(Protocol):
    """Ranks that wait for each other."""

    rank: int
    size: int

    def wait(self, what: str) -> None:
        """Return once every rank has called this; `what` names the occasion in errors."""


class MpiBarrier:
    """A barrier over MPI's world: an all-reduce of one number, the least a step communicates."""

    def __init__(self, deadline_s: float) -> None:
        import numpy as np
        from mpi4py import MPI

        check_world(MPI.COMM_WORLD)
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self._deadline_s = deadline_s
        self._sent, self._received = np.ones(1), np.zeros(1)

    def wait(self, what: str) -> None:
        """Sum ones over the ranks."""
        wait(self.comm.Iallreduce(self._sent, self._received), what, self._deadline_s)


class SocketBarrier:
    """A barrier over an inherited, unnamed socket, whose other end a `BarrierServer` holds."""

    def __init__(self, descriptor: int, rank: int, size: int, deadline_s: float) -> None:
        self.rank, self.size = rank, size
        self._deadline_s = deadline_s
        self._connection = socket.socket(fileno=descriptor)
        self._connection.settimeout(deadline_s)

    def wait(self, what: str) -> None:
        """Report this rank's arrival, and sleep until all ranks have arrived."""
        try:
            self._connection.sendall(b"\1")
            answer = self._connection.recv(1)
        except TimeoutError:
            raise TimeoutError(f"{what}: a rank has not answered for {self._deadline_s:.0f} s") from None
        if not answer:
            raise ConnectionError(f"{what}: the process that started the ranks is gone")


class BarrierServer:
    """Count the ranks that have arrived, and notify all when none is missing."""

    def __init__(self, ranks: Sequence[socket.socket]) -> None:
        self._ranks = ranks
        self._here = 0
        self._selector = selectors.DefaultSelector()
        for one in ranks:
            self._selector.register(one, selectors.EVENT_READ)

    def serve(self, timeout_s: float) -> None:
        """Answer what has come, or comes within `timeout_s` seconds."""
        for key, _ in self._selector.select(timeout_s):
            assert isinstance(key.fileobj, socket.socket)
            try:
                came = key.fileobj.recv(1)
            except ConnectionError:
                came = b""
            if not came:
                # It has ended; whether well or not its exit code tells.
                self._selector.unregister(key.fileobj)
                continue
            self._here += 1
            if self._here == len(self._ranks):
                self._here = 0
                for one in self._ranks:
                    one.sendall(b"\1")
