"""Start the tier daemon; end when it listens.

The engine runs this where it finds no daemon. The daemon ends when no loader has used it for
``$FOREBAY_TIERS_IDLE`` seconds, or by SIGTERM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from forebay._daemon.detach import detach

__all__ = ["main"]

IDLE_VARIABLE = "FOREBAY_TIERS_IDLE"
IDLE_S = 60.0


def main() -> int:
    """Detach a daemon, and wait until it listens; return its exit status if it does not."""
    idle_s = _idle_s()

    def serve(listening: Callable[[str], None]) -> None:
        from forebay import _native

        _native.serve_tiers(idle_s, lambda: listening("listening"))

    return detach(serve)


def _idle_s() -> float:
    text = os.environ.get(IDLE_VARIABLE)
    try:
        seconds = IDLE_S if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise SystemExit(f"{IDLE_VARIABLE}: expected a number of seconds, found {text!r}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
