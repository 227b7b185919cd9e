"""A folder: a file for each sample, in a directory for each class where the samples have labels.

Files are named by the number of the sample, directories by that of the class, with zeros in front,
so that the order of the names is that of the numbers. The ending is that of the kind of file whose
first bytes the sample has.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from forebay._core import option_error
from forebay.tools.convert.columns import Column, names, payload
from forebay.tools.convert.files import ending_of
from forebay.tools.convert.source import Source

__all__ = ["check", "write"]

# Each label up to the largest has a directory, so that a class without samples shifts no other one.
MAX_CLASSES = 100_000
CLASS_DIGITS = len(str(MAX_CLASSES - 1))


def check(columns: Sequence[Column]) -> list[str]:
    """Refuse what is not one field of bytes, with or without labels."""
    data, labels = _parts(columns)
    if len(data) != 1 or not data[0].is_bytes or len(labels) > 1:
        raise option_error(
            f"a folder holds one field of bytes, and `label`; the samples have {names(columns)}",
            "choose fields with --field, or read the records as they are with --schema raw",
        )
    notes = [] if data[0].name == "data" else [f"the name of the field {data[0].name!r} is not kept"]
    return [*notes, "the samples are in the order of their labels"] if labels else notes


def write(path: Path, source: Source) -> None:
    """Write one folder."""
    (data,), labels = _parts(source.columns)
    digits = max(8, len(str(source.samples - 1)))
    path.mkdir()
    number, classes = 0, 0
    for batch in source.batches():
        found: Iterable[Any] = batch[labels[0].name] if labels else itertools.repeat(None)
        for value, label in zip(batch[data.name], found, strict=bool(labels)):
            place = path
            if label is not None:
                if not 0 <= label < MAX_CLASSES:
                    most = MAX_CLASSES - 1
                    raise option_error(
                        f"sample {number}: a folder holds labels from 0 to {most}, found {label}"
                    )
                while classes <= label:
                    (path / f"{classes:0{CLASS_DIGITS}d}").mkdir()
                    classes += 1
                place = path / f"{label:0{CLASS_DIGITS}d}"
            content = payload(value)
            (place / f"{number:0{digits}d}{ending_of(content)}").write_bytes(content)
            number += 1
    # One call for all: to flush each file would take longer than to write it.
    os.sync()


def _parts(columns: Sequence[Column]) -> tuple[list[Column], list[Column]]:
    """Return the fields of contents and those of labels."""
    data: list[Column] = []
    labels: list[Column] = []
    for column in columns:
        is_label = column.name == "label" and column.dtype.kind in "iu" and column.shape == ()
        (labels if is_label else data).append(column)
    return data, labels
