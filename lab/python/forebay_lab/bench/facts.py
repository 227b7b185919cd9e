"""What is known about a dataset before it is read: format, samples, sizes.

The engine looks at what it reads. Of HDF5 files that it does not read as they are, such as those
with values of variable length or with columns of several lengths, as much is found out as the
baselines need.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forebay
from forebay._core import FormatError, OptionError, StorageError
from forebay._paths import expand as expand_paths

__all__ = ["Facts", "hdf5_columns", "look"]

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")
_TFRECORD_SUFFIXES = (".tfrecord", ".tfrecords")

SCHEMA = "raw"
"""The bench compares raw records: decoding is each library's own work, another comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One dataset."""

    paths: tuple[str, ...]
    format: str
    samples: int
    bytes: int
    """Of all files."""
    mean_bytes: float
    """Of a record."""
    files: tuple[str, ...]
    """The data files."""
    for_engine: bool
    """Whether the engine reads this format; only baselines can, otherwise."""

    def as_json(self) -> dict[str, Any]:
        """Return the object that a result holds."""
        path = self.paths[0] if len(self.paths) == 1 else list(self.paths)
        return {
            "path": path,
            "format": self.format,
            "samples": self.samples,
            "files": len(self.files),
            "bytes": self.bytes,
            "mean_bytes": self.mean_bytes,
        }


def look(paths: tuple[str, ...]) -> Facts:
    """Find out what a dataset is; a path may be a pattern, as for `forebay.open`.

    Raises
    ------
    StorageError
        If a path is not there.
    FormatError
        If it is nothing that can be read.
    """
    paths = tuple(expand_paths(paths))
    for path in paths:
        if not Path(path).exists():
            raise StorageError(f"bench: there is no dataset {path}", errno=errno.ENOENT, filename=path)
    files = [Path(path) for path in paths]
    if len(files) == 1 and files[0].is_dir():
        inside = sorted(
            file for file in files[0].iterdir() if file.suffix in (*_HDF5_SUFFIXES, *_TFRECORD_SUFFIXES)
        )
        files = inside or files
    try:
        return _engine(tuple(map(str, files)))
    except (FormatError, OptionError):
        if all(_starts_with(file, _HDF5_MAGIC) for file in files):
            return _hdf5(tuple(map(str, files)))
        raise


def _starts_with(file: Path, magic: bytes) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(len(magic)) == magic


def _engine(paths: tuple[str, ...]) -> Facts:
    found = forebay.open(list(paths), schema=SCHEMA).native.inspect()
    return Facts(
        paths=paths,
        format=found["format"],
        samples=found["samples"],
        bytes=found["bytes"],
        mean_bytes=found["records"]["bytes"] / found["samples"],
        files=tuple(shard["path"] for shard in found["shards"]),
        for_engine=True,
    )


def hdf5_columns(file: Any) -> list[Any]:
    """Return the sample datasets of an open HDF5 file, by name: those of the most common length."""
    import h5py

    columns: list[Any] = []
    file.visititems(
        lambda _, one: columns.append(one) if isinstance(one, h5py.Dataset) and one.shape else None
    )
    lengths = [column.shape[0] for column in columns]
    if not lengths:
        raise FormatError(f"hdf5 file {file.filename}: expected a dataset with rows, found none")
    rows = max(lengths, key=lambda length: (lengths.count(length), length))
    return sorted((column for column in columns if column.shape[0] == rows), key=lambda column: column.name)


def _hdf5(files: tuple[str, ...]) -> Facts:
    try:
        import h5py
    except ImportError:
        raise FormatError(f"{files[0]}: HDF5 needs h5py\nhint: pip install 'forebay[bench]'") from None
    samples = sample_bytes = 0
    for path in files:
        with h5py.File(path, "r") as file:
            columns = hdf5_columns(file)
            samples += columns[0].shape[0]
            sample_bytes += sum(column.size * column.dtype.itemsize for column in columns)
    return _facts(files, "hdf5", samples, sample_bytes)


def _facts(files: tuple[str, ...], kind: str, samples: int, sample_bytes: int) -> Facts:
    if samples == 0:
        raise FormatError(f"{kind} file {files[0]}: expected samples, found none")
    size = sum(Path(file).stat().st_size for file in files)
    return Facts(
        paths=files,
        format=kind,
        samples=samples,
        bytes=size,
        mean_bytes=sample_bytes / samples,
        files=files,
        for_engine=False,
    )
