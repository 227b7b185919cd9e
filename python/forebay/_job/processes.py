"""Processes of this node: which are ranks of the job, and which have ended."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from pathlib import Path

from forebay import _native

# How often the processes of the node are looked at [s].
_LOOK_EVERY_S = 0.02
# How long a rank goes on when a process of its node has ended [s]: one that has answered before is
# missed by no rank.
_GRACE_S = 1.0

# Processes that start the ranks of a node; the name as in /proc/PID/comm, which holds 15 bytes.
_LAUNCHERS = (
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "prterun",
    "prted",
    "orted",
    "mpiexec",
    "mpirun",
    "mpiexec.hydra",
)


class Processes:
    """Other ranks of this node, watched by pidfds; before that, as children of their launcher."""

    def __init__(self, pids: Mapping[int, tuple[int, int]], siblings: _native.Siblings | None = None) -> None:
        """Watch processes: rank → process id and start time, as process ids are reused."""
        self._siblings = siblings
        self._open: dict[int, tuple[int, int]] = {}
        self._gone: dict[int, int] = {}
        self._poll = select.poll()
        self._looked = 0.0
        self._lost_since: float | None = None
        for rank, (pid, started) in pids.items():
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self._gone[rank] = pid
                continue
            except OSError:
                # Not to be watched here; then the deadline has to do.
                continue
            if start_of(pid) != started:
                os.close(descriptor)
                self._gone[rank] = pid
                continue
            self._open[descriptor] = (rank, pid)
            self._poll.register(descriptor, select.POLLIN)

    def lost(self) -> str:
        """Return the ranks that have ended, in words; empty until they are missed."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return ""
        self._looked = now
        gone = self._gone_now()
        if gone and self._lost_since is None:
            self._lost_since = now
        if self._lost_since is None or now - self._lost_since < _GRACE_S:
            return ""
        return ", ".join(f"rank {rank} (process {pid})" for rank, pid in sorted(gone.items()))

    def _gone_now(self) -> Mapping[int, int]:
        for descriptor, _ in self._poll.poll(0):
            rank, pid = self._open.pop(descriptor)
            self._gone[rank] = pid
            self._poll.unregister(descriptor)
            os.close(descriptor)
        if self._siblings is not None:
            self._gone.update(self._siblings.ended())
        return self._gone

    def close(self) -> None:
        """Watch no process any more."""
        for descriptor in self._open:
            self._poll.unregister(descriptor)
            os.close(descriptor)
        self._open.clear()
        self._gone.clear()
        self._siblings = None


def start_of(pid: int | str) -> int:
    """Return when a process was started [clock ticks since boot]; 0 if that cannot be found out."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        return int(text[text.rindex(")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def process_namespace() -> int:
    """Return what tells process namespaces of a machine apart; 0 if that cannot be found out."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def parent_and_start(pid: int) -> tuple[str, int, str]:
    """Return name, parent and start time of a process; the start time identifies a reused id."""
    text = Path(f"/proc/{pid}/stat").read_text()
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return name, int(rest[1]), rest[19]


def process_key(pid: int) -> str:
    try:
        return f"{pid}-{parent_and_start(pid)[2]}"
    except OSError:
        return str(pid)


def launcher_process() -> str:
    """Return the nearest ancestor that is an MPI launcher; shells may stand between."""
    pid = os.getppid()
    try:
        while pid > 1:
            name, parent, start = parent_and_start(pid)
            if name in _LAUNCHERS:
                return f"{pid}-{start}"
            pid = parent
    except OSError:
        pass
    return process_key(os.getppid())
