"""Record batches of Arrow for the writers of Arrow and Parquet files, made by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from forebay._core import option_error
from forebay.tools.convert.columns import Column, array_of, require
from forebay.tools.convert.source import Source

__all__ = ["check", "record_batches", "schema"]


def check(columns: Sequence[Column], target: str) -> list[str]:
    """Refuse types that Arrow does not have."""
    for column in columns:
        try:
            _type(column)
        except (NotImplementedError, TypeError, ValueError) as error:
            raise option_error(
                f"{target} holds no {column.dtype}, the type of {column.name!r}: {error}",
                "convert to hdf5, npy or npz, or choose other fields with --field",
            ) from error
    return []


def schema(columns: Sequence[Column]) -> Any:
    """Return the schema of the columns."""
    fields = [(column.name, _type(column)) for column in columns]
    return require("pyarrow").schema([require("pyarrow").field(*field, nullable=False) for field in fields])


def record_batches(source: Source) -> Iterator[Any]:
    """Yield all samples as record batches."""
    package, made = require("pyarrow"), schema(source.columns)
    for batch in source.batches():
        arrays = [_array(batch[column.name], column) for column in source.columns]
        yield package.RecordBatch.from_arrays(arrays, schema=made)


def _item(dtype: np.dtype[Any]) -> Any:
    """Return the type of an element."""
    package = require("pyarrow")
    if dtype.byteorder == ">" or dtype.kind not in "biufMmV" or dtype.names:
        raise TypeError("Arrow has no such type, or no such byte order")
    return package.binary(dtype.itemsize) if dtype.kind == "V" else package.from_numpy_dtype(dtype)


def _type(column: Column) -> Any:
    package = require("pyarrow")
    if column.shape is None:
        return package.binary() if column.is_bytes else package.list_(_item(column.dtype))
    found = _item(column.dtype)
    for length in reversed(column.shape):
        found = package.list_(found, length)
    return found


def _array(values: Any, column: Column) -> Any:
    """Return one batch of a column."""
    package = require("pyarrow")
    if column.shape is None:
        return package.array(_rows(values, column), _type(column))
    flat = array_of(values, column).reshape(-1)
    if column.dtype.kind == "V":
        found = package.array([bytes(value) for value in flat], _item(column.dtype))
    else:
        found = package.array(flat, _item(column.dtype))
    for length in reversed(column.shape):
        found = package.FixedSizeListArray.from_arrays(found, length)
    return found


def _rows(values: Sequence[Any], column: Column) -> list[Any]:
    return [np.asarray(value).tobytes() if column.is_bytes else np.asarray(value) for value in values]
