"""Functions of samples for lab/studies per-sample; worker processes import this module."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Sample = Mapping[str, npt.NDArray[np.uint8]]
# About 1 ms of one core.
_STEPS = 25_000


@cache
def _array(length: int) -> npt.NDArray[np.uint8]:
    return np.ones(length, np.uint8)


class Move:
    """Return an array of a given size, or a number, so that only the transfer takes time."""

    def __init__(self, result_bytes: int) -> None:
        self.result_bytes = result_bytes

    def __call__(self, sample: Sample) -> Any:
        return _array(self.result_bytes) if self.result_bytes else int(sample["data"][0])


def compute(sample: Sample) -> int:
    """Compute in Python alone."""
    total = int(sample["data"][0])
    for step in range(_STEPS):
        total += step & 3
    return total
