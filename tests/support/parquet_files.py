"""Parquet files byte by byte, as writers made them that pyarrow does not write like any more."""

from __future__ import annotations

import struct
from pathlib import Path

INT32, INT64, BYTE_ARRAY = 1, 2, 6
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
PLAIN, RLE_DICTIONARY = 0, 8
UNCOMPRESSED, SNAPPY = 0, 1


class I64(int):
    """An integer that Thrift writes as i64."""


def varint(number: int) -> bytes:
    """Return a number in Thrift's varying length."""
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _value(value: object) -> tuple[int, bytes]:
    """Return type and bytes of a value of Thrift's compact protocol."""
    match value:
        case bool():
            return (1 if value else 2), b""
        case int():
            return (6 if isinstance(value, I64) else 5), varint(value << 1 if value >= 0 else -value * 2 - 1)
        case str():
            return _value(value.encode())
        case bytes():
            return 8, varint(len(value)) + value
        case list():
            items = [_value(item) for item in value]
            kind = items[0][0] if items else 5
            return 9, bytes([0xF0 | kind]) + varint(len(items)) + b"".join(item for _, item in items)
        case dict():
            return 12, thrift(value)
    raise TypeError(value)


def thrift(fields: dict[int, object]) -> bytes:
    """Return a structure: field number to value."""
    out = b""
    for number, value in fields.items():
        kind, encoded = _value(value)
        out += bytes([kind]) + varint(number << 1) + encoded
    return out + b"\0"


def page(kind: int, details: dict[int, object], body: bytes, decoded: int | None = None) -> bytes:
    """Return a page; ``kind`` is 0 (data), 2 (dictionary) or 3 (data, version 2)."""
    header = {1: kind, 2: len(body) if decoded is None else decoded, 3: len(body)}
    return thrift({**header, {0: 5, 2: 7, 3: 8}[kind]: details}) + body


def data_page(values: int, body: bytes, encoding: int = PLAIN) -> bytes:
    """Return a data page of version 1."""
    return page(0, {1: values, 2: encoding, 3: 3, 4: 3}, body)


def strings(*texts: bytes) -> bytes:
    """Return byte strings in the encoding PLAIN."""
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def write(
    path: Path,
    schema: list[dict[int, object]],
    groups: list[tuple[int, list[dict[str, object]]]],
    *,
    created_by: str = "test",
    keys: list[dict[int, object]] = [],  # noqa: B006  # not changed
) -> Path:
    """Write a file.

    Parameters
    ----------
    path : Path
        Where.
    schema : list of dict
        Elements below the root; each ``SchemaElement`` by field number. Groups have field 5.
    groups : list of (rows, chunks)
        Row groups. A chunk has ``pages``, ``type``, ``path``, ``values``, and may have ``codec``
        and fields of ``ColumnMetaData`` by number; ``chunk`` has some of ``ColumnChunk``.
    created_by : str
        The writer.
    keys : list of dict
        Metadata: ``KeyValue`` by field number.
    """
    out = b"PAR1"
    children = sum(1 for element in schema if not element.get("inner"))
    elements = [{4: "root", 5: children}]
    elements += [
        {number: value for number, value in element.items() if number != "inner"} for element in schema
    ]
    row_groups = []
    for rows, chunks in groups:
        columns = []
        for chunk in chunks:
            pages = chunk["pages"]
            column = {
                1: chunk["type"], 2: [PLAIN], 3: chunk["path"], 4: chunk.get("codec", UNCOMPRESSED),
                5: I64(chunk["values"]), 6: I64(len(pages)), 7: I64(len(pages)), 9: I64(len(out)),
            }  # fmt: skip
            column |= {number: value for number, value in chunk.items() if isinstance(number, int)}
            columns.append({2: I64(len(out)), 3: column, **chunk.get("chunk", {})})
            out += pages
        row_groups.append({1: columns, 2: I64(len(out)), 3: I64(rows)})
    rows = sum(rows for rows, _ in groups)
    footer = thrift({1: 1, 2: elements, 3: I64(rows), 4: row_groups, 5: keys, 6: created_by})
    path.write_bytes(out + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return path
