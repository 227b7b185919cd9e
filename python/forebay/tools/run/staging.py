"""Copy the sources before the program starts, and show how far that is."""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

from forebay._text import bytes_text
from forebay.tools.run.child import FORWARDED
from forebay.tools.run.served import Session

__all__ = ["stage"]

# Interval between two looks [s].
_LOOK_EVERY_S = 0.1

# Interval between two lines where there is no terminal [s].
_LINE_EVERY_S = 10.0

_BAR_CHARACTERS = 30

# Those that end a process which does not handle them. SIGINT raises KeyboardInterrupt.
_ENDING = FORWARDED - {signal.SIGCONT, signal.SIGTSTP}


def stage(session: Session) -> signal.Signals | None:
    """Copy all sources; return the signal that ended it early."""
    is_terminal = sys.stderr.isatty()
    session.stage()
    shown_at = time.monotonic()
    while True:
        found = session.progress()
        now = time.monotonic()
        if is_terminal:
            sys.stderr.write(f"\r\x1b[K{_bar(found)}")
            sys.stderr.flush()
        elif found["is_done"] or now - shown_at >= _LINE_EVERY_S:
            print(f"forebay run: {_words(found)}", file=sys.stderr, flush=True)
            shown_at = now
        if found["is_done"]:
            break
        if (caught := signal.sigtimedwait(_ENDING, _LOOK_EVERY_S)) is not None:
            _end_line(is_terminal)
            return signal.Signals(caught.si_signo)
    _end_line(is_terminal)
    if found["problem"] is not None:
        print(f"forebay run: staging: {found['problem']}", file=sys.stderr)
    return None


def _end_line(is_terminal: bool) -> None:
    if is_terminal:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


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
