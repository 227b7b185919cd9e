"""What is converted: samples in order, a batch at a time.

Everything comes through :func:`forebay.open` and a sequential :class:`forebay.Loader`, except for
what has to be rewritten before Forebay reads it in place: arrays in Fortran order and deflated
members of archives, which numpy reads, and two kinds of HDF5 files, which h5py reads
(:mod:`~forebay.tools.convert.hdf5_source`).
"""

from __future__ import annotations

import ast
import itertools
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from forebay._core import FormatError, OptionError, StorageError
from forebay._paths import expand
from forebay.tools.convert.columns import Column, names
from forebay.tools.convert.hdf5_source import by_h5py
from forebay.tools.convert.lmdb_pairs import by_lmdb

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.dataset import Dataset

    Progress = Callable[[str, int, int], object]

__all__ = ["KEY", "DatasetSource", "NumpySource", "Source", "open_source", "with_lengths"]

# A batch is about as large as this [bytes], so that any number of samples is converted in bounded
# memory.
BATCH_BYTES = 8 << 20
MAX_BATCH_SAMPLES = 4096

KEY = "__key__"
"""Key of the names of samples in a batch, which is no field."""

_numbers = itertools.count()


class Source(Protocol):
    """Samples in order."""

    columns: tuple[Column, ...]
    samples: int
    left_out: Sequence[tuple[int, str]]
    """Bad samples, which are not among those: number and what is wrong."""

    def batches(self) -> Iterator[Mapping[str, Any]]:
        """Iterate all samples: field name → array, or a list of arrays where lengths differ.

        Where samples are files, ``KEY`` → the path of each below its folder is behind the fields.
        """
        ...


class DatasetSource:
    """The samples of a dataset, with every checksum compared.

    Parameters
    ----------
    dataset : Dataset
        What is read.
    bad_samples : {"raise", "skip"}
        What a sample does that cannot be read or decoded, or has a wrong checksum. ``raise``: an
        error that names it. ``skip``: it is left out; all samples are read once before, to know
        which ones are left.
    progress : function
        Told (what, done, all) while checksums and samples are read beforehand.

    Raises
    ------
    FormatError
        If a checksum that stands for several samples is wrong, or no sample is good.
    """

    def __init__(
        self, dataset: Dataset, bad_samples: str = "raise", progress: Progress | None = None
    ) -> None:
        self._dataset = dataset
        self.left_out: Sequence[tuple[int, str]] = []
        if bad_samples == "skip":
            found = dataset.native.verify(listed=len(dataset), progress=progress)
            self.left_out = [(one["sample"], one["message"]) for one in found["bad"]]
        else:
            dataset.native.check_sums(progress=progress)
        self._is_bad = np.zeros(len(dataset), bool)
        self._is_bad[[number for number, _ in self.left_out]] = True
        facts = dataset.native.inspect()
        records = facts["records"]
        # Of records as they are it is known how long they are.
        equal = facts["schema"] == "raw" and records["shortest_bytes"] == records["longest_bytes"]
        length = records["longest_bytes"] if equal else None
        self._sample_bytes = max(1, records["longest_bytes"]) * max(1, len(dataset.fields))
        self.samples = len(dataset) - len(self.left_out)
        if not self.samples:
            raise FormatError(f"all {len(dataset)} samples are bad: {self.left_out[0][1]}")
        self.columns = tuple(
            Column(name, _dtype(dtype), shape, length if shape is None else None)
            for name, (dtype, shape) in dataset.fields.items()
        )

    def batches(self) -> Iterator[Mapping[str, Any]]:
        """Read through a loader."""
        from forebay.loader import Loader

        batch_size = max(1, min(MAX_BATCH_SAMPLES, self.samples, BATCH_BYTES // self._sample_bytes))
        good = np.flatnonzero(~self._is_bad)
        # An order has all samples: the bad ones come last, and are not asked for.
        order: Any = "sequential"
        if self.left_out:
            order = lambda epoch: np.concatenate([good, np.flatnonzero(self._is_bad)])  # noqa: E731
        whole = self.samples // batch_size if self.left_out else -(-self.samples // batch_size)
        with Loader(
            self._dataset,
            batch_size,
            order=order,
            last_batch="partial",
            expected_epochs=1,
            world="single",
            # Whatever the environment says: a bad sample is never replaced by another one.
            bad_samples="raise",
            checksums=True,
            name=f"convert-{next(_numbers)}",
        ) as loader:
            steps = iter(loader)
            for step in range(whole):
                try:
                    batch = next(steps)
                except (FormatError, StorageError) as error:
                    first = step * batch_size
                    raise self._named(error, good[first : first + batch_size]) from None
                yield self._with_names(batch, good[step * batch_size : (step + 1) * batch_size])
        if self.left_out and whole * batch_size < self.samples:
            rest = good[whole * batch_size :]
            yield self._with_names(self._read(rest), rest)

    def _with_names(self, batch: Mapping[str, Any], numbers: Iterable[int]) -> Mapping[str, Any]:
        """Return a batch with the names of its samples, where they are files."""
        if self._dataset.format != "folder" or "data" not in self._dataset.fields:
            return batch
        folders = self._dataset.paths
        if len(set(folders)) < len(folders):
            # A file of a folder that is there twice has no name of its own.
            return batch
        paths = [self._dataset.extents(int(number))[0][0] for number in numbers]
        return {
            **{column.name: batch[column.name] for column in self.columns},
            KEY: _names_of(folders, paths),
        }

    def _read(self, numbers: Iterable[int]) -> Mapping[str, Any]:
        """Read some samples one by one."""
        samples = [self._dataset.native.sample(int(number)) for number in numbers]
        batch: dict[str, Any] = {}
        for column in self.columns:
            values = [sample[column.name] for sample in samples]
            arrays = [
                np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value for value in values
            ]
            batch[column.name] = arrays if column.shape is None else np.stack(arrays)
        return batch

    def _named(self, error: FormatError | StorageError, numbers: Iterable[int]) -> Exception:
        """Return the error of a batch, with the bad sample's number and how to leave it out."""
        for number in numbers:
            try:
                self._dataset.native.sample(int(number))
            except (FormatError, StorageError) as found:
                text = str(found).partition("\nhint: ")[0]
                named = text if f"sample {number}" in text else f"sample {number}: {text}"
                return type(found)(f"{named}\nhint: --bad-samples skip leaves out what is bad, and lists it")
        return error


def _names_of(folders: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Return the paths of files from their folder on; of several, from what is above all."""
    above = folders[0] if len(folders) == 1 else os.path.commonpath([Path(one).absolute() for one in folders])
    return [os.path.relpath(path, above) for path in paths]


def with_lengths(source: Source) -> Source:
    """Return the source with columns that know whether all their samples have one length.

    Where the dataset cannot tell that beforehand, it is read once until two samples differ.
    """
    lengths: dict[str, int | None] = {}
    open_ones = {column.name for column in source.columns if column.shape is None and column.length is None}
    if not open_ones:
        return source
    for batch in source.batches():
        for name in sorted(open_ones):
            found = {len(value) for value in batch[name]} | {lengths.get(name, len(batch[name][0]))}
            if len(found) > 1:
                open_ones.discard(name)
            lengths[name] = found.pop() if len(found) == 1 else None
        if not open_ones:
            break
    columns = tuple(
        replace(column, length=lengths.get(column.name, column.length)) for column in source.columns
    )
    return _Measured(source, columns)


class _Measured:
    """A source whose columns are known better."""

    def __init__(self, source: Source, columns: tuple[Column, ...]) -> None:
        self._source = source
        self.columns = columns
        self.samples = source.samples
        self.left_out = source.left_out

    def batches(self) -> Iterator[Mapping[str, Any]]:
        return self._source.batches()


class NumpySource:
    """The arrays of an npy file or an npz archive, read by numpy."""

    left_out: Sequence[tuple[int, str]] = ()

    def __init__(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._arrays = arrays
        self.samples = len(next(iter(arrays.values())))
        self.columns = tuple(Column(name, array.dtype, array.shape[1:]) for name, array in arrays.items())

    def batches(self) -> Iterator[Mapping[str, Any]]:
        """Copy a stretch of rows at a time."""
        sample_bytes = sum(array.nbytes // self.samples for array in self._arrays.values())
        rows = max(1, BATCH_BYTES // sample_bytes)
        for first in range(0, self.samples, rows):
            yield {
                name: np.ascontiguousarray(array[first : first + rows])
                for name, array in self._arrays.items()
            }


class _NumpyFiles:
    """Files of numpy that are one sample each, read by numpy one after the other."""

    left_out: Sequence[tuple[int, str]] = ()

    def __init__(self, paths: Sequence[str], read: Callable[[str], NumpySource | None]) -> None:
        self._paths, self._read = paths, read
        self.samples = len(paths)
        self.columns = self._source(paths[0]).columns

    def batches(self) -> Iterator[Mapping[str, Any]]:
        for path in self._paths:
            source = self._source(path)
            if source.columns != self.columns:
                raise FormatError(
                    f"{path}: samples that are not like those of {self._paths[0]}: expected {names(self.columns)}, "
                    f"found {names(source.columns)}"
                )
            yield from source.batches()

    def _source(self, path: str) -> NumpySource:
        source = self._read(path)
        if source is None:
            raise FormatError(f"{path}: expected an npy file or an npz archive, found neither")
        return source


def open_source(
    opening: Callable[[], Dataset],
    paths: Sequence[str],
    fields: Sequence[str],
    sample_axis: int | str | None = "auto",
    bad_samples: str = "raise",
    progress: Progress | None = None,
) -> Source:
    """Open what is to be converted.

    Parameters
    ----------
    opening : function
        Opens the dataset.
    paths : sequence of str
        What was named.
    fields : sequence of str
        Names of the fields that are wanted; none: all.
    sample_axis : {"auto", 0, None}
        What counts the samples, as for :func:`forebay.open`.
    bad_samples, progress
        As for :class:`DatasetSource`.

    Raises
    ------
    FormatError, StorageError, OptionError
        As :func:`forebay.open`.
    """
    try:
        dataset = opening()
        len(dataset)
    except (FormatError, OptionError) as error:
        files = expand(paths)
        if sample_axis is not None and (found := by_h5py(files, fields)) is not None:
            return found
        if (pairs := by_lmdb(files)) is not None:
            return pairs
        source = _by_numpy(files[0], fields, sample_axis) if isinstance(error, FormatError) else None
        if source is None or (len(files) > 1 and sample_axis is not None):
            raise
        if len(files) == 1:
            return source
        return _NumpyFiles(files, lambda path: _by_numpy(path, fields, sample_axis, others=True))
    return DatasetSource(dataset, bad_samples, progress)


def _by_numpy(
    name: str, fields: Sequence[str], sample_axis: int | str | None, *, others: bool = False
) -> NumpySource | None:
    """Return the arrays of a Fortran-order file or of an archive with deflated members, else None.

    With ``others``, also of a file that Forebay reads by itself.
    """
    if not (path := Path(name)).is_file():
        return None
    with path.open("rb") as file:
        magic = file.read(6)
    try:
        if magic == b"\x93NUMPY":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            # Whatever else was refused stays refused.
            found = (
                {(fields or ["data"])[0]: array}
                if (others or np.isfortran(array)) and len(fields) < 2
                else {}
            )
        elif magic.startswith(b"PK"):
            found = _members(path, fields)
        else:
            return None
    except FormatError:
        raise
    except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile):
        # The error of Forebay's own reader says what is wrong with it.
        return None
    if sample_axis is None:
        found = {name: array[None] for name, array in found.items()}
    lengths = {array.shape[:1] for array in found.values()}
    sound = (
        len(lengths) == 1
        and lengths != {()}
        and all(array.size and array.itemsize for array in found.values())
    )
    return NumpySource(found) if sound else None


def _members(path: Path, fields: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Read each array of an archive to the end of its member, which compares its checksum."""
    found = {}
    with np.load(path, allow_pickle=False) as archive:
        for name in fields or archive.files:
            if name not in archive.files:
                raise KeyError(name)
            member = name if name in archive.zip.namelist() else f"{name}.npy"
            try:
                with archive.zip.open(member) as opened:
                    found[name] = np.lib.format.read_array(opened, allow_pickle=False)
                    while opened.read(BATCH_BYTES):
                        pass
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                offset = archive.zip.getinfo(member).header_offset
                raise FormatError(
                    f"{path}: member {member!r} at offset {offset}: expected what its checksum is of, found {error}\n"
                    "hint: the file may be truncated or damaged; copy or rebuild it"
                ) from error
    return found


def _dtype(text: str) -> np.dtype[Any]:
    """Return the type that a dataset names."""
    if text.startswith("["):
        return np.dtype(np.lib.format.descr_to_dtype(ast.literal_eval(text)))
    return np.dtype(text)
