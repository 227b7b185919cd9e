"""HDF5 files that are read by h5py, since Forebay does not read them in place.

These are files with elements of variable length, and those with one group per sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forebay._core import FormatError, StorageError
from forebay._formats.hdf5_groups import sample_groups
from forebay._formats.hdf5_structure import datasets_of, open_plainly, shapes_of
from forebay.tools.convert.columns import Column, names, require

__all__ = ["Hdf5Source", "by_h5py"]

# Samples that are read at first; then as many as have about this size [bytes].
_FIRST_SAMPLES = 64
_MAX_SAMPLES = 4096
_BATCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class _Part:
    """The samples of one file."""

    path: str
    samples: int
    groups: tuple[str, ...]
    """The group of each sample; none: samples are rows."""


class Hdf5Source:
    """The samples of HDF5 files, in order.

    Raises
    ------
    FormatError
        If files or groups differ, or have elements that h5py gives as other objects than bytes and
        arrays.
    """

    left_out: Sequence[tuple[int, str]] = ()

    def __init__(self, paths: Sequence[str], fields: Sequence[str]) -> None:
        self._parts: list[_Part] = []
        self.columns: tuple[Column, ...] = ()
        for path in paths:
            with _opened(path) as file:
                part, columns = _part(path, file, fields)
            self._parts.append(part)
            self.columns = self.columns or columns
            if columns != self.columns:
                raise FormatError(
                    f"{path}: samples that are not like those of {paths[0]}: expected {names(self.columns)}, "
                    f"found {names(columns)}"
                )
        self.samples = sum(part.samples for part in self._parts)

    def batches(self) -> Iterator[Mapping[str, Any]]:
        """Read a stretch of samples at a time."""
        for part in self._parts:
            with _opened(part.path) as file:
                first, count = 0, _FIRST_SAMPLES
                while first < part.samples:
                    batch = self._read(file, part, first, min(first + count, part.samples))
                    yield batch
                    first += count
                    read_bytes = sum(_bytes(values) for values in batch.values())
                    count = max(1, min(_MAX_SAMPLES, count * _BATCH_BYTES // max(1, read_bytes)))

    def _read(self, file: Any, part: _Part, first: int, end: int) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        for column in self.columns:
            if part.groups:
                found = [
                    _read(file, part.path, f"{group}/{column.name}", ()) for group in part.groups[first:end]
                ]
            else:
                found = _read(file, part.path, column.name, slice(first, end))
            where = f"{part.path}: samples {first} to {end - 1} of {column.name!r}"
            batch[column.name] = _values(found, column, where)
        return batch


def by_h5py(paths: Sequence[str], fields: Sequence[str]) -> Hdf5Source | None:
    """Return the samples of HDF5 files of the kinds that are read by h5py, else None."""
    for path in paths:
        if not Path(path).is_file():
            return None
    try:
        h5py = require("h5py")
        if not h5py.is_hdf5(paths[0]):
            return None
        with _opened(paths[0]) as file:
            datasets = datasets_of(file, h5py)
            known = {name: datasets[name] for name in fields or datasets if name in datasets}
            is_wanted = sample_groups(shapes_of(datasets)) is not None or any(
                found.dtype.hasobject for found in known.values()
            )
    except (StorageError, OSError, RuntimeError, TypeError):
        # The error of Forebay's own reader says what is wrong with it.
        return None
    return Hdf5Source(paths, fields) if is_wanted else None


def _opened(path: str) -> Any:
    return open_plainly(path, require("h5py"))


def _part(path: str, file: Any, fields: Sequence[str]) -> tuple[_Part, tuple[Column, ...]]:
    """Return what is in a file."""
    shapes = shapes_of(datasets_of(file, require("h5py")))
    groups = None if fields and fields[0] in shapes else sample_groups(shapes)
    if groups is None:
        chosen = list(fields or (name for name, shape in shapes.items() if shape))
        if lost := [name for name in chosen if not shapes.get(name)]:
            raise FormatError(f"{path}: it has no dataset {lost[0]!r} with a first dimension")
        lengths = {shapes[name][0] for name in chosen}
        if len(lengths) != 1:
            told = ", ".join(f"{name} {shapes[name]}" for name in chosen[:16])
            raise FormatError(
                f"{path}: its datasets have different first dimensions: {told}\n"
                "hint: name those that belong together with --field"
            )
        columns = [_column(path, name, [file[name]], shapes[name][1:]) for name in chosen]
        return _Part(path, lengths.pop(), ()), tuple(columns)
    inside = {f"{group}/{name}" for group in groups.groups for name in groups.members}
    if not fields and (others := sorted(shapes.keys() - inside)):
        raise FormatError(
            f"{path}: it has datasets outside its groups, {others[0]!r} for example\n"
            f"hint: choose those of the groups with --field: {', '.join(groups.members)}"
        )
    chosen = list(fields or groups.members)
    if lost := [name for name in chosen if name not in groups.members]:
        raise FormatError(
            f"{path}: its groups have no dataset {lost[0]!r}\n"
            f"hint: its groups have: {', '.join(groups.members)}"
        )
    columns = []
    for name in chosen:
        found = [file[f"{group}/{name}"] for group in groups.groups]
        alike = {one.shape for one in found}
        shape = alike.pop() if len(alike) == 1 else None
        columns.append(_column(path, name, found, shape))
    return _Part(path, len(groups.groups), groups.groups), tuple(columns)


def _column(path: str, name: str, found: Sequence[Any], shape: tuple[int, ...] | None) -> Column:
    """Return the column of datasets; ``shape``: of a sample, None where they differ."""
    h5py = require("h5py")
    dtype = found[0].dtype
    if text := h5py.check_string_dtype(dtype):
        item = None if text.length else np.dtype(np.uint8)
    else:
        item = h5py.check_vlen_dtype(dtype)
        item = None if item is None else np.dtype(item)
    axes = len(found[0].shape) if shape is None else len(shape)
    varies = item is not None or shape is None
    item = dtype if item is None else item
    is_row = axes == (0 if dtype.hasobject else 1)
    if item.hasobject or item.subdtype or (varies and not is_row) or any(one.dtype != dtype for one in found):
        raise FormatError(
            f"{path}: dataset {name!r}: expected arrays of one type and shape, or one axis of varying length, found "
            f"{dtype} of {axes} axes\nhint: leave it out with --field"
        )
    return Column(name, item, None if varies else shape)


def _read(file: Any, path: str, name: str, part: Any) -> Any:
    try:
        return file[name][part]
    except (OSError, RuntimeError, KeyError) as error:
        raise FormatError(
            f"{path}: dataset {name!r}: expected data that h5py can read, found {error}\n"
            "hint: the file may be truncated or damaged; copy or rebuild it"
        ) from error


def _values(found: Any, column: Column, where: str) -> Any:
    """Return one batch of a column."""
    if column.shape is not None:
        return np.asarray(found, dtype=column.dtype).reshape(-1, *column.shape)
    arrays = []
    for value in found:
        row = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        row = np.frombuffer(row, np.uint8) if isinstance(row, bytes) else np.asarray(row, column.dtype)
        if row.ndim != 1:
            raise FormatError(f"{where}: expected one axis, found shape {row.shape}")
        arrays.append(row)
    return arrays


def _bytes(values: Any) -> int:
    return values.nbytes if isinstance(values, np.ndarray) else sum(value.nbytes for value in values)
