"""One set of samples in each format: noise, converted by ``forebay convert`` and h5py.

Each format is written by its own library, as ``forebay convert`` does. Chunked HDF5 and folders,
which it does not write, are written here, by h5py and by the file system.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import forebay
from forebay_lab.ranks.page_cache import drop
from studies.harness import small_files
from studies.harness.sections import Scope, run

__all__ = ["FORMATS", "Samples"]

CHUNK_BYTES = 1 << 20
"""Of chunked HDF5, about: the default size of h5py's chunk cache."""
FOLDER_FILES = 256
"""Files of each directory of a folder."""
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class Samples:
    """Equal samples of noise, kept as a raw file."""

    directory: Path
    count: int
    sample_bytes: int

    @classmethod
    def about(cls, scope: Scope, sample_bytes: int, data_bytes: int) -> Samples:
        """Noise of about so many bytes; of a tiny run, of 32 MiB."""
        count = scope.pick(data_bytes, 32 << 20) // sample_bytes
        return cls(scope.directory / "formats", count, sample_bytes)

    @property
    def raw(self) -> Path:
        """The raw file, made when it is not there."""
        path = self.directory / f"samples-{self.count}-{self.sample_bytes}.bin"
        if not path.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            generator = np.random.default_rng(self.sample_bytes)
            partial_path = path.with_suffix(".partial")
            with partial_path.open("wb") as file:
                left = self.count * self.sample_bytes
                while left:
                    left -= file.write(generator.bytes(min(left, _BLOCK_BYTES)))
                os.fsync(file.fileno())
            partial_path.rename(path)
        return path

    @property
    def array(self) -> np.ndarray:
        """All samples [count, sample_bytes], mapped."""
        return np.memmap(self.raw, np.uint8, "r", shape=(self.count, self.sample_bytes))

    def make(self, name: str) -> Path:
        """Return the samples in a format of `FORMATS`, made when they are not there."""
        if name == "raw":
            return self.raw
        path = self.directory / f"{self.raw.stem}-{name}{FORMATS[name][0]}"
        if not path.exists():
            if (write := FORMATS[name][1]) is None:
                layout = ("--format", "raw", "--record-bytes", str(self.sample_bytes))
                run("convert", str(self.raw), str(path), *layout, quiet=True)
            else:
                beside = path.with_name(f"{path.name}.partial")
                remove(beside)
                write(self, beside)
                for file in files_of(beside):
                    drop(file)
                beside.rename(path)
        return path

    def remove(self, name: str) -> None:
        """Remove what `make` made, and its index; the raw file stays."""
        path = self.make(name)
        for sidecar in self.directory.glob(f"{path.name}.*.forebay"):
            sidecar.unlink()
        if name != "raw":
            remove(path)

    def open(self, path: Path) -> forebay.Dataset:
        """Open the samples in any format, where they lie: records as they are."""
        if path.suffix == ".bin":
            return forebay.open(path, format="raw", record_bytes=self.sample_bytes)
        return forebay.open(
            path, schema="raw", format="folder" if path.is_dir() and path.suffix == "" else None
        )


def write_chunked(samples: Samples, path: Path, **filters: Any) -> None:
    """Write HDF5 of chunks of whole samples."""
    import h5py

    rows = max(1, min(samples.count, CHUNK_BYTES // samples.sample_bytes))
    with h5py.File(path, "w") as file:
        made = file.create_dataset(
            "data",
            (samples.count, samples.sample_bytes),
            "u1",
            chunks=(rows, samples.sample_bytes),
            **filters,
        )
        block = rows * max(1, _BLOCK_BYTES // (rows * samples.sample_bytes))
        for first in range(0, samples.count, block):
            made[first : first + block] = samples.array[first : first + block]


def write_folder(samples: Samples, path: Path) -> None:
    """Write one file per sample."""
    samples_of = samples.array
    small_files.make(path, samples.count, FOLDER_FILES, "{:08d}", lambda number: samples_of[number].tobytes())
    os.sync()


# Suffix, and what writes it; None: `forebay convert`.
FORMATS: dict[str, tuple[str, Callable[[Samples, Path], None] | None]] = {
    "lmdb": (".lmdb", None),
    "hdf5": (".h5", None),
    "hdf5-chunked": (".h5", write_chunked),
    "hdf5-gzip": (".h5", partial(write_chunked, compression="gzip", compression_opts=4)),
    "tfrecord": (".tfrecord", None),
    "recordio": (".rec", None),
    "tar": (".tar", None),
    "npy": (".npy", None),
    "npz": (".npz", None),
    "folder": ("", write_folder),
    "raw": (".bin", None),
}


def files_of(path: Path) -> list[Path]:
    return [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
