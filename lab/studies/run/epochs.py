"""What the sections share: data, a program run by epochs, and what reached the source."""

from __future__ import annotations

import io
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forebay import _native
from forebay_lab.bench.containers import example, framed
from forebay_lab.bench.sample import Field, Sample
from studies.harness import daemon
from studies.harness.program import Program
from studies.harness.sections import DIRECTORY, MIB
from studies.harness.tiered import Mounts

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
    return b"".join(
        framed(example(_sample(len(one)), number, np.frombuffer(one, np.uint8)))
        for number, one in enumerate(_samples(data))
    )


def _sample(length: int) -> Sample:
    return Sample(length, 0, "raw", (Field("x", "uint8", (length,)),))


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
    with Program(mode.command(mounts, program)) as process:
        for number in range(epochs):
            before = counts(mounts)
            told = process.ask(str(number))
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
        if code := process.close(COPIES_WITHIN_S):
            raise RuntimeError(f"{mode.name}: the program ended with {code}")
    daemon.stop()
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


def quota(data_bytes: int, share: float) -> str:
    """Return the size of a tier for a share of the data, and a little for its log."""
    return f"{round(data_bytes * share / MIB) + 1}MiB"
