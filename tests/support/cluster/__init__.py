"""Emulated nodes in tests: whether they work here, programs on them, checks for leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import support
from forebay_lab.cluster import Cluster, ClusterError

WITHIN_S = support.DEADLINE_S


def cannot_emulate() -> str | None:
    """Return why there can be no nodes here, if so."""
    try:
        Cluster(1).close()
    except ClusterError as error:
        return str(error).splitlines()[0]
    return None


needs_nodes = pytest.mark.skipif((reason := cannot_emulate()) is not None, reason=reason or "")


class Program:
    """A command of a cluster; its output goes to files, so that no pipe fills up."""

    def __init__(self, command: Sequence[str], **variables: str) -> None:
        # Closed by finish().
        self._output = [tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")]  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=self._output[0],
            stderr=self._output[1],
        )

    def said(self, text: str) -> bool:
        """Whether it has written a text to stdout."""
        return text.encode() in os.pread(self._output[0].fileno(), 1 << 16, 0)

    def finish(self, deadline_s: float = WITHIN_S) -> tuple[int, str, str]:
        """Wait for the end; return exit code, stdout, stderr."""
        code = self._process.wait(deadline_s)
        found = []
        for file in self._output:
            file.seek(0)
            found.append(file.read())
        self.drop()
        return code, found[0], found[1]

    def wake(self) -> None:
        """Continue the process that leads into the node; it stops with the program."""
        self._process.send_signal(signal.SIGCONT)

    def drop(self) -> None:
        """Let go of a command that has ended, or ends with the cluster."""
        self._process.kill()
        self._process.wait()
        for file in self._output:
            file.close()


def python(cluster: Cluster, node: int, code: str, *arguments: object) -> Program:
    """Run Python code on a node."""
    program = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return Program(cluster.on(node, program))


def descendants(pid: int) -> list[tuple[int, str]]:
    """Return all descendants of a process as (id, start time), which tell reused ids apart."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _parent_and_start(int(entry.name))) is not None:
            parents[int(entry.name)] = found
    below, found_now = [], [pid]
    while found_now:
        found_now = [child for child, (parent, _) in parents.items() if parent in found_now]
        below += [(child, parents[child][1]) for child in found_now]
    return below


def _parent_and_start(pid: int) -> tuple[int, str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    rest = text[text.rindex(")") + 2 :].split()
    return int(rest[1]), rest[19]


def wait_for_descendants(pid: int, wanted: Callable[[str], bool], count: int) -> list[tuple[int, str]]:
    """Wait until `count` descendants have the wanted command line; return all descendants."""
    end = time.monotonic() + WITHIN_S
    while True:
        below = descendants(pid)
        if sum(wanted(_command_line(one)) for one, _ in below) >= count:
            return below
        assert time.monotonic() < end, [_command_line(one) for one, _ in below]
        time.sleep(0.05)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def wait_until_gone(processes: list[tuple[int, str]]) -> None:
    """Wait until none of some processes is there any more."""
    end = time.monotonic() + WITHIN_S
    while left := [one for one in processes if (found := _parent_and_start(one[0])) and found[1] == one[1]]:
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.02)
