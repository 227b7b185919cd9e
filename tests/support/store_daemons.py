"""Helpers for tests of the store daemon: one per emulated node, and impostors."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

import support
from forebay.tools import store

__all__ = ["Impostor", "StoreDaemons", "sealed", "store_daemons"]


class StoreDaemons:
    """The daemons of emulated nodes, each with a runtime directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pids: dict[int, int] = {}

    def runtime(self, node: int) -> Path:
        """Return the runtime directory of a node."""
        path = self._directory / f"n{node}"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def variables(self, node: int) -> dict[str, str]:
        """Return what a process of a node has in its environment."""
        return {"FOREBAY_RUNTIME_DIR": str(self.runtime(node))}

    @contextlib.contextmanager
    def at(self, node: int) -> Iterator[None]:
        """Be on a node."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FOREBAY_RUNTIME_DIR", str(self.runtime(node)))
            yield

    def start(self, *nodes: int, memory: int = 1 << 30, idle_s: float = 600) -> None:
        """Start a daemon on each node."""
        for node in nodes or (0,):
            with self.at(node):
                assert store.start(memory, idle_s)
                self._pids[node] = self.status(node)["pid"]

    def status(self, node: int = 0) -> dict[str, Any]:
        """Return what the daemon of a node holds."""
        with self.at(node):
            found = store.status()
        assert found is not None
        return found

    def shares(self, node: int = 0) -> list[dict[str, Any]]:
        """Return the shares of a node, once no process uses one."""
        support.wait_until(lambda: self.status(node)["idle_left_s"] is not None, "shares to be unused")
        return list(self.status(node)["shares"])

    def signal(self, number: int, node: int = 0) -> None:
        """Send the daemon of a node a signal."""
        os.kill(self._pids[node], number)

    def wait_for_end(self, node: int = 0) -> None:
        """Wait until the process of a node's daemon is gone."""
        path = Path(f"/proc/{self._pids.pop(node)}/cmdline")

        def has_ended() -> bool:
            try:
                # A zombie, which nobody has waited for yet, has none.
                return path.read_bytes() == b""
            except OSError:
                return True

        support.wait_until(has_ended, "the store daemon to end")

    def kill(self, node: int = 0) -> None:
        """Kill the daemon of a node."""
        self.signal(signal.SIGKILL, node)
        self.wait_for_end(node)

    def stop(self, node: int = 0) -> int:
        """End the daemon of a node as users do; return how many processes used it."""
        with self.at(node):
            stopped = store.stop()
        assert stopped is not None
        assert stopped[0] == self._pids[node]
        self.wait_for_end(node)
        assert list(self.runtime(node).iterdir()) == []
        return stopped[1]

    def end(self) -> None:
        """End all."""
        for node in list(self._pids):
            self.stop(node)

    def abandon(self) -> None:
        """Kill what a failed test left."""
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def store_daemons(plain_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreDaemons]:
    """Return daemons that are ended after the test; this process is on node 0."""
    with tempfile.TemporaryDirectory(prefix="forebay-store-") as path:
        daemons = StoreDaemons(Path(path))
        monkeypatch.setenv("FOREBAY_RUNTIME_DIR", str(daemons.runtime(0)))
        try:
            yield daemons
            daemons.end()
        finally:
            daemons.abandon()


def sealed(content: bytes, length: int, *, seals: bool = True) -> int:
    """Return memory of this length that begins with `content`, immutable or not."""
    descriptor = os.memfd_create("forebay-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, length)
    os.pwrite(descriptor, content, 0)
    if seals:
        every = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, every)
    return descriptor


Answers = Callable[[Mapping[str, Any]], tuple[bytes, Sequence[int]] | None]


class Impostor:
    """Listens where the store daemon of node 0 would, and answers as told.

    ``answer`` gets a request and returns packet and descriptors, or None to hang up.
    """

    def __init__(self, daemons: StoreDaemons, answer: Answers) -> None:
        self._path = socket_of(daemons)
        self._answer = answer
        self.requests: list[Mapping[str, Any]] = []

    def __enter__(self) -> Self:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self._path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(support.DEADLINE_S)
        self._listener.close()
        self._path.unlink()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        while packet := connection.recv(1 << 16):
            request = json.loads(packet)
            self.requests.append(request)
            answer = self._answer(request)
            if answer is None:
                return
            content, descriptors = answer
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendmsg([content], rights if descriptors else [])
            for descriptor in descriptors:
                os.close(descriptor)


def socket_of(daemons: StoreDaemons) -> Path:
    """Return the path of the socket of node 0's daemon, which runs for a moment to tell."""
    daemons.start()
    (path,) = daemons.runtime(0).glob("*.sock")
    daemons.stop()
    return path
