"""Detach a daemon whose socket is in the engine: fork, and wait until it listens."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from forebay._daemon.inherited import drop_inherited, restart_clean

__all__ = ["detach"]


def detach(serve: Callable[[Callable[[str], None]], None]) -> int:
    """Run ``serve`` in a child that outlives this process; return the exit status of either.

    The child leaves the session, the terminal and the working directory, and drops what it
    inherited (``inherited.py``). ``serve`` calls its argument with a word once it listens: the
    parent prints that and returns 0. If ``serve`` fails before, the parent prints the error and
    returns 1. SIGTERM ends the child.

    Call it before any thread starts.
    """
    restart_clean()
    ready, theirs = os.pipe()
    if os.fork():
        os.close(theirs)
        with os.fdopen(ready, "rb") as answer:
            found, _, said = answer.read().decode(errors="replace").partition(" ")
        if found == "ready":
            print(said)
            return 0
        print(said or "it ended before it listened", file=sys.stderr)
        return 1
    os.close(ready)
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    drop_inherited(keep=(theirs,))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    from forebay._core import ForebayError

    def listening(word: str) -> None:
        os.write(theirs, f"ready {word}".encode())
        os.close(theirs)

    try:
        serve(listening)
    except (ForebayError, OSError) as error:
        os.write(theirs, f"failed {error}".encode())
        return 1
    return 0


def _end(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)
