"""What the sections share: data, a program run by epochs, and what reached the source."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

import forebay
from forebay import _native
from sections import DIRECTORY, MIB
from tiering.study import Mounts

PROGRAMS = Path(__file__).parent / "programs"
SAMPLE_BYTES = 114_660
"""As the images of the other pages."""
COPIES_WITHIN_S = 60.0
"""How long copies under way may take after an epoch."""


@dataclass(frozen=True)
class Shards:
    """Files of equal size, made once."""

    kind: str
    count: int
    file_bytes: int
    directory: Path = DIRECTORY / "run"

    def make(self) -> Path:
        """Return their directory."""
        path = self.directory / f"{self.kind}-{self.count}-{self.file_bytes}"
        if not path.exists():
            draft = path.with_suffix(".partial")
            draft.mkdir(parents=True, exist_ok=True)
            for number in range(self.count):
                data = np.random.default_rng(number).bytes(self.file_bytes)
                (draft / f"{number:05}.{self.kind}").write_bytes(_WRITERS[self.kind](data))
            draft.rename(path)
            # Files of the last seconds are not copied.
            time.sleep(2.1)
        return path.resolve()


def total_bytes(directory: Path) -> int:
    """Sum the sizes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _samples(data: bytes) -> Iterator[bytes]:
    return (data[begin : begin + SAMPLE_BYTES] for begin in range(0, len(data), SAMPLE_BYTES))


def _tfrecord(data: bytes) -> bytes:
    def masked(part: bytes) -> bytes:
        value = google_crc32c.value(part)
        return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    def field(number: int, value: bytes) -> bytes:
        length, size = b"", len(value)
        while size > 0x7F:
            length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + value

    parts = []
    for sample in _samples(data):
        # Example { features { feature { key: "x", value { bytes_list { value } } } } }
        feature = field(1, b"x") + field(2, field(1, field(1, sample)))
        record = field(1, field(1, feature))
        head = struct.pack("<Q", len(record))
        parts += [head, masked(head), record, masked(record)]
    return b"".join(parts)


def _tar(data: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as shard:
        for number, sample in enumerate(_samples(data)):
            member = tarfile.TarInfo(f"{number:06}.bin")
            member.size = len(sample)
            shard.addfile(member, io.BytesIO(sample))
    return made.getvalue()


_WRITERS: dict[str, Callable[[bytes], bytes]] = {"tfrecord": _tfrecord, "tar": _tar, "bin": bytes}


@dataclass(frozen=True)
class Epoch:
    """What one epoch took, and what of it reached the source."""

    seconds: float
    copying_seconds: float
    """That copies under way took after it."""
    source_reads: int
    source_bytes: int
    metadata: int
    sample_bytes: int


@dataclass(frozen=True)
class Mode:
    """How a program is started."""

    name: str
    options: Sequence[str] | None = ()
    """Of `forebay run`; None for a program without it."""
    tier_size: str = "4GiB"

    def command(self, mounts: Mounts, program: Sequence[str]) -> list[str]:
        """Return the command that starts a program."""
        if self.options is None:
            return list(program)
        where = ["--tier", f"{mounts.tier}:{self.tier_size}", "--source", str(mounts.source)]
        return [*FOREBAY, "run", *where, *self.options, "--", *program]


FOREBAY = (sys.executable, "-m", "forebay")
WITHOUT = Mode("without", None)
FOLLOW = Mode("with")
WHOLE = Mode("--fetch whole", ("--fetch", "whole"))
FROZEN = Mode("--frozen", ("--frozen",))


def reader(name: str, directory: Path, *more: object) -> list[str]:
    """Return the command of a program of this directory."""
    return [sys.executable, str(PROGRAMS / f"{name}.py"), str(directory), *map(str, more)]


def run_epochs(mounts: Mounts, mode: Mode, program: Sequence[str], epochs: int) -> list[Epoch]:
    """Run a program for some epochs, none of which finds anything in the page cache."""
    found = []
    mounts.drop_caches()
    with subprocess.Popen(
        mode.command(mounts, program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(epochs):
            before = counts(mounts)
            print(number, file=process.stdin, flush=True)
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{mode.name}: the program ended in epoch {number + 1}")
            told = json.loads(line)
            begun = time.monotonic()
            if mode.options is not None:
                wait_for_copies()
            copying_seconds = time.monotonic() - begun
            reads, read_bytes, metadata = (
                after - first for after, first in zip(counts(mounts), before, strict=True)
            )
            found.append(
                Epoch(told["seconds"], copying_seconds, reads, read_bytes, metadata, told["sample_bytes"])
            )
            mounts.drop_caches()
        process.stdin.close()
    if process.returncode != 0:
        raise RuntimeError(f"{mode.name}: the program ended with {process.returncode}")
    end_daemon()
    return found


def counts(mounts: Mounts) -> tuple[int, int, int]:
    """Return requests, bytes and metadata operations of the source so far."""
    nodes = mounts.servers[0].stats()["nodes"]
    reads, read_bytes, metadata = (
        sum(int(node[key]) for node in nodes) for key in ("reads", "read_bytes", "metadata")
    )
    return reads, read_bytes, metadata


def wait_for_copies() -> None:
    """Wait until no copy is wanted or being made."""
    deadline = time.monotonic() + COPIES_WITHIN_S
    while time.monotonic() < deadline:
        runs = _native.run_usage() or []
        if not any(run["waiting_files"] + run["copying_files"] for run in runs):
            return
        time.sleep(0.02)
    raise RuntimeError(f"copies took more than {COPIES_WITHIN_S:g} s after an epoch")


def end_daemon() -> None:
    """Wait until the tier daemon has ended."""
    while True:
        # It may end while it is asked.
        with contextlib.suppress(forebay.ForebayError):
            if _native.tiers_usage() is None:
                return
            _native.stop_tiers()
        time.sleep(0.05)


def quota(data_bytes: int, share: float) -> str:
    """Return the size of a tier for a share of the data, and a little for its log."""
    return f"{round(data_bytes * share / MIB) + 1}MiB"


def daemon_memory_bytes() -> int:
    """Return the private memory of the tier daemon."""
    own = os.fsencode(f"FOREBAY_RUNTIME_DIR={os.environ['FOREBAY_RUNTIME_DIR']}")
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"forebay.tools.tiers" in words and own in (process / "environ").read_bytes().split(b"\0"):
                lines = (process / "smaps_rollup").read_text().splitlines()[1:]
                sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
                return sizes["Private_Dirty"] + sizes["Private_Clean"]
    raise RuntimeError("no tier daemon is running")
