"""Programs that a study talks to: a line of standard input each time, a line of output back.

A program runs in a session of its own, which ends with it: workers that it started belong to it.
What it writes to standard error is kept, and its last line is in the message of a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Self

__all__ = ["Program", "ProgramError"]

ANSWER_S = 120.0
"""A program that is silent for that long has failed: no turn takes a tenth of it."""
END_S = 5.0
_PART_BYTES = 1 << 16


class ProgramError(Exception):
    """A program ended, or did not answer."""


class Program:
    """A running program."""

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str] | None = None, answer_s: float = ANSWER_S
    ) -> None:
        self._name, self._answer_s = " ".join(command[:4]), answer_s
        self._unread = b""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, bufsize=1,
            start_new_session=True, env={**os.environ, **(variables or {})},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def send(self, line: str) -> None:
        """Write a line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure("it ended") from None

    def line(self) -> str:
        """Return the next line that it writes."""
        assert self._process.stdout is not None
        # Not by readline: what it has read ahead, select does not see.
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], self._answer_s)[0]:
                raise self._failure(f"no answer in {self._answer_s:g} s")
            if not (part := os.read(self._process.stdout.fileno(), _PART_BYTES)):
                raise self._failure("it ended")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode().strip()

    def ask(self, line: str) -> Any:
        """Write a line; return the JSON that comes back."""
        self.send(line)
        return json.loads(self.line())

    def close(self, within_s: float = END_S) -> int:
        """Close its standard input, wait for its end, and kill what is left of its session, once.

        Returns
        -------
        int
            Its exit code.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if self._errors.closed:
            return process.returncode
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        self._errors.close()
        return process.returncode

    def _failure(self, what: str) -> ProgramError:
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        return ProgramError(f"{self._name}: {what}: {lines[-1] if lines else 'nothing written'}")
