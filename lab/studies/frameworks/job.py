"""All ranks of one loader: start them, time epochs, count their processor time.

A rank that fails or does not answer ends its job, and the row says why; other rows go on.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.frameworks.place import Place
from studies.harness.program import Program

__all__ = ["Job", "Turn"]

VARIABLES = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True)
class Turn:
    """Epochs of a job: wall time, processor time of all processes, and what was delivered."""

    seconds: float
    cpu_seconds: float
    samples: int
    total: int
    shape: tuple[int, ...]


class Job:
    """The ranks of a loader."""

    def __init__(self, loader: str, places: Sequence[Place]) -> None:
        words = [sys.executable, "-m", "studies.frameworks.rank", loader]
        self._ranks = [Program([*words, json.dumps(place.facts())], VARIABLES) for place in places]

    def ready(self) -> None:
        """Wait until every rank has its loader."""
        for rank in self._ranks:
            rank.line()

    def release(self) -> None:
        """Let go of the data."""
        self._ask("release")

    def turn(self, first: int, count: int) -> Turn:
        """Iterate epochs in all ranks."""
        before = self._cpu_seconds()
        found = self._ask(f"epochs {first} {count}")
        after = self._cpu_seconds()
        return Turn(
            seconds=max(one["ended"] for one in found) - min(one["begun"] for one in found),
            cpu_seconds=sum(after.values()) - sum(before.get(pid, 0.0) for pid in after),
            samples=sum(one["samples"] for one in found),
            total=sum(one["total"] for one in found),
            shape=tuple(found[0]["shape"]),
        )

    def pids(self) -> list[int]:
        """Return the ranks and their workers."""
        return [pid for rank in self._ranks for pid in descendants(rank.pid)]

    def close(self) -> None:
        """End the ranks; again, nothing."""
        for rank in self._ranks:
            rank.close()
        self._ranks = []

    def _ask(self, line: str) -> list[dict[str, Any]]:
        for rank in self._ranks:
            rank.send(line)
        return [json.loads(rank.line()) for rank in self._ranks]

    def _cpu_seconds(self) -> dict[int, float]:
        """Return the processor time of every process so far."""
        found = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                # The clock of a process: clock_getcpuclockid(3).
                found[pid] = time.clock_gettime((~pid << 3) | 2)
        return found


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                yield from descendants(int(child))
