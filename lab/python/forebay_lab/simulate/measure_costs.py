"""Measure the costs of this machine, in about ten seconds.

Everything lies in a temporary folder, and in the page cache: nothing but requests of the page cache
waits for storage, and of those only the sending is measured. A real loader delivers small samples;
what its threads say of their own time is divided by the samples. Other numbers come from loops
around one operation each. Of several rounds the shortest counts, as other programs only make one
longer; of requests, which may find pages that stayed, the median.

What cannot be measured here keeps its default, and is named: what serving takes, which needs two
nodes; requests where the temporary folder lies in memory; the cursor without py-lmdb.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

import forebay
from forebay import _native
from forebay_lab.bench import machine
from forebay_lab.ranks import page_cache
from forebay_lab.simulate.costs import Costs

__all__ = ["measure"]

Report = Callable[[str, int, int], None]

MIB = 1 << 20
PAGE_BYTES = 4096
ROUNDS = 5
FILE_BYTES = 64 * MIB
"""Of the file that is read, mapped and dropped."""
LIMIT_SECONDS = 0.3
LOADERS, SAMPLES, SAMPLE_BYTES, BATCH = 30, 16_384, 64, 1024
"""Of the loaders: samples so small that copying them is a small part, and few, so that some of the
loaders are done before another program gets the processor."""
STAYING_SHARE = 0.1
"""Of the file that is dropped: single pages stay, and all of a file that lies in memory."""
RECORDS = 20_000
"""That a cursor passes."""
TURNS = 2000
"""Of a byte that goes to and fro between two processes."""

_FIRST_LOADER = """
import sys, time
import forebay, forebay._job.world, forebay.loader
begin = time.process_time_ns()
with forebay.Loader(forebay.open(sys.argv[1]), batch_size=int(sys.argv[2])) as loader:
    next(iter(loader))
    print(time.process_time_ns() - begin)
"""

_ECHO = "import os\nwhile byte := os.read({0}, 1): os.write({1}, byte)"


def measure(report: Report) -> tuple[Costs, list[str]]:
    """Measure this machine.

    Parameters
    ----------
    report
        Told (what, done, all) while it runs.

    Returns
    -------
    costs
        Of this machine.
    notes
        What was not measured, and why.
    """
    found: dict[str, float] = {}
    notes = [
        "serve_ns, serve_bytes_per_second: need two nodes; the defaults are those of docs/results/store.md"
    ]
    with TemporaryDirectory(prefix="forebay-costs-") as name:
        directory = Path(name)
        file = directory / "bytes"
        file.write_bytes(np.random.default_rng(0).bytes(FILE_BYTES))
        steps: dict[str, Callable[[], dict[str, float]]] = {
            "copies": _copies,
            "reads": lambda: {"read_ns": _reads(file, found["copy_bytes_per_second"])},
            "page faults": lambda: {"fault_ns": _faults(file)},
            "a loader": lambda: _loader(directory, found["copy_bytes_per_second"]),
            "a cursor": lambda: _cursor(directory, notes),
            "threads": lambda: {"wake_ns": _turns(*_pipes())},
            "messages": lambda: {"message_ns": _turns(*_sockets())},
            "requests": lambda: _requests(directory, notes),
        }
        for done, (what, step) in enumerate(steps.items()):
            report(what, done, len(steps))
            found |= step()
    return msgspec.structs.replace(Costs.default(), machine=machine.describe(), **found), notes


def _timed(work: Callable[[], object]) -> float:
    """Return the nanoseconds of a call: the least of several."""
    found = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        work()
        found.append(time.perf_counter_ns() - begin)
    return min(found)


def _copies() -> dict[str, float]:
    """Copy blocks of 1 MiB: about what a batch takes from one block."""
    source = np.ones((64, MIB), np.uint8)
    target = np.ones_like(source)
    found = []
    for _ in range(ROUNDS):
        # Each block comes from memory: the others have taken the place of all before it in caches.
        for to, block in zip(target, source, strict=True):
            begin = time.perf_counter_ns()
            np.copyto(to, block)
            found.append(time.perf_counter_ns() - begin)
    return {"copy_bytes_per_second": MIB / min(found) * 1e9}


def _reads(file: Path, copy_bytes_per_second: float) -> float:
    """Read pages from the page cache."""
    page_cache.warm(file)
    figure = _native.limit(str(file), block_bytes=PAGE_BYTES, seconds=LIMIT_SECONDS, kind="random")
    each = figure["seconds"] * 1e9 / figure["reads"]
    return float(max(each - PAGE_BYTES / copy_bytes_per_second * 1e9, 0.0))


def _faults(file: Path) -> float:
    """Touch each page of new mappings: the kernel maps some neighbours of a page with it."""
    page_cache.warm(file)

    def touch() -> None:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            pages = np.frombuffer(mapping, np.uint8)[::PAGE_BYTES]
            pages.max()
            del pages

    return _timed(touch) / (FILE_BYTES // PAGE_BYTES)


def _loader(directory: Path, copy_bytes_per_second: float) -> dict[str, float]:
    path = directory / "samples.npy"
    np.save(path, np.zeros((SAMPLES, SAMPLE_BYTES), np.uint8))
    page_cache.warm(path)
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "order": "shuffle",
        "strategy": {"name": "forebay", "access": "pread"},
        "expected_epochs": 1,
    }
    rounds = []
    for _ in range(LOADERS):
        with forebay.Loader(forebay.open(path), **options) as loader:
            for _ in loader:
                pass
            rounds.append(loader.stats())
    least = {
        key: min(one[f"{key}_seconds"] for one in rounds) * 1e9 / SAMPLES
        for key in ("locate", "plan", "gather")
    }
    copied = SAMPLE_BYTES / copy_bytes_per_second * 1e9
    return {
        "locate_ns": least["locate"],
        "plan_ns": least["plan"],
        "gather_ns": max(least["gather"] - copied, 0.0),
        "start_up_ns": min(_start_up(path) for _ in range(ROUNDS)),
    }


def _start_up(path: Path) -> float:
    """Make the first loader of a process, as a rank does; return the processor time."""
    command = [sys.executable, "-c", _FIRST_LOADER, str(path), str(BATCH)]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def _cursor(directory: Path, notes: list[str]) -> dict[str, float]:
    if importlib.util.find_spec("lmdb") is None:
        notes.append("pass_ns: py-lmdb is not installed; the default")
        return {}
    import lmdb

    with lmdb.open(str(directory / "lmdb"), map_size=FILE_BYTES) as environment:
        with environment.begin(write=True) as transaction:
            for record in range(RECORDS):
                transaction.put(b"%08d" % record, b"value", append=True)
        with environment.begin() as transaction, transaction.cursor() as cursor:

            def walk() -> None:
                forward = cursor.next
                cursor.first()
                while forward():
                    pass

            return {"pass_ns": _timed(walk) / RECORDS}


Ends = tuple[Callable[[bytes], object], Callable[[], bytes], Callable[[], None]]


def _pipes() -> Ends:
    """Start a process that answers over pipes; return send, receive, close."""
    there, here = os.pipe(), os.pipe()
    child = _echo(there[0], here[1])
    os.close(there[0])
    os.close(here[1])

    def close() -> None:
        os.close(there[1])
        os.close(here[0])
        child.wait()

    return lambda data: os.write(there[1], data), lambda: os.read(here[0], 1), close


def _sockets() -> Ends:
    """Start a process that answers over TCP; return send, receive, close."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for one in (own, other):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with other:
        child = _echo(other.fileno(), other.fileno())

    def close() -> None:
        own.close()
        child.wait()

    return own.sendall, lambda: own.recv(1), close


def _echo(source: int, target: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", _ECHO.format(source, target)], pass_fds={source, target}
    )


def _turns(send: Callable[[bytes], object], receive: Callable[[], bytes], close: Callable[[], None]) -> float:
    """Return the time from one process to the other."""

    def turn() -> None:
        for _ in range(TURNS // ROUNDS):
            send(b"\0")
            receive()

    try:
        return _timed(turn) / (TURNS // ROUNDS) / 2
    finally:
        close()


def _requests(directory: Path, notes: list[str]) -> dict[str, float]:
    """Ask for 1 MiB after another of a file that is not in the page cache."""
    file = directory / "cold"
    # Pages that other measurements have used lately would stay.
    file.write_bytes(np.random.default_rng(1).bytes(FILE_BYTES))
    page_cache.drop(file)
    share = page_cache.resident_share(file)
    if share is None or share > STAYING_SHARE:
        notes.append(f"request_ns: files in {directory.parent} stay in memory; the default")
        return {}
    found = []
    with file.open("rb") as opened:
        for offset in range(0, FILE_BYTES, MIB):
            begin = time.perf_counter_ns()
            os.posix_fadvise(opened.fileno(), offset, MIB, os.POSIX_FADV_WILLNEED)
            found.append(time.perf_counter_ns() - begin)
    return {"request_ns": statistics.median(found)}
