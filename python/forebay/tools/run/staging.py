"""What happens before the program starts: copies are made and compared; show how far that is."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from forebay import _native
from forebay._text import bytes_text
from forebay.tools.run.child import FORWARDED

__all__ = ["prepare"]

# Interval between two looks [s].
_LOOK_EVERY_S = 0.1

# Interval between two lines where there is no terminal [s].
_LINE_EVERY_S = 10.0

_BAR_CHARACTERS = 30


def prepare(session: _native.RunSession, *, stages: bool, checks: bool) -> signal.Signals | None:
    """Copy all sources, and compare all copies, as asked; return the signal that ended it early."""
    if stages:
        session.stage()
    try:
        return _watch(session, stages, checks) if stages or checks else None
    finally:
        _erase_bar()


def _erase_bar() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _watch(session: _native.RunSession, stages: bool, checks: bool) -> signal.Signals | None:
    shown_at = time.monotonic()
    while True:
        found = session.progress()
        now = time.monotonic()
        is_staged = found["is_done"] or not stages
        is_done = is_staged and (found["is_compared"] or not checks)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{_comparing(found) if is_staged else _bar(found)}")
            sys.stderr.flush()
        elif (is_done and stages) or now - shown_at >= _LINE_EVERY_S:
            words = _words(found) if is_done or not is_staged else _comparing(found)
            print(f"forebay run: {words}", file=sys.stderr, flush=True)
            shown_at = now
        if is_done:
            # The first file or directory that could not be copied.
            if found["problem"] is not None:
                _erase_bar()
                print(f"forebay run: staging: {found['problem']}", file=sys.stderr)
            return None
        # SIGINT raises KeyboardInterrupt.
        caught = signal.sigtimedwait(FORWARDED, _LOOK_EVERY_S)
        if caught is None or caught.si_signo == signal.SIGCONT:
            continue
        if caught.si_signo != signal.SIGTSTP:
            return signal.Signals(caught.si_signo)
        os.kill(os.getpid(), signal.SIGSTOP)


def _bar(found: dict[str, Any]) -> str:
    share = found["copied_bytes"] / found["bytes"] if found["bytes"] else 0.0
    full = min(_BAR_CHARACTERS, int(share * _BAR_CHARACTERS))
    return f"[{'#' * full}{'.' * (_BAR_CHARACTERS - full)}] {_words(found)}"


def _comparing(found: dict[str, Any]) -> str:
    return f"comparing copies with their sources: {found['compared_files']:,} files"


def _words(found: dict[str, Any]) -> str:
    if not found["files"]:
        return f"staging: {found['scanned_files']:,} files found, {bytes_text(found['scanned_bytes'])}"
    return (
        f"staging: {found['copied_files']:,} of {found['files']:,} files, "
        f"{bytes_text(found['copied_bytes'])} of {bytes_text(found['bytes'])}"
    )
