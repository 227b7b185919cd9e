"""npz, as ``numpy.savez`` writes it: a stored member for each field."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forebay.tools.convert.columns import Column, dense
from forebay.tools.convert.files import flush
from forebay.tools.convert.source import Source
from forebay.tools.convert.to_npy import write_arrays

__all__ = ["check", "write"]


def check(columns: Sequence[Column]) -> list[str]:
    """Refuse samples of different lengths."""
    dense(columns, "npz")
    return []


def write(path: Path, source: Source) -> None:
    """Write each array to its own file while the samples arrive, then all into the archive."""
    arrays = [path.with_name(f"{number}.npy") for number, _ in enumerate(source.columns)]
    write_arrays(arrays, source)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for column, array in zip(source.columns, arrays, strict=True):
            # numpy.savez takes names as keyword arguments, where some already have a meaning.
            with archive.open(f"{column.name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.load(array, mmap_mode="r"), allow_pickle=False)
            array.unlink()
    flush(path)
