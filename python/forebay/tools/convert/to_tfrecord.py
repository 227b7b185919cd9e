"""TFRecord, written by the package ``tfrecord``: records as they are, or messages.

The messages are ``tf.train.Example``.

A dataset of one field ``data`` of bytes becomes records of these bytes; anything else becomes
messages, in which a field is a list of bytes, of float32 or of int64.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forebay._core import option_error
from forebay.tools.convert.columns import Column, payload, require
from forebay.tools.convert.files import flush
from forebay.tools.convert.source import Source

__all__ = ["check", "write"]


def _is_record(columns: Sequence[Column]) -> bool:
    """Whether samples are records already."""
    return len(columns) == 1 and columns[0].name == "data" and columns[0].is_bytes


def _kind(column: Column) -> tuple[str, np.dtype[Any]] | None:
    """Return the name of a column's list and the type of its elements; None if there is none."""
    if column.dtype == np.uint8 and column.shape != ():
        return "byte", column.dtype
    if column.dtype.kind == "f" and np.can_cast(column.dtype, np.float32):
        return "float", np.dtype(np.float32)
    if column.dtype.kind in "biu" and np.can_cast(column.dtype, np.int64):
        return "int", np.dtype(np.int64)
    return None


def check(columns: Sequence[Column]) -> list[str]:
    """Refuse types whose values would change; tell of shapes and types that are not kept."""
    require("tfrecord")
    if _is_record(columns):
        return []
    notes = []
    for column in columns:
        kind = _kind(column)
        if kind is None:
            raise option_error(
                f"tfrecord holds bytes, float32 and int64; {column.name!r} is {column.dtype}",
                "convert to hdf5, npy or npz, or choose other fields with --field",
            )
        if column.shape is not None and len(column.shape) > 1:
            notes.append(f"{column.name!r}: the shape {column.shape} is not kept")
        if kind[1] != column.dtype.newbyteorder("="):
            notes.append(f"{column.name!r}: {column.dtype} becomes {kind[1]}")
    return notes


def write(path: Path, source: Source) -> None:
    """Write one file."""
    package = require("tfrecord")
    writer = package.writer.TFRecordWriter(str(path))
    try:
        if _is_record(source.columns):
            for batch in source.batches():
                for value in batch["data"]:
                    _frame(writer, payload(value))
        else:
            kinds = [(column.name, *(_kind(column) or ("byte", column.dtype))) for column in source.columns]
            for batch in source.batches():
                for sample in zip(*(batch[name] for name, _, _ in kinds), strict=True):
                    writer.write(
                        {
                            name: (_values(value, kind, dtype), kind)
                            for (name, kind, dtype), value in zip(kinds, sample, strict=True)
                        }
                    )
    finally:
        writer.close()
    flush(path)


def _values(value: Any, kind: str, dtype: np.dtype[Any]) -> list[Any]:
    """Return one sample's field as the list that a message holds."""
    if kind == "byte":
        return [payload(value)]
    values: list[Any] = np.asarray(value, dtype).ravel().tolist()
    return values


def _frame(writer: Any, record: bytes) -> None:
    """Write a record that is no message; the package offers its checksum only."""
    length = struct.pack("<Q", len(record))
    for part in (length, writer.masked_crc(length), record, writer.masked_crc(record)):
        writer.file.write(part)
