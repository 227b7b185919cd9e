"""Columns: the parts of a dataset's samples, for its writers."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay._core import StorageError, option_error

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

__all__ = ["Column", "array_of", "dense", "payload", "require"]


@dataclass(frozen=True, slots=True)
class Column:
    """One field of all samples."""

    name: str
    """Name of the field."""
    dtype: np.dtype[Any]
    """Type of an element."""
    shape: tuple[int, ...] | None
    """Shape of one sample's; None: one axis, whose length varies."""
    length: int | None = None
    """That length, where it happens to be the same for all samples."""

    @property
    def is_bytes(self) -> bool:
        """Whether a sample's value is a row of bytes."""
        return self.dtype == np.uint8 and (self.shape is None or len(self.shape) == 1)

    def __str__(self) -> str:
        shape = "varying length" if self.shape is None else f"shape {self.shape}"
        return f"{self.name}: {self.dtype}, {shape}"


def dense(columns: Sequence[Column], target: str) -> list[Column]:
    """Return the columns with a shape each; refuse those whose lengths differ.

    Raises
    ------
    OptionError
        If the samples of a column differ in length.
    """
    shaped = [
        replace(column, shape=(column.length,))
        if column.shape is None and column.length is not None
        else column
        for column in columns
    ]
    for column in shaped:
        if column.length == 0:
            raise option_error(
                f"{target} holds arrays with elements; the samples of {column.name!r} are empty",
                "leave it out with --field",
            )
        if column.shape is None:
            raise option_error(
                f"{target} holds arrays of one shape; the samples of {column.name!r} differ in length",
                "convert to a format of records: lmdb, tfrecord or tar",
            )
    return shaped


def array_of(values: Any, column: Column) -> NDArray[Any]:
    """Return one batch of a dense column as an array; what comes in may be a list of equal rows."""
    return np.asarray(values, dtype=column.dtype).reshape(len(values), *(column.shape or ()))


def payload(value: NDArray[Any]) -> bytes:
    """Return the bytes of one sample's value."""
    return np.ascontiguousarray(value).tobytes()


def require(name: str) -> ModuleType:
    """Import the library that writes a format.

    Raises
    ------
    StorageError
        If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise StorageError(f"forebay convert: {error}\nhint: pip install 'forebay[convert]'") from error


def names(columns: Iterable[Column]) -> str:
    """Return the columns for a message."""
    return "; ".join(map(str, columns))
