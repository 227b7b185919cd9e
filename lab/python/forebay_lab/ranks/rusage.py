"""What one process did, from the kernel's own counters.

Two views are joined: the process (`getrusage(RUSAGE_SELF)`, `/proc/self/io`), which includes the
reader threads of a loader, and the main thread (`RUSAGE_THREAD`) while it trains. What the process
did less what its main thread did while training is what getting the data cost; the message-passing
library and the arithmetic are out of that figure.
"""

from __future__ import annotations

import resource
import time
from dataclasses import astuple, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters of `getrusage`, and processor time."""

    cpu_seconds: float = 0.0
    minor_faults: int = 0
    major_faults: int = 0
    voluntary_switches: int = 0
    involuntary_switches: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))


def process_usage() -> Usage:
    """Of all threads of this process."""
    return _usage(resource.RUSAGE_SELF, time.process_time())


def thread_usage() -> Usage:
    """Of the calling thread."""
    return _usage(resource.RUSAGE_THREAD, time.thread_time())


def _usage(who: int, cpu_seconds: float) -> Usage:
    # The processor time comes from the clocks: getrusage brings it up to date only at ticks and
    # switches, which would book the time of short waits to whatever came after them.
    usage = resource.getrusage(who)
    return Usage(cpu_seconds, usage.ru_minflt, usage.ru_majflt, usage.ru_nvcsw, usage.ru_nivcsw)


@dataclass(frozen=True, slots=True)
class Transfers:
    """Counters of `/proc/self/io` (proc_pid_io(5))."""

    read_call_bytes: int = 0
    """`rchar`: bytes that read calls returned, cached or not; without reads through a mapping."""
    read_calls: int = 0
    """`syscr`: read calls."""
    storage_bytes: int = 0
    """`read_bytes`: bytes that this process caused to be fetched from storage."""

    def __sub__(self, other: Transfers) -> Transfers:
        return Transfers(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))


def transfers() -> Transfers:
    """Of all threads of this process; zeros where the kernel does not count them."""
    try:
        with Path("/proc/self/io").open(encoding="ascii") as file:
            values = {name: int(value) for name, value in (line.split(":") for line in file)}
    except OSError:
        return Transfers()
    return Transfers(values["rchar"], values["syscr"], values["read_bytes"])


def processors() -> tuple[int, int]:
    """Return the busy time of all processors of the machine, and all their time [ticks]."""
    # user, nice, system, idle, iowait, irq, softirq, steal: proc_stat(5).
    ticks = list(map(int, Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:9]))
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
