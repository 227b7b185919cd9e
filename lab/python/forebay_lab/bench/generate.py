"""Generated datasets: seeded noise with the sizes of a workload, in any of its containers.

A `Recipe` holds all that determines the bytes. Under a lock, the bench reuses a dataset with the
same recipe and a complete manifest. Otherwise it writes one under a name that ends in ``.partial``,
samples block by block and the manifest last, and renames it. The next run removes the ``.partial``
of an interrupted one.

The content is the raw output of a random generator (SFC64, one stream per block of samples): it
does not compress, and no two samples are equal. The exponent of 32-bit floats is 0, so that they
are ordinary numbers. The first eight bytes of a sample are its number, little-endian. Variable
sizes follow a normal distribution, truncated symmetrically, which keeps the mean.

The bench writes nothing when the disk has too little room.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay._core import StorageError
from forebay_lab.bench.containers import WRITERS, Block, minimum_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from forebay_lab.bench.sample import Sample

__all__ = [
    "MANIFEST",
    "Generated",
    "Recipe",
    "block_samples",
    "blocks",
    "file_counts",
    "generate",
    "sample_number",
    "sizes",
]

MANIFEST = "forebay-workload.json"
"""Name of the file that says what a dataset holds; it is written last."""

VERSION = 1
"""Goes up when the same recipe gives other bytes."""

_BLOCK_BYTES = 1 << 20
"""Approximate size of the blocks of samples; each block has a generator, which costs 10 µs."""

_ROOM = 1.05
"""Share of the estimate that must be free: the metadata of the file system comes on top."""

_WIDEST_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides the bytes of a dataset."""

    name: str
    container: str
    samples: int
    files: int
    sample: Sample
    seed: int
    version: int = VERSION

    @property
    def directory_name(self) -> str:
        """Name of its directory: different for what may stand side by side."""
        return f"{self.name}-{self.container}-{self.samples}-seed{self.seed}"

    def parameters(self) -> dict[str, Any]:
        """Return the recipe as JSON knows it."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found


@dataclass(frozen=True, slots=True)
class Generated:
    """A dataset on disk."""

    directory: Path
    paths: tuple[Path, ...]
    sample_bytes: int
    """Bytes of all samples, without what the container adds."""
    file_bytes: int
    """Bytes of all files."""
    made: bool
    """False: it was there already."""


def sizes(recipe: Recipe) -> NDArray[np.int64] | None:
    """Return the size of each sample, or None where all are equal."""
    sample = recipe.sample
    if not sample.deviation_bytes:
        return None
    generator = np.random.Generator(np.random.SFC64([recipe.seed, 0]))
    least = 8 + sum(field.bytes or 0 for field in sample.fields)
    widest = min(_WIDEST_DEVIATIONS * sample.deviation_bytes, sample.bytes - least)
    drawn = generator.standard_normal(recipe.samples) * sample.deviation_bytes
    return sample.bytes + np.clip(drawn, -widest, widest).astype(np.int64)


def file_counts(recipe: Recipe) -> list[int]:
    """Return the samples of each file: as even as possible, the larger ones first."""
    each, more = divmod(recipe.samples, recipe.files)
    return [each + (number < more) for number in range(recipe.files)]


def block_samples(sample: Sample) -> int:
    """Return the samples of a block; no transaction of an LMDB file goes beyond its block."""
    return max(1, _BLOCK_BYTES // sample.bytes)


def blocks(recipe: Recipe) -> Iterator[Block]:
    """Make all samples, in blocks that end where a file ends."""
    drawn = sizes(recipe)
    most = block_samples(recipe.sample)
    first = 0
    for count in file_counts(recipe):
        for start in range(first, first + count, most):
            stop = min(start + most, first + count)
            lengths = (
                np.full(stop - start, recipe.sample.bytes, np.int64) if drawn is None else drawn[start:stop]
            )
            yield _block(recipe, start, lengths)
        first += count


def sample_number(payload: bytes | memoryview | NDArray[np.uint8]) -> int:
    """Return which sample it is: its first eight bytes say so."""
    return int.from_bytes(bytes(payload[:8]), "little")


def _block(recipe: Recipe, first: int, lengths: NDArray[np.int64]) -> Block:
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    words = np.random.SFC64([recipe.seed, 1, first]).random_raw(-(-total // 8))
    data: NDArray[np.uint8] = words.view(np.uint8)[:total]
    fixed = [field for field in recipe.sample.fields if field.shape is not None]
    if any(field.dtype == "float32" for field in fixed):
        # Only samples of equal size hold floats: a field that varies is of uint8, and alone at the
        # end.
        table = data.reshape(len(lengths), -1) if not recipe.sample.deviation_bytes else None
        start = 0
        for field in fixed:
            end = start + (field.bytes or 0)
            if field.dtype == "float32" and table is not None:
                bits = table[:, start:end].view(np.uint32)
                bits &= np.uint32(0x007F_FFFF)
                bits |= np.uint32(0x3F80_0000)
            start = end
    starts = ends - lengths
    numbers = np.arange(first, first + len(lengths), dtype="<u8").view(np.uint8).reshape(-1, 8)
    data[starts[:, None] + np.arange(8)] = numbers
    return Block(first, data, ends)


def generate(
    recipe: Recipe, directory: Path, progress: Callable[[str, int, int], None] | None = None
) -> Generated:
    """Make a dataset in a directory of its own in `directory`, or find it there.

    Parameters
    ----------
    recipe
        What it holds.
    directory
        Where datasets are kept; it is made when it is not there.
    progress
        Called with (what, samples written, samples in all).

    Raises
    ------
    StorageError
        If there is too little room, something else has the name, or a package is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    place = directory / recipe.directory_name
    partial = directory / f"{recipe.directory_name}.partial"
    with _locked(directory, place):
        found = _find(recipe, place)
        if found is not None:
            return found
        if partial.exists():
            shutil.rmtree(partial)
        # What is there of an older recipe gives its room away.
        freed = _size(place) if place.exists() else 0
        _check_room(recipe, directory, freed)
        if place.exists():
            shutil.rmtree(place)
        partial.mkdir()
        try:
            _write(recipe, partial, progress)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        partial.rename(place)
        made = _find(recipe, place)
    if made is None:
        raise StorageError(
            f"dataset {place}: expected it to be whole after writing, found it changed", filename=place
        )
    return Generated(made.directory, made.paths, made.sample_bytes, made.file_bytes, made=True)


def _write(recipe: Recipe, partial: Path, progress: Callable[[str, int, int], None] | None) -> None:
    written = {"bytes": 0}

    def counted() -> Iterator[Block]:
        for block in blocks(recipe):
            written["bytes"] += int(block.ends[-1])
            yield block
            if progress is not None:
                progress(f"generating {recipe.name}", block.first + len(block), recipe.samples)

    paths = WRITERS[recipe.container](partial, recipe.sample, file_counts(recipe), counted())
    manifest = {
        "forebay_workload": 1,
        "recipe": recipe.parameters(),
        "paths": [path.name for path in paths],
        "sample_bytes": written["bytes"],
        "file_bytes": _size(partial),
    }
    beside = partial / f"{MANIFEST}.new"
    with beside.open("w") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(partial / MANIFEST)


def _find(recipe: Recipe, place: Path) -> Generated | None:
    """Return the dataset if it is there and whole; None if it is to be made."""
    if not place.exists():
        return None
    try:
        manifest = json.loads((place / MANIFEST).read_text())
        ours = manifest["forebay_workload"] == 1
        same = manifest["recipe"] == recipe.parameters()
        paths = tuple(place / str(name) for name in manifest["paths"])
        sample_bytes, file_bytes = int(manifest["sample_bytes"]), int(manifest["file_bytes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"dataset {place}: expected {MANIFEST} of this dataset, found: {error}\n"
            "hint: the directory holds something else; move it away, or use another one",
            errno=error.errno if isinstance(error, OSError) else None,
            filename=place,
        ) from error
    if not (ours and same) or _size(place) != file_bytes:
        return None
    return Generated(place, paths, sample_bytes, file_bytes, made=False)


def _size(directory: Path) -> int:
    """Return the bytes of all files but the manifest and LMDB's lock file, which changes."""
    return sum(
        path.stat().st_size
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith(MANIFEST) and path.name != "lock.mdb"
    )


def _check_room(recipe: Recipe, directory: Path, freed: int) -> None:
    drawn = sizes(recipe)
    sample = recipe.sample if drawn is None else replace(recipe.sample, bytes=math.ceil(drawn.mean()))
    estimate = minimum_bytes(recipe.container, sample, recipe.samples, recipe.files)
    needed = int(estimate * _ROOM)
    free = shutil.disk_usage(directory).free + freed
    if needed > free:
        raise StorageError(
            f"dataset {directory / recipe.directory_name}: expected {needed / 2**20:,.0f} MiB free, "
            f"found {free / 2**20:,.0f} MiB\n"
            "hint: use a smaller scale, or a directory on another disk",
            errno=errno.ENOSPC,
            filename=directory,
        )


@contextmanager
def _locked(directory: Path, place: Path) -> Iterator[None]:
    """Let one process at a time work on a dataset; the lock ends with its process."""
    handle = os.open(directory / f".{place.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
