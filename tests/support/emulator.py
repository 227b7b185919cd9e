"""Helpers for tests that mount: a small file system, cleaned-up mounts, reads of the emulator."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import shutil
from pathlib import Path

import pytest

import support
from forebay._core import ForebayError
from forebay_lab import pfs
from forebay_lab.pfs import mounts
from forebay_lab.pfs.emulator import EMULATOR
from forebay_lab.pfs.mounts import entries

# Four targets, fast enough that tests do not wait and slow enough that times are those of the
# model.
SPEC = {
    "name": "test",
    "targets": 4,
    "target_bytes_per_second": 1e8,
    "latency_us": 500.0,
    "seek_us": 0.0,
    "stripe_bytes": 1 << 20,
    "stripe_count": 4,
    "request_bytes": 1 << 20,
    "request_depth": 8,
    "read_ahead_bytes": 131072,
    "read_ahead_mmap_bytes": 131072,
    "link_bytes_per_second": None,
    "metadata_us": 100.0,
}


def cannot_mount() -> str | None:
    """Return why nothing can be mounted here, if so."""
    try:
        descriptor = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        return f"/dev/fuse cannot be opened: {error.strerror}"
    os.close(descriptor)
    if not mounts.may_mount() and shutil.which("fusermount3") is None:
        return "neither root nor fusermount3 is here"
    return None


needs_fuse = pytest.mark.skipif((reason := cannot_mount()) is not None, reason=reason or "")


def ours(below: Path) -> list[Path]:
    """Return the mounts below a directory."""
    return [entry.point for entry in entries() if entry.point.is_relative_to(below)]


def remove_all(below: Path) -> None:
    """End every emulator that has a mount below a directory, and remove what is left there."""
    for point in ours(below):
        try:
            pfs.Server.of(point).end()
        except (ForebayError, OSError):
            if point in ours(below):
                mounts.remove(point)
    for socket in EMULATOR.sockets():
        with contextlib.suppress(ForebayError):
            server = pfs.Server.connect(socket)
            if server.backing.is_relative_to(below):
                server.end()


def write_spec(path: Path, **changes: object) -> Path:
    """Write the small file system as TOML."""
    numbers = {name: value for name, value in {**SPEC, **changes}.items() if value is not None}
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in numbers.items()))
    return path


def read_direct(path: Path, offset: int, length: int) -> bytes:
    """Read past the page cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        # O_DIRECT wants aligned memory, which an anonymous mapping is.
        with mmap.mmap(-1, length) as buffer:
            count = os.preadv(descriptor, [buffer], offset)
            return buffer[:count]
    finally:
        os.close(descriptor)


def wait_for(process: int) -> None:
    """Wait until a process has ended, and close its descriptor."""
    ready, _, _ = select.select([process], [], [], support.DEADLINE_S)
    os.close(process)
    assert ready, "the server has not ended"


@pytest.fixture
def backing(tmp_path):
    """A directory with a file of 8 MiB."""
    path = tmp_path / "backing"
    path.mkdir()
    (path / "file").write_bytes(support.record(1, 8 << 20))
    return path


@pytest.fixture
def points(tmp_path):
    """Two mount points; what is mounted there is gone afterwards."""
    found = [tmp_path / "node0", tmp_path / "node1"]
    for path in found:
        path.mkdir()
    yield found
    remove_all(tmp_path)
    assert ours(tmp_path) == []
