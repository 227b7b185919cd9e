"""Helpers of the tests; each lives here once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb

from forebay import cli
from forebay_lab.ranks import page_cache

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"

# Open MPI on one machine with fewer cores than ranks, possibly as root.
MPI_ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPI_OPTIONS = ("--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp")

# Whether there is time for more of the same tests (`make test-long`).
LONG = bool(os.environ.get("FOREBAY_LONG_TESTS"))

# For interpreters in which the packages are not installed.
PACKAGES = os.pathsep.join((str(ROOT / "python"), str(ROOT / "lab/python")))

# A watchdog against hangs [s], never a measurement: a machine that compiles meanwhile takes many
# times as long as an idle one.
DEADLINE_S = 240
# The same for the report of a death to waiting ranks: far below the default timeout of 600 s.
TOLD_WITHIN_S = 120
# How often a test is tried that only a machine without other work passes at once.
TRIES = 40


def drop_from_page_cache(path: Path) -> None:
    """Drop a file from the page cache; skip the test where the system shows nothing of it."""
    import pytest  # ranks import this module, and start faster without it

    # The kernel keeps pages that are in use at the moment, as on a busy machine.
    for _ in range(TRIES):
        page_cache.drop(path)
        share = page_cache.resident_share(path)
        if share is None:
            pytest.skip("this file system does not tell what is in the page cache")
        if share == 0:
            break
    assert share == 0


def record(number: int, length: int) -> bytes:
    """Bytes that are different for every number and place."""
    return random.Random(number).randbytes(length)


def datum(number: int, channels: int = 3, height: int = 8, width: int = 8) -> bytes:
    """Return a Caffe Datum (protobuf, written by hand): pixels from the number, label = number."""
    pixels = record(number, channels * height * width)
    data = b"\x22" + _varint(len(pixels)) + pixels
    shape = b"".join(
        bytes([tag]) + _varint(size) for tag, size in ((0x08, channels), (0x10, height), (0x18, width))
    )
    return shape + data + b"\x28" + _varint(number)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_lmdb(
    path: Path, values: Sequence[bytes], *, database: str | None = None, subdir: bool = True
) -> Path:
    """Write values under the keys 00000000, 00000001, ... with py-lmdb."""
    size = 2 * sum(map(len, values)) + 8192 * len(values) + (1 << 20)
    with lmdb.open(str(path), map_size=size, subdir=subdir, max_dbs=4) as environment:
        handle = environment.open_db(database.encode()) if database else None
        with environment.begin(write=True, db=handle) as transaction:
            for number, value in enumerate(values):
                transaction.put(f"{number:08d}".encode(), value)
    return path


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waiting for {what}"
        time.sleep(0.005)


def wait_until_idle(pid: int) -> None:
    """Wait until all other threads of a process are idle: not running, runnable or in disk wait."""
    looks = 0

    def is_idle() -> bool:
        nonlocal looks
        looks = looks + 1 if all(state == "S" for state in _states(pid)) else 0
        # One thread may have handed its work to another one in the middle of a look.
        return looks == 5

    wait_until(is_idle, f"process {pid} to be idle")


def _states(pid: int) -> Iterator[str]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        if int(task.name) != threading.get_native_id():
            # A thread that ends meanwhile has nothing to do.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = (task / "stat").read_text()
                yield stat[stat.rindex(")") + 2]


def pidfds_of(pid: int) -> int:
    """Return how many processes a process watches."""
    links = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links += str(descriptor.readlink()) == "anon_inode:[pidfd]"
    return links


def run_python(
    code: str, *arguments: object, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def run_command(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """Run the command ``forebay`` in this process; return exit code, stdout, stderr."""
    status = cli.main([str(one) for one in arguments])
    found = capsys.readouterr()
    return status, found.out, found.err


def run_command_json(capsys: Any, *arguments: object) -> Any:
    """Run a command with ``--json`` that succeeds without warnings; return what it prints."""
    status, out, err = run_command(capsys, *arguments, "--json")
    assert (status, err) == (0, ""), err
    assert out.count("\n") == 1
    return json.loads(out)


def documented_keys(title: str) -> list[str]:
    """Keys in the tables below a heading of docs/metrics.md."""
    text = (ROOT / "docs/metrics.md").read_text()
    section = re.split(r"^#+ ", text.split(f" {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, flags=re.MULTILINE)
    return [key for row in rows for key in re.findall(r"`(\w+)`", row)]


class Process:
    """Run Python code in a process; its output goes to files, so that no pipe fills up."""

    def __init__(self, code: str, *arguments: object, environment: dict[str, str] | None = None) -> None:
        # Closed by finish() or kill().
        self._output = [tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")]  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._output[0],
            stderr=self._output[1],
        )
        self.pid = self._process.pid

    def finish(self, deadline_s: float = DEADLINE_S) -> tuple[int, str, str]:
        """Wait for the end; return exit code, stdout, stderr."""
        returncode = self._process.wait(max(deadline_s, 0.1))
        found = []
        for file in self._output:
            file.seek(0)
            found.append(file.read())
        self.kill()
        return returncode, found[0], found[1]

    def kill(self) -> None:
        """End the process if it still runs."""
        self._process.kill()
        self._process.wait()
        for file in self._output:
            file.close()


def run_mpi(
    ranks: int, code: str, *arguments: object, environment: dict[str, str] | None = None
) -> list[object]:
    """Run code on MPI ranks of this machine; return the JSON line of each rank, by rank.

    The code has ``emit(value)``, to be called once per rank.
    """
    done = start_mpi(ranks, code, *arguments, environment=environment)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("EMIT ")]
    found = dict(json.loads(line.removeprefix("EMIT ")) for line in lines)
    assert sorted(found) == list(range(ranks)), done.stdout + done.stderr
    return [found[rank] for rank in range(ranks)]


_PRELUDE = """
import json, os, sys
def emit(value):
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    # One write call per line, so that lines of several ranks do not mix.
    os.write(1, f"EMIT {json.dumps([rank, value])}\\n".encode())
"""


def start_mpi(
    ranks: int, code: str, *arguments: object, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run code on MPI ranks of this machine and return what mpiexec did."""
    command = [str(MPIEXEC), *MPI_OPTIONS, "-n", str(ranks), sys.executable, "-c", _PRELUDE + code]
    return subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, **MPI_ENVIRONMENT, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
