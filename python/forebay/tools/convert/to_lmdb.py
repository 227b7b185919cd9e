"""LMDB, written by py-lmdb: records as they are, or Caffe's ``Datum`` messages.

The keys are 00000000, 00000001, ...

A dataset of one field of bytes becomes values of these bytes; one of an image and a label becomes
messages. So do files with labels: messages hold their bytes, encoded as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forebay._core import option_error
from forebay.tools.convert import datum
from forebay.tools.convert.columns import Column, names, payload, require
from forebay.tools.convert.source import Source

__all__ = ["check", "write"]

# An environment has a largest size, up to which its file grows; it is doubled when it is reached
# [bytes].
FIRST_MAP_BYTES = 64 << 20


def _is_image(columns: Sequence[Column]) -> bool:
    """Whether samples are what a `Datum` holds: pixels of up to three axes, and a label."""
    fields = {column.name: column for column in columns}
    if fields.keys() != {"image", "label"}:
        return False
    image, label = fields["image"], fields["label"]
    return (
        image.dtype == np.uint8
        and image.shape is not None
        and len(image.shape) == 3
        and label.shape == ()
        and label.dtype.kind in "iu"
    )


def _is_encoded(columns: Sequence[Column]) -> bool:
    """Whether samples are the bytes of a file and a label."""
    fields = {column.name: column for column in columns}
    if fields.keys() != {"data", "label"}:
        return False
    label = fields["label"]
    return fields["data"].is_bytes and label.shape == () and label.dtype.kind in "iu"


def check(columns: Sequence[Column]) -> list[str]:
    """Refuse what is neither bytes nor an image with its label."""
    require("lmdb")
    if _is_image(columns):
        return []
    if _is_encoded(columns):
        return ["'data' becomes the encoded image of a Datum, field 'image'"]
    if len(columns) == 1 and columns[0].is_bytes:
        return [] if columns[0].name == "data" else [f"the name of the field {columns[0].name!r} is not kept"]
    raise option_error(
        "lmdb holds one field of bytes, or `image` (uint8, three axes) and `label` (an integer) as Caffe's Datum, or "
        "`data` (an encoded image) and `label`; "
        f"the samples have {names(columns)}",
        "convert to tar or parquet, or choose a field with --field",
    )


def write(path: Path, source: Source) -> None:
    """Write an environment, a transaction for each batch."""
    package = require("lmdb")
    digits = max(8, len(str(source.samples - 1)))
    done = 0
    path.mkdir()
    try:
        with package.open(str(path), map_size=FIRST_MAP_BYTES, sync=False, meminit=False) as environment:
            for batch in source.batches():
                values = list(_values(source.columns, batch, done))
                while not _put(package, environment, done, digits, values):
                    environment.set_mapsize(2 * environment.info()["map_size"])
                done += len(values)
            environment.sync(True)
    except package.Error as error:
        # No room, mostly; LMDB has no class of its own for that.
        raise OSError(str(error)) from error


def _put(package: Any, environment: Any, first: int, digits: int, values: Sequence[bytes]) -> bool:
    """Write values in one transaction, or none of them where the environment is too small."""
    try:
        with environment.begin(write=True) as transaction:
            for number, value in enumerate(values, first):
                transaction.put(b"%0*d" % (digits, number), value, append=True)
    except package.MapFullError:
        return False
    return True


def _values(columns: Sequence[Column], batch: Mapping[str, Any], first: int) -> Iterator[bytes]:
    """Walk over the values of a batch."""
    if _is_encoded(columns):
        for number, (value, label) in enumerate(zip(batch["data"], batch["label"], strict=True), first):
            yield datum.encoded(payload(value), _label(label, number))
        return
    if not _is_image(columns):
        yield from map(payload, batch[columns[0].name])
        return
    for number, (image, label) in enumerate(zip(batch["image"], batch["label"], strict=True), first):
        channels, height, width = image.shape
        yield datum.encode(
            payload(image), _label(label, number), channels=channels, height=height, width=width
        )


def _label(label: Any, number: int) -> int:
    """Return a label that a message can hold."""
    if not 0 <= int(label) < 1 << 31:
        raise option_error(f"sample {number}: a Datum holds labels from 0 to 2^31 - 1, found {label}")
    return int(label)
