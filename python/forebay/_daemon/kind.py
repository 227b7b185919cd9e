"""One sort of daemon: its sockets and logs, how it is started, and how it is asked."""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay._core import StorageError, StorageTimeout
from forebay._daemon import control, directory
from forebay._daemon.inherited import clean_environment

__all__ = ["Kind"]

# Longest path of a socket [bytes]: `sun_path` has 108, including the final NUL (unix(7)).
_SOCKET_PATH_BYTES = 107

# Watchdog for the start of a daemon, which takes milliseconds on an idle machine [s].
_UP_WITHIN_S = 60.0

# Interval between attempts to connect to a starting daemon [s].
_TRY_EVERY_S = 0.01

# Maximum number of log lines in an error, from the end.
_LOG_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One sort of daemon.

    Parameters
    ----------
    prefix
        Of the names of its sockets and logs, ``"pfs-"``.
    name
        For errors: ``"the emulator"``.
    module
        That serves: ``python -m MODULE DESCRIPTOR`` calls :func:`forebay._daemon.serve.main`.
    hint
        Advice if no daemon listens.
    """

    prefix: str
    name: str
    module: str
    hint: str

    def socket(self, key: bytes) -> Path:
        """Return the socket of the daemon that serves ``key``; create its directory if needed.

        Raises
        ------
        StorageError
            If the directory cannot be used, or the path is too long for a socket.
        """
        place = directory.runtime_directory()
        digest = hashlib.blake2b(key, digest_size=8).hexdigest()
        socket = place / f"{self.prefix}{digest}.sock"
        if (length := len(os.fsencode(socket))) > _SOCKET_PATH_BYTES:
            raise StorageError(
                f"runtime directory {place}: its path is too long for a socket: expected at most "
                f"{_SOCKET_PATH_BYTES} bytes, found {length}\n"
                "hint: set FOREBAY_RUNTIME_DIR to a shorter path",
                filename=place,
            )
        return socket

    def sockets(self) -> list[Path]:
        """Return the sockets of this user's daemons, also of dead ones."""
        return directory.own_sockets(self.prefix)

    def is_own(self, socket: Path) -> bool:
        """Whether a path, which another user may have chosen, is a socket of this user's daemon."""
        return directory.is_own_socket(socket, self.prefix)

    def forget(self, socket: Path) -> None:
        """Remove the socket and the log of a dead daemon."""
        if self.is_own(socket):
            socket.unlink(missing_ok=True)
            log_of(socket).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other processes from starting daemons."""
        with directory.locked(directory.runtime_directory()):
            yield

    def ask(
        self, socket: Path, request: dict[str, Any], *, within_s: float = control.ANSWER_WITHIN_S
    ) -> dict[str, Any]:
        """Send a request and return the answer; see :func:`forebay._daemon.control.ask`."""
        return control.ask(socket, request, name=self.name, hint=self.hint, within_s=within_s)

    def launch(
        self,
        configuration: dict[str, Any],
        socket: Path,
        *,
        attempt: str,
        is_up: Callable[[dict[str, Any]], bool],
    ) -> None:
        """Start a daemon and wait until it is up; the caller holds :meth:`locked`.

        Parameters
        ----------
        configuration
            JSON for its standard input; ``socket`` is in it.
        socket
            On which it answers ``ping``.
        attempt
            What fails if it does not come up, for errors: ``"mount data"``.
        is_up
            Whether the answer to ``ping`` says that it does all that it was started for.

        Raises
        ------
        StorageError
            If it ends before it is up, with the end of its log.
        StorageTimeout
            If it is not up within a minute.
        """
        socket.unlink(missing_ok=True)
        log = log_of(socket)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        alive, theirs = os.pipe()
        messages = os.open(log, flags, 0o600)
        try:
            # The daemon holds the other end of the pipe while it lives.
            subprocess.run(
                [sys.executable, "-m", self.module, str(theirs)],
                input=json.dumps(configuration),
                text=True,
                stdout=messages,
                stderr=messages,
                pass_fds=(theirs,),
                env=clean_environment(),
                check=False,
            )
            os.close(theirs)
            theirs = -1
            self._wait_until_up(socket, attempt, is_up, alive)
        except BaseException:
            # An interrupted start leaves no daemon.
            with suppress(StorageError):
                self.ask(socket, {"command": "end"})
            raise
        finally:
            for descriptor in (alive, theirs, messages):
                if descriptor >= 0:
                    os.close(descriptor)

    def _wait_until_up(
        self, socket: Path, attempt: str, is_up: Callable[[dict[str, Any]], bool], alive: int
    ) -> None:
        log = log_of(socket)
        deadline = time.monotonic() + _UP_WITHIN_S
        while time.monotonic() < deadline:
            try:
                facts = self.ask(socket, {"command": "ping"}, within_s=max(deadline - time.monotonic(), 0.1))
            except control.GoneError:
                facts = None
            if facts is not None and is_up(facts):
                return
            if select.select([alive], [], [], _TRY_EVERY_S)[0]:
                said = "\n".join(_end_of(log)) or "it said nothing"
                log.unlink(missing_ok=True)
                socket.unlink(missing_ok=True)
                raise StorageError(f"{attempt}: {self.name} ended before it was up\n{said}")
        raise StorageTimeout(f"{attempt}: {self.name} was not up within {_UP_WITHIN_S:g} s\nhint: see {log}")


def log_of(socket: Path) -> Path:
    """Return the log file of the daemon of a socket."""
    return socket.with_suffix(".log")


def _end_of(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []
