"""Copy the sources before the program starts, and show how far that is."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from forebay import _native
from forebay._text import bytes_text
from forebay.tools.run.child import FORWARDED

__all__ = ["stage"]

# Interval between two looks [s].
_LOOK_EVERY_S = 0.1

# Interval between two lines where there is no terminal [s].
_LINE_EVERY_S = 10.0

_BAR_CHARACTERS = 30


def stage(session: _native.RunSession) -> signal.Signals | None:
    """Copy all sources; return the signal that ended it early."""
    session.stage()
    try:
        return _watch(session)
    finally:
        _erase_bar()


def _erase_bar() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _watch(session: _native.RunSession) -> signal.Signals | None:
    shown_at = time.monotonic()
    while True:
        found = session.progress()
        now = time.monotonic()
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{_bar(found)}")
            sys.stderr.flush()
        elif found["is_done"] or now - shown_at >= _LINE_EVERY_S:
            print(f"forebay run: {_words(found)}", file=sys.stderr, flush=True)
            shown_at = now
        if found["is_done"]:
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


def _words(found: dict[str, Any]) -> str:
    if not found["files"]:
        return f"staging: {found['scanned_files']:,} files found, {bytes_text(found['scanned_bytes'])}"
    return (
        f"staging: {found['copied_files']:,} of {found['files']:,} files, "
        f"{bytes_text(found['copied_bytes'])} of {bytes_text(found['bytes'])}"
    )
