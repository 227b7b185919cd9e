"""The tier daemon of a study: its process, its end, and copies under way."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import forebay
from forebay import _native

__all__ = ["pid", "stop", "usage"]


def usage() -> dict[str, Any] | None:
    """Return what the daemon says of itself; None without one."""
    found = _native.tiers_usage()
    return None if found is None else json.loads(found)


def pid() -> int | None:
    """Return its process; None without one."""
    found = usage()
    return None if found is None else int(found["pid"])


def stop() -> None:
    """End the daemon, and wait: it stays while it still knows a loader that has ended."""
    # It may end while it is asked.
    while True:
        with contextlib.suppress(forebay.ForebayError):
            if (found := pid()) is None or not Path(f"/proc/{found}").exists():
                return
            _native.stop_tiers()
        time.sleep(0.02)
