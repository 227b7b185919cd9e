"""HDF5, written by h5py: a contiguous dataset for each field.

Samples whose lengths differ are elements of variable length, one for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forebay._core import option_error
from forebay.tools.convert.columns import Column, array_of, dense, require
from forebay.tools.convert.files import flush
from forebay.tools.convert.source import Source

__all__ = ["check", "write"]


def check(columns: Sequence[Column]) -> list[str]:
    """Refuse types that HDF5 has not; tell which fields have rows of variable length."""
    h5py = require("h5py")
    for column in _shaped(columns):
        try:
            h5py.h5t.py_create(column.dtype, logical=True)
        except (TypeError, ValueError) as error:
            raise option_error(
                f"hdf5 holds no {column.dtype}, the type of {column.name!r}: {error}",
                "convert to npy or npz, or choose other fields with --field",
            ) from error
    return [f"the rows of {column.name!r} have variable length" for column in columns if _varies(column)]


def _varies(column: Column) -> bool:
    return column.shape is None and column.length is None


def _shaped(columns: Sequence[Column]) -> list[Column]:
    """Return the columns; those whose samples have one length with a shape each."""
    return [column if _varies(column) else dense([column], "hdf5")[0] for column in columns]


def _rows(values: Any, column: Column) -> Any:
    """Return a batch as h5py writes it: an object for each row of variable length."""
    if not _varies(column):
        return array_of(values, column)
    rows = np.empty(len(values), object)
    for number, value in enumerate(values):
        rows[number] = np.asarray(value, column.dtype)
    return rows


def write(path: Path, source: Source) -> None:
    """Write one file."""
    columns = _shaped(source.columns)
    h5py = require("h5py")
    with h5py.File(path, "w") as file:
        datasets = [
            file.create_dataset(
                column.name,
                (source.samples, *(column.shape or ())),
                h5py.vlen_dtype(column.dtype) if _varies(column) else column.dtype,
            )
            for column in columns
        ]
        done = 0
        for batch in source.batches():
            for dataset, column in zip(datasets, columns, strict=True):
                rows = _rows(batch[column.name], column)
                dataset[done : done + len(rows)] = rows
            done += len(rows)
    flush(path)
