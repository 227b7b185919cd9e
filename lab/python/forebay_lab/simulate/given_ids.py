"""Sample ids of a file, as a loader takes them of a function of the epoch: the order ``given``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay._core import option_error
from forebay._sample_ids import counted_from_0
from forebay_lab.bench.strategies import Row

__all__ = ["GIVEN", "check_rows", "given_json", "read_ids"]

GIVEN = "given"
"""Name of the order."""

_Ids = npt.NDArray[np.integer[Any]]


def read_ids(path: Path, samples: int) -> _Ids:
    """Read the ids of each epoch.

    Parameters
    ----------
    path
        A file of `numpy.save`: integers in one axis, for all epochs, or in two (epoch, position).
    samples
        Samples of the dataset.

    Returns
    -------
    ndarray of int, shape (epochs, ids)
        Counted from 0.

    Raises
    ------
    OptionError
        If there is no such file, or it holds something else.
    """
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise option_error(
            f"--ids {path}: {error}", "write it with numpy.save, one row for each epoch"
        ) from error
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or found.ndim not in (1, 2):
        shape = (
            f"dtype {found.dtype} and shape {found.shape}" if isinstance(found, np.ndarray) else "archives"
        )
        raise option_error(f"--ids {path}: expected integers in one or two axes, found {shape}")
    if not found.size:
        raise option_error(f"--ids {path}: expected at least one id, found none")
    try:
        return np.atleast_2d(counted_from_0(found, samples))
    except IndexError as error:
        raise option_error(f"--ids {path}: {error}") from error


def check_rows(rows: Sequence[Row]) -> None:
    """Refuse rows that do not read the ids of a file.

    Raises
    ------
    OptionError
        With the name of the first one.
    """
    for row in rows:
        if row.order != GIVEN:
            raise option_error(
                f"--ids: expected rows that read these ids, found {row.name}",
                "programs and rows with @order have orders of their own: simulate them without --ids",
            )


def given_json(ids: _Ids | None, samples: int) -> dict[str, Any]:
    """Return the order as the native module takes it.

    As a loader, it is told how many ids an epoch has, and whether some stand there twice.
    """
    if ids is None:
        return {"kind": GIVEN}
    repeats = any(len(np.unique(epoch)) < len(epoch) for epoch in ids)
    of_epoch = ids.shape[1] if repeats or ids.shape[1] != samples else None
    return {"kind": GIVEN, "samples": of_epoch, "repeats": repeats}
