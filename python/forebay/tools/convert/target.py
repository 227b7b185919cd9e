"""The target of a conversion: choose the format, check, write to a temporary name, rename."""

from __future__ import annotations

import errno
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

from forebay._core import FormatError, StorageError, option_error
from forebay.tools.convert.columns import Column
from forebay.tools.convert.source import Source, with_lengths

__all__ = ["TARGETS", "Converted", "convert"]

TARGETS: Mapping[str, tuple[str, ...]] = {
    "lmdb": (".lmdb", ".mdb"),
    "hdf5": (".h5", ".hdf5"),
    "tfrecord": (".tfrecord", ".tfrecords"),
    "recordio": (".rec",),
    "tar": (".tar",),
    "npy": (".npy",),
    "npz": (".npz",),
    "raw": (".bin", ".raw"),
    "arrow": (".arrow", ".feather"),
    "parquet": (".parquet",),
    "folder": (),
}
"""Formats that are written, and by which suffixes they are known; a folder has none."""

# Formats of arrays, whose samples have one length.
_DENSE = {"hdf5", "npy", "npz", "raw"}

# What may stand in a directory that is replaced: an LMDB environment and nothing else.
_LMDB_FILES = {"data.mdb", "lock.mdb"}


class _Writer(Protocol):
    """A module that writes a format."""

    @staticmethod
    def check(columns: Sequence[Column]) -> list[str]:
        """Refuse what the format cannot hold; return what will not come back as it was."""
        ...

    @staticmethod
    def write(path: Path, source: Source) -> None:
        """Write all samples and flush them to the disk."""
        ...


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written."""

    target: Path
    """Where."""
    format: str
    """In which format."""
    samples: int
    """Number of samples."""
    file_bytes: int
    """Size of the files [bytes]."""
    seconds: float
    """Time it took [s]."""
    notes: list[str]
    """What the format does not keep as it was."""
    left_out: Sequence[tuple[int, str]] = ()
    """Bad samples, which are not in it: number in the source and what is wrong."""


def convert(
    source: Source,
    target: Path,
    *,
    to: str | None = None,
    force: bool = False,
    progress: Callable[[str, int, int], object] = lambda what, done, total: None,
) -> Converted:
    """Write all samples of a source into a new file (for LMDB and folders, a directory).

    Nothing is there under the name of the target before all is written, nor afterwards if something
    goes wrong.

    Parameters
    ----------
    source : Source
        What is read.
    target : path
        What is written.
    to : str, optional
        The format, one of :data:`TARGETS`; by default the suffix of the target tells.
    force : bool
        Whether to replace a file, or an LMDB environment, that is there.
    progress : function
        Told (what, done, all) after each batch.

    Raises
    ------
    OptionError
        If the format is not known, cannot hold the samples, or the target is there.
    StorageError
        If the target cannot be written, or the library that writes it is missing.
    """
    name = to or _format_of(target)
    if name not in TARGETS:
        raise option_error(f"forebay convert: {name!r} is not written", f"formats: {', '.join(TARGETS)}")
    writer = cast("_Writer", importlib.import_module(f"forebay.tools.convert.to_{name}"))
    _refuse_to_replace(target, force)
    started = time.perf_counter()
    if name in _DENSE:
        # What is refused whatever the lengths are is refused before anything is read for them.
        writer.check([replace(column, length=column.length or 1) for column in source.columns])
        source = with_lengths(_Told(source, progress, "lengths"))
    notes = writer.check(source.columns)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as room:
            made = Path(room) / target.name
            writer.write(made, _Told(source, progress, "samples"))
            file_bytes = sum(file.stat().st_size for file in _files(made))
            _put(made, target, Path(room) / "replaced")
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"{target}: cannot be written: {error}", errno=error.errno, filename=target
        ) from error
    return Converted(
        target, name, source.samples, file_bytes, time.perf_counter() - started, notes, source.left_out
    )


class _Told:
    """A source that tells how far it was read."""

    def __init__(self, source: Source, progress: Callable[[str, int, int], object], what: str) -> None:
        self._source, self._what = source, what
        self._progress = progress
        self.columns = source.columns
        self.samples = source.samples
        self.left_out = source.left_out

    def batches(self) -> Iterator[Mapping[str, Any]]:
        done = 0
        for batch in self._source.batches():
            yield batch
            done += len(next(iter(batch.values())))
            self._progress(self._what, done, self.samples)
        # What was begun for so many samples would hold others, or nothing, in their place.
        if self._what == "samples" and done != self.samples:
            raise FormatError(f"forebay convert: expected {self.samples} samples, read {done}")


def _format_of(target: Path) -> str:
    """Return the format that a name stands for."""
    for name, suffixes in TARGETS.items():
        if target.suffix.lower() in suffixes:
            return name
    known = ", ".join(suffix for suffixes in TARGETS.values() for suffix in suffixes)
    raise option_error(
        f"{target}: its suffix does not tell a format",
        f"name the format with --to, or end the name with {known}",
    )


def _refuse_to_replace(target: Path, force: bool) -> None:
    """Raise where something is in the way that is not to be replaced, or there is no place."""
    if not target.parent.is_dir():
        raise StorageError(
            f"{target}: there is no directory {target.parent}", errno=errno.ENOENT, filename=target.parent
        )
    if not os.path.lexists(target):
        return
    is_directory = target.is_dir() and not target.is_symlink()
    others: list[str] = []
    if is_directory:
        others = sorted({entry.name for entry in target.iterdir()} - _LMDB_FILES)
    by_hand = "remove it yourself if it is not needed"
    if others:
        raise option_error(
            f"{target}: is a directory that holds {others[0]}; only an LMDB environment is replaced", by_hand
        )
    if target.is_symlink() or not (is_directory or target.is_file()):
        kind = "a symbolic link" if target.is_symlink() else "no ordinary file"
        raise option_error(f"{target}: is there already, and {kind}, which is not replaced", by_hand)
    if not force:
        raise option_error(f"{target}: is there already", "--force replaces it")


def _files(made: Path) -> list[Path]:
    """Return the files that were made."""
    return [path for path in made.rglob("*") if path.is_file()] if made.is_dir() else [made]


def _put(made: Path, target: Path, aside: Path) -> None:
    """Rename the finished target to its name."""
    if made.is_dir() or (target.is_dir() and not target.is_symlink()):
        # A directory is replaced in two steps; what was there goes with the temporary directory.
        if os.path.lexists(target):
            target.rename(aside)
        try:
            made.rename(target)
        except OSError:
            if os.path.lexists(aside):
                aside.rename(target)
            raise
    else:
        made.replace(target)
    descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
