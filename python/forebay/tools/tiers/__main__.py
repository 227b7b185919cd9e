"""Start the tier daemon; end when it listens.

The engine runs this where it finds no daemon. The daemon leaves the session, the terminal and the
working directory, and ends when no loader has used it for ``$FOREBAY_TIERS_IDLE`` seconds, or by
SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

__all__ = ["main"]

IDLE_VARIABLE = "FOREBAY_TIERS_IDLE"
IDLE_S = 60.0


def main() -> int:
    """Detach a daemon, and wait until it listens; return its exit status if it does not."""
    idle_s = _idle_s()
    ready, theirs = os.pipe()
    # Before any thread starts.
    if os.fork():
        os.close(theirs)
        with os.fdopen(ready, "rb") as answer:
            said = answer.read().decode(errors="replace")
        if said == "ready":
            return 0
        print(said or "it ended before it listened", file=sys.stderr)
        return 1
    os.close(ready)
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    # Who starts it may hold signals back, as `forebay run` does.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    from forebay import _native
    from forebay._core import ForebayError

    def listening() -> None:
        os.write(theirs, b"ready")
        os.close(theirs)

    try:
        _native.serve_tiers(idle_s, listening)
    except (ForebayError, OSError) as error:
        os.write(theirs, str(error).encode())
        return 1
    return 0


def _idle_s() -> float:
    text = os.environ.get(IDLE_VARIABLE)
    try:
        seconds = IDLE_S if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise SystemExit(f"{IDLE_VARIABLE}: expected a number of seconds, found {text!r}")
    return seconds


def _end(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
