"""npy, written by numpy: one array in C order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forebay._core import option_error
from forebay.convert.columns import Column, array_of, dense, names
from forebay.convert.files import flush
from forebay.convert.source import Source

__all__ = ["check", "write", "write_arrays"]


def check(columns: Sequence[Column]) -> list[str]:
    """Refuse samples of several fields, or of different lengths."""
    dense(columns, "npy")
    if len(columns) > 1:
        raise option_error(
            f"npy holds one array; the samples have {len(columns)} fields: {names(columns)}",
            "convert to npz, or choose one with --field",
        )
    (column,) = columns
    return [] if column.name == "data" else [f"the name of the field {column.name!r} is not kept"]


def write(path: Path, source: Source) -> None:
    """Write the array."""
    write_arrays([path], source)


def write_arrays(paths: Sequence[Path], source: Source) -> None:
    """Write each column of all samples into a file of its own."""
    columns = dense(source.columns, "npy")
    arrays = [
        np.lib.format.open_memmap(
            path, mode="w+", dtype=column.dtype, shape=(source.samples, *(column.shape or ()))
        )
        for path, column in zip(paths, columns, strict=True)
    ]
    done = 0
    for batch in source.batches():
        for array, column in zip(arrays, columns, strict=True):
            rows = array_of(batch[column.name], column)
            array[done : done + len(rows)] = rows
        done += len(rows)
    for array, path in zip(arrays, paths, strict=True):
        array.flush()
        flush(path)
