"""MXNet's RecordIO: records as they are, framed as dmlc-core does.

Its own library, mxnet, is not maintained any more and needs a numpy of 2022, so the framing is
written here; the tests compare it with files that mxnet wrote. A record is cut where the magic
number stands at a multiple of four, and the magic is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from forebay._core import option_error
from forebay.tools.convert.columns import Column, names, payload
from forebay.tools.convert.files import flush
from forebay.tools.convert.source import Source

__all__ = ["check", "frame", "write"]

MAGIC = struct.pack("<I", 0xCED7230A)

# The length of a part has 29 bits beside the three of its kind.
MAX_BYTES = (1 << 29) - 1

_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


def check(columns: Sequence[Column]) -> list[str]:
    """Refuse what is not one field of bytes."""
    if len(columns) != 1 or not columns[0].is_bytes:
        raise option_error(
            f"recordio holds one field of bytes; the samples have {names(columns)}",
            "choose a field with --field, or read the records as they are with --schema raw",
        )
    return [] if columns[0].name == "data" else [f"the name of the field {columns[0].name!r} is not kept"]


def write(path: Path, source: Source) -> None:
    """Write one file, without an index file."""
    with path.open("wb") as file:
        for batch in source.batches():
            for value in batch[source.columns[0].name]:
                for part in frame(payload(value)):
                    file.write(part)
    flush(path)


def frame(record: bytes) -> Iterator[bytes]:
    """Walk over the parts of a record as they stand in the file."""
    if len(record) > MAX_BYTES:
        raise option_error(f"recordio holds records of up to {MAX_BYTES} bytes, found one of {len(record)}")
    parts = list(_parts(record))
    for number, part in enumerate(parts):
        if len(parts) == 1:
            kind = _WHOLE
        else:
            kind = _FIRST if number == 0 else _LAST if number == len(parts) - 1 else _MIDDLE
        yield MAGIC + struct.pack("<I", kind << 29 | len(part))
        yield part + bytes(-len(part) % 4)


def _parts(record: bytes) -> Iterator[bytes]:
    """Cut a record at each magic number that is at a multiple of four."""
    start = at = 0
    while (at := record.find(MAGIC, at)) >= 0:
        if at % 4:
            at += 1
            continue
        yield record[start:at]
        start = at = at + len(MAGIC)
    yield record[start:]
