"""The control socket of a daemon: one line of JSON per request and per answer.

Each request has its own connection, so a forked process never reads half of an answer.
"""

from __future__ import annotations

import json
import os
import socket as sockets
from pathlib import Path
from typing import Any

from forebay._core import StorageError, StorageTimeout

__all__ = ["GoneError", "ask"]

# Timeout of an answer [s]: the emulator drops the page cache of a large node in seconds.
ANSWER_WITHIN_S = 60.0

_PIECE_BYTES = 1 << 16


class GoneError(StorageError):
    """No daemon listens on the socket, or it ended before it answered."""


def ask(
    socket: Path,
    request: dict[str, Any],
    *,
    name: str,
    hint: str,
    within_s: float = ANSWER_WITHIN_S,
) -> dict[str, Any]:
    """Send a request and return the answer, without its ``ok``.

    Parameters
    ----------
    socket
        Of the daemon.
    request
        ``command`` and its arguments.
    name
        Of the daemon, for errors: "the emulator".
    hint
        Advice if no daemon listens.
    within_s
        Timeout [s].

    Raises
    ------
    GoneError
        If no daemon listens, or it ends before it answers.
    StorageError
        If the answer is late or invalid, or reports an error.
    """
    attempt = f"ask {name} at {socket} for {request.get('command')!r}"
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as connection:
        connection.settimeout(within_s)
        try:
            connection.connect(os.fspath(socket))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise GoneError(
                f"{attempt}: no server is there\nhint: {hint}", errno=error.errno, filename=socket
            ) from error
        except OSError as error:
            raise StorageError(
                f"{attempt}: {error.strerror or error}", errno=error.errno, filename=socket
            ) from error
        line = bytearray()
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            while not line.endswith(b"\n"):
                piece = connection.recv(_PIECE_BYTES)
                if not piece:
                    raise GoneError(f"{attempt}: the server ended before it had answered")
                line += piece
        except TimeoutError as error:
            raise StorageTimeout(f"{attempt}: no answer within {within_s:g} s") from error
        except ConnectionError as error:
            raise GoneError(f"{attempt}: the server ended before it had answered") from error
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise StorageError(f"{attempt}: expected a line of JSON, found {bytes(line[:80])!r}") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
        raise StorageError(f"{attempt}: expected an object with `ok`, found {bytes(line[:80])!r}")
    if not answer.pop("ok"):
        raise StorageError(str(answer.get("error", f"{attempt}: refused without a reason")))
    return answer
