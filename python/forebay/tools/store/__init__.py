"""The daemon that keeps shares of in-memory stores between jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from forebay import _native
from forebay._core import StorageError

__all__ = ["IDLE_S", "start", "status", "stop"]

# A job that waits in the queue of a busy cluster for longer loads its share again [s].
IDLE_S = 3600.0


def start(memory_bytes: int | None, idle_s: float) -> bool:
    """Start the daemon of this user on this node; return whether there was none.

    Parameters
    ----------
    memory_bytes
        Memory that shares may take; None for half of that of the node.
    idle_s
        It ends when nothing was used for so long [s].

    Raises
    ------
    StorageError
        If it does not start.
    """
    command = [sys.executable, "-m", "forebay.tools.store", str(memory_bytes or 0), repr(idle_s)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StorageError(f"start the store daemon: {done.stderr.strip()}")
    return done.stdout.strip() == "started"


def status() -> dict[str, Any] | None:
    """Return what the daemon holds, with the keys of docs/metrics.md; None if there is none.

    Raises
    ------
    ForebayError
        If it does not answer.
    """
    text = _native.store_status()
    return None if text is None else dict(json.loads(text))


def stop() -> tuple[int, int] | None:
    """End the daemon and free its memory.

    Returns its process id, and how many processes use its shares; None if there is none.

    Raises
    ------
    ForebayError
        If it does not answer, or does not end.
    """
    return _native.stop_store()
