"""What measured: processor, cores, memory and versions, stored with every figure."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

__all__ = ["describe", "facts"]


def facts() -> dict[str, Any]:
    """Return the object that a result of `forebay bench` holds."""
    return {
        "name": describe(),
        "cores": _cores(),
        "kernel": platform.release(),
        "memory_bytes": _memory_bytes(),
        "load": os.getloadavg()[0],
    }


def describe() -> str:
    """Return the line that a page of results is stored with."""
    models = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    return (
        f"{models[1] if models else 'unknown processor'}, {_cores()} cores, {_memory_bytes() / 2**30:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}"
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
