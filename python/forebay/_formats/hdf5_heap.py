"""Elements of variable length: where each lies in the global heap of an HDF5 file.

A dataset of such elements holds a reference for each: number of items (4 bytes), address of a heap
collection (8) and index in it (4). A collection is a header and objects behind each other, each
with its index and its length; index 0 is free space (HDF5 File Format Specification, III.E).
``Heap.place`` follows a reference and returns plain bytes of the file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["REFERENCE", "Heap", "HeapError", "decoded"]

REFERENCE = np.dtype([("items", "<u4"), ("address", "<u8"), ("index", "<u4")])

_COLLECTION = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HH4xQ")

# Bytes of headers of objects that are read at a time: as many as small collections have.
_BLOCK_BYTES = 4096

# Address of what was never written.
_UNDEFINED = (1 << 64) - 1


class HeapError(Exception):
    """A place of the file, what it should hold, and what it holds."""

    def __init__(self, offset: int, expected: str, found: str) -> None:
        super().__init__(f"at offset {offset}: expected {expected}, found {found}")
        self.offset, self.expected, self.found = offset, expected, found


class Heap:
    """The global heap of a file.

    Parameters
    ----------
    read : function
        Returns bytes of the file from an offset on, at most as many as asked for.
    base : int
        What addresses count from [bytes].
    """

    def __init__(self, read: Callable[[int, int], bytes], base: int) -> None:
        self._read, self._base = read, base
        self._collections: dict[int, dict[int, tuple[int, int]]] = {}

    def place(self, reference: tuple[int, int, int], item_bytes: int) -> tuple[int, int]:
        """Return offset and length of an element [bytes]."""
        items, address, index = reference
        if not items or address in (0, _UNDEFINED):
            return 0, 0
        if (objects := self._collections.get(address)) is None:
            objects = self._collections[address] = self._objects(self._base + address)
        offset, length = objects.get(index, (self._base + address, 0))
        if items * item_bytes > length:
            raise HeapError(
                offset, f"object {index} of {items * item_bytes} bytes or more", f"{length} bytes"
            )
        return offset, items * item_bytes

    def _objects(self, start: int) -> dict[int, tuple[int, int]]:
        """Return offset and length of each object of a collection, by index."""
        head = self._read(start, _COLLECTION.size)
        if len(head) < _COLLECTION.size:
            raise HeapError(start, "a heap collection", "the end of the file")
        magic, version, collection_bytes = _COLLECTION.unpack(head)
        if magic != b"GCOL" or version != 1:
            raise HeapError(start, "a heap collection of version 1", f"{magic!r}, version {version}")
        objects: dict[int, tuple[int, int]] = {}
        at, end = start + _COLLECTION.size, start + collection_bytes
        block, block_at = b"", at
        while at + _OBJECT.size <= end:
            if at + _OBJECT.size > block_at + len(block):
                block, block_at = self._read(at, min(_BLOCK_BYTES, end - at)), at
                if len(block) < _OBJECT.size:
                    raise HeapError(at, "an object of a heap collection", "the end of the file")
            index, _, length = _OBJECT.unpack_from(block, at - block_at)
            if index == 0:
                break
            objects[index] = at + _OBJECT.size, length
            at += _OBJECT.size + (length + 7) // 8 * 8
        return objects


def decoded(
    chunk: bytes, filters: Sequence[tuple[int, Sequence[int]]], mask: int, chunk_bytes: int
) -> bytes | None:
    """Return a chunk of references without its filters, or None if one is not known here.

    libhdf5 allows no fletcher32 for them.
    """
    for place, (code, values) in reversed(list(enumerate(filters))):
        if mask >> place & 1:
            continue
        if code == 1:
            chunk = zlib.decompressobj().decompress(chunk, chunk_bytes)
        elif code == 2 and values and (items := len(chunk) // values[0]):
            whole = items * values[0]
            planes = np.frombuffer(chunk[:whole], np.uint8).reshape(values[0], items)
            chunk = planes.T.tobytes() + chunk[whole:]
        else:
            return None
    return chunk
