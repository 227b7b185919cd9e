"""Helpers for tests of storage tiers: data of every format, and a daemon that leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
import support
from forebay import _native
from forebay.tools.convert import convert
from forebay.tools.convert.source import open_source

FORMATS = ("lmdb", "hdf5", "npy", "npz", "raw", "recordio", "tfrecord", "tar", "folder")
SAMPLES = 203  # no batch fits
SAMPLE_BYTES = 16_000
DATA_BYTES = SAMPLES * SAMPLE_BYTES
# The data of a file that holds nothing else.
CHUNKS = -(-DATA_BYTES // (1 << 20))
PIECES = -(-DATA_BYTES // (64 << 10))
WHOLE_CHUNKS = 16
BAD = {0, 1, 17, 18, 19, 40, 202}
# How old the last change of data must be before they are copied [s].
SETTLED_S = 2.0
MEMORY = "128MiB"


def rows(seed: int = 1) -> np.ndarray:
    """Samples of which no two pieces are equal; they compress to half."""
    return np.random.default_rng(seed).integers(0, 16, (SAMPLES, SAMPLE_BYTES), "uint8")


def write(directory: Path, kind: str, values: np.ndarray) -> Path:
    """Write samples in a format; return its path."""
    directory.mkdir(exist_ok=True)
    path = directory / f"x.{kind}"
    match kind:
        case "raw":
            path.write_bytes(values.tobytes())
        case "npy":
            np.save(path, values)
        case "npz":
            np.savez(path, x=values)
        case "hdf5":
            # The tests of frameworks load this module, and have no h5py.
            import h5py

            with h5py.File(path, "w") as file:
                file.create_dataset("x", data=values, chunks=(9, SAMPLE_BYTES), compression="gzip")
        case "folder":
            # Files of many lengths, and empty ones; several share a piece.
            for number, row in enumerate(values):
                (path / f"class-{number % 3}").mkdir(parents=True, exist_ok=True)
                name = path / f"class-{number % 3}" / f"{number:05}.bin"
                name.write_bytes(row[: number * 7919 % SAMPLE_BYTES].tobytes())
        case _:
            np.save(directory / "source.npy", values)
            source = open_source(
                lambda: forebay.open(directory / "source.npy"), [str(directory / "source.npy")], []
            )
            convert(source, path, to=kind)
    return path


def opening(kind: str) -> dict[str, Any]:
    """Return the options of :func:`forebay.open` for a format."""
    return {"format": kind} | ({"record_bytes": SAMPLE_BYTES} if kind == "raw" else {})


def settle(paths: Iterable[Path]) -> None:
    """Wait until data are old enough to be copied."""
    files = [file for path in paths for file in (path, *path.rglob("*"))]
    newest = max(max(stat.st_mtime, stat.st_ctime) for stat in map(Path.stat, files))
    time.sleep(max(0.0, newest + SETTLED_S + 0.1 - time.time()))


def tier(path: Path, size: str | int = "64MiB") -> str:
    """Make the directory of a tier, and describe it."""
    path.mkdir(exist_ok=True)
    return f"{path}:{size}"


@dataclass(frozen=True)
class Data:
    """Datasets that are old enough to be copied."""

    formats: dict[str, Path]
    """One of each format, which tests leave as they are."""
    whole: Path
    """A directory with a file of whole chunks."""
    damaged: Path
    """Samples of which those in `BAD` are cut off."""
    copies: dict[tuple[str, int], Path]
    """Datasets that a test may change, by format and number."""


class Daemon:
    """The tier daemon of a test: any number of processes, one after the other."""

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime

    def usage(self) -> dict[str, Any] | None:
        """Return what it knows."""
        text = _native.tiers_usage()
        return None if text is None else json.loads(text)

    def pieces(self) -> int:
        """Return how many pieces are in all tiers."""
        levels = (self.usage() or {"levels": []})["levels"]
        return sum(source["pieces"] for level in levels for source in level["sources"])

    def pids(self) -> list[int]:
        """Return its processes."""
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                environment = (process / "environ").read_bytes().split(b"\0")
                mine = os.fsencode(f"FOREBAY_RUNTIME_DIR={self.runtime}") in environment
                if mine and b"forebay.tools.tiers" in (process / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal, and wait for its end."""
        pids = self.pids()
        for pid in pids:
            os.kill(pid, number)
        support.wait_until(lambda: not set(pids) & set(self.pids()), "the tier daemon to end")

    def end(self) -> None:
        """End it as users do, and look for what it left."""

        def has_ended() -> bool:
            with contextlib.suppress(forebay.ForebayError):
                _native.stop_tiers()
            return self.pids() == []

        support.wait_until(has_ended, "the tier daemon to end")
        assert list(self.runtime.iterdir()) == []


def descriptors() -> Counter[str]:
    """Count the memory of loaders and the files of tiers that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return Counter(one for one in found if one.startswith("/memfd:forebay") or "/v1/slabs" in one)


@contextlib.contextmanager
def running() -> Iterator[Daemon]:
    """Give a daemon a place of its own; afterwards nothing of it is left."""
    with (
        tempfile.TemporaryDirectory(prefix="forebay-tiers-") as runtime,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("FOREBAY_RUNTIME_DIR", runtime)
        patch.setenv("FOREBAY_TIERS_IDLE", "0.5")
        daemon = Daemon(Path(runtime))
        try:
            yield daemon
            daemon.end()
        finally:
            for pid in daemon.pids():
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def daemon(plain_environment: None) -> Iterator[Daemon]:
    """Return a daemon of the test alone; it is started by the first loader with tiers."""
    before = descriptors()
    with running() as daemon:
        yield daemon
    # A loader of an earlier test may be gone only now.
    assert not descriptors() - before


@pytest.fixture(scope="module")
def daemon_of_module() -> Iterator[Daemon]:
    """Give the tests of a module one daemon."""
    with running() as daemon:
        yield daemon


@pytest.fixture
def shared_daemon(
    plain_environment: None, daemon_of_module: Daemon, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Daemon]:
    """Return a daemon that other tests of the module use as well."""
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", str(daemon_of_module.runtime))
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    before = descriptors()
    yield daemon_of_module
    # A loader of an earlier test may be gone only now.
    assert not descriptors() - before


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """Return a directory in memory."""
    with tempfile.TemporaryDirectory(prefix="memory-tier-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def tier_data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Make all data that tests of tiers use, and wait once until they are old enough."""
    directory = tmp_path_factory.mktemp("tiers")
    values = rows()
    data = Data(
        formats={kind: write(directory / kind, kind, values) for kind in FORMATS},
        whole=directory / "whole",
        damaged=directory / "damaged.lmdb",
        copies={
            (kind, number): write(directory / f"{kind}-{number}", kind, values)
            for kind, count in (("raw", 7), ("folder", 4))
            for number in range(count)
        },
    )
    datums = [support.datum(number) for number in range(SAMPLES)]
    support.write_lmdb(data.damaged, [one[:20] if n in BAD else one for n, one in enumerate(datums)])
    data.whole.mkdir()
    (data.whole / "x.raw").write_bytes(np.random.default_rng(1).bytes(WHOLE_CHUNKS << 20))
    settle([directory])
    return data
