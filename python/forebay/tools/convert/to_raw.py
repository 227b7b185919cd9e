"""Raw: the fields of each sample in order, sample after sample, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forebay.tools.convert.columns import Column, array_of, dense
from forebay.tools.convert.files import flush
from forebay.tools.convert.source import Source

__all__ = ["check", "write"]


def _record(columns: Sequence[Column]) -> np.dtype[Any]:
    """Return what a sample is in the file."""
    return np.dtype([(column.name, column.dtype, column.shape or ()) for column in dense(columns, "raw")])


def check(columns: Sequence[Column]) -> list[str]:
    """Refuse samples of different lengths; tell how the file has to be opened."""
    record = _record(columns)
    fields = {
        column.name: (np.lib.format.dtype_to_descr(column.dtype), column.shape)
        for column in dense(columns, "raw")
    }
    return [
        f'the file does not say what it holds: open it with format="raw", fields={fields} '
        f"({record.itemsize} bytes per record)"
    ]


def write(path: Path, source: Source) -> None:
    """Write one file."""
    columns = dense(source.columns, "raw")
    record = _record(source.columns)
    with path.open("wb") as file:
        for batch in source.batches():
            rows = np.empty(len(next(iter(batch.values()))), record)
            for column in columns:
                rows[column.name] = array_of(batch[column.name], column)
            file.write(rows.tobytes())
    flush(path)
