"""All ranks of one loader: start them, time epochs, count their processor time.

A rank that fails or does not answer ends its job, and the row says why; other rows go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.frameworks.place import Place

__all__ = ["Job", "JobError", "Turn"]

ANSWER_S = 120
"""A rank that is silent for that long has failed: no turn takes a tenth of it."""


class JobError(Exception):
    """A rank failed; the message has the end of what it wrote."""


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

    def __init__(
        self, loader: str, places: Sequence[Place], environment: Mapping[str, str] | None = None
    ) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "studies.frameworks.rank", loader, json.dumps(place.facts())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                bufsize=1,
                # Workers belong to the group of their rank.
                start_new_session=True,
                env={
                    **os.environ,
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    "PYTHONWARNINGS": "ignore",
                    **(environment or {}),
                },
            )
            for place in places
        ]

    def ready(self) -> None:
        """Wait until every rank has its loader."""
        self._answers()

    def release(self) -> None:
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
        if self._errors.closed:
            return
        for rank in self._ranks:
            with contextlib.suppress(OSError):
                rank.stdin.close()  # type: ignore[union-attr]
        deadline = time.monotonic() + 5
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
            rank.stdout.close()  # type: ignore[union-attr]
        self._errors.close()

    def _ask(self, line: str) -> list[dict[str, Any]]:
        for rank in self._ranks:
            try:
                rank.stdin.write(f"{line}\n")  # type: ignore[union-attr]
                rank.stdin.flush()  # type: ignore[union-attr]
            except OSError:
                raise self._failure("a rank ended") from None
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        return [self._answer(rank) for rank in self._ranks]

    def _answer(self, rank: subprocess.Popen[str]) -> dict[str, Any]:
        readable, _, _ = select.select([rank.stdout], [], [], ANSWER_S)
        if not readable:
            raise self._failure(f"no answer in {ANSWER_S} s")
        # A rank writes one line for a command.
        line = rank.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise self._failure("a rank ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self, what: str) -> JobError:
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        return JobError(f"{what}: {lines[-1] if lines else 'nothing written'}")

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
