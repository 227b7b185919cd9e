"""Waits of the script's thread that let signal handlers run.

Python runs handlers between two waits, and the system ends no wait that has not begun: a signal
that comes just before a long wait would be answered only after it.
"""

from __future__ import annotations

import math
import threading
import time

__all__ = ["wait"]

_STRETCH_S = 0.2


def wait(event: threading.Event, timeout: float | None = None) -> bool:
    """Wait for an event, at most ``timeout`` seconds, and return whether it is set."""
    end = math.inf if timeout is None else time.monotonic() + timeout
    while not event.wait(min(_STRETCH_S, end - time.monotonic())):
        if time.monotonic() >= end:
            return False
    return True
