"""npy, written by numpy: one array in C order."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from forebay._core import option_error
from forebay.tools.convert.columns import Column, array_of, dense, names
from forebay.tools.convert.files import flush
from forebay.tools.convert.source import Source

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
    with contextlib.ExitStack() as opened:
        files = [
            opened.enter_context(_begun(path, source.samples, column))
            for path, column in zip(paths, columns, strict=True)
        ]
        for batch in source.batches():
            for file, column in zip(files, columns, strict=True):
                file.write(array_of(batch[column.name], column).tobytes())
    for path in paths:
        flush(path)


def _begun(path: Path, samples: int, column: Column) -> BinaryIO:
    """Return a file with its header, open behind that.

    The values are written, not mapped: a disk without room is an error then, and no signal.
    """
    shape = (samples, *(column.shape or ()))
    start = np.lib.format.open_memmap(path, mode="w+", dtype=column.dtype, shape=shape).offset
    file = path.open("r+b")
    file.seek(start)
    return file
