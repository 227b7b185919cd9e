"""HDF5, written by h5py: a contiguous dataset for each field."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forebay._core import option_error
from forebay.tools.convert.columns import Column, array_of, dense, require
from forebay.tools.convert.files import flush
from forebay.tools.convert.source import Source

__all__ = ["check", "write"]


def check(columns: Sequence[Column]) -> list[str]:
    """Refuse samples of different lengths, and types that HDF5 has not."""
    h5py = require("h5py")
    for column in dense(columns, "hdf5"):
        try:
            h5py.h5t.py_create(column.dtype, logical=True)
        except (TypeError, ValueError) as error:
            raise option_error(
                f"hdf5 holds no {column.dtype}, the type of {column.name!r}: {error}",
                "convert to npy or npz, or choose other fields with --field",
            ) from error
    return []


def write(path: Path, source: Source) -> None:
    """Write one file."""
    columns = dense(source.columns, "hdf5")
    with require("h5py").File(path, "w") as file:
        datasets = [
            file.create_dataset(column.name, (source.samples, *(column.shape or ())), column.dtype)
            for column in columns
        ]
        done = 0
        for batch in source.batches():
            for dataset, column in zip(datasets, columns, strict=True):
                rows = array_of(batch[column.name], column)
                dataset[done : done + len(rows)] = rows
            done += len(rows)
    flush(path)
