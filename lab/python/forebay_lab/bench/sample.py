"""The sample of a workload: its size, its record format and its fields."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["ITEM_BYTES", "MIN_SAMPLE_BYTES", "Field", "Sample"]

ITEM_BYTES = {"uint8": 1, "uint16": 2, "float32": 4}
"""Element types the generator can make, with their sizes."""

MIN_SAMPLE_BYTES = 8
"""A sample begins with its number as a 64-bit integer, so that it can be told from every other."""


@dataclass(frozen=True, slots=True)
class Field:
    """A part of a sample; a shape of None means that it takes what the sample has left."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def bytes(self) -> int | None:
        """Size of the field, if it is fixed."""
        return None if self.shape is None else math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Sample:
    """What one sample holds."""

    bytes: int
    """Mean size, without what the container adds."""
    deviation_bytes: int
    """Standard deviation of the size; 0: all are equal."""
    record: str
    """How an LMDB keeps it: `raw` or `caffe-datum`."""
    fields: tuple[Field, ...]
