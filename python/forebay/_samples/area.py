"""Memory that a loader and one of its worker processes share, and how values are written to it.

An area is a memfd that both processes map: it has no name, so nothing is left of it when they have
ended. A value is written as a *frame*: the lengths of its arrays, a pickle of all but the contents
of its arrays (protocol 5, PEP 574), and these contents, each aligned for any dtype. So a process
copies an array once to hand it over.

The first word of an area says which sample of a request the worker is working on; the loader reads
it where the worker has died.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from forebay._samples.collate import as_array

__all__ = ["FRAMES_AT", "Area", "Frame", "Packed", "Views", "pack", "unpack"]

# Frames begin at multiples of a cache line, after the word that says how far the worker is.
FRAMES_AT = 64
_ALIGNMENT = 64
_WORD = struct.Struct("<Q")
# Shorter arrays are a part of the pickle: handing over one more buffer costs more than this copy.
_MIN_BUFFER_BYTES = 512
# Areas are made no smaller, and twice as large as what did not fit: pages that are not touched cost
# nothing.
_MIN_AREA_BYTES = 1 << 20


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


class Frame(NamedTuple):
    """Where in an area a value is."""

    offset: int
    pickled_bytes: int
    buffers: int


class Packed(NamedTuple):
    """A value as a frame has it."""

    pickled: bytes
    buffers: Sequence[memoryview]

    def end(self, offset: int) -> int:
        """Return where a frame at ``offset`` ends."""
        end = _aligned(offset + _WORD.size * len(self.buffers)) + len(self.pickled)
        for buffer in self.buffers:
            end = _aligned(end) + buffer.nbytes
        return end


class Views(NamedTuple):
    """A frame where it lies."""

    pickled: memoryview
    buffers: list[Any]
    in_use: Callable[[], object]
    """Returns None when nothing refers to the buffers, or to arrays that were made of them."""


class _Pickler(pickle.Pickler):
    """Pickles all but the contents of arrays."""

    def __init__(self, file: io.BytesIO, keep: Callable[[pickle.PickleBuffer], bool], arrays: bool) -> None:
        super().__init__(file, 5, buffer_callback=keep)
        self._makes_arrays = arrays

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            is_whole = value.flags.c_contiguous or value.flags.f_contiguous or value.dtype.hasobject
            # Contents of any other array would be copied into the pickle.
            return NotImplemented if is_whole else value.copy(order="C").__reduce_ex__(5)
        if self._makes_arrays and not isinstance(value, type | np.generic) and hasattr(value, "__array__"):
            return as_array(value).__reduce_ex__(5)
        return NotImplemented


def pack(value: object, *, arrays: bool = False) -> Packed:
    """Pack a value; with ``arrays``, whatever can be an array becomes one, such as a tensor.

    Raises
    ------
    Exception
        Of any kind, if a part of the value cannot be pickled.
    """
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _MIN_BUFFER_BYTES:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    _Pickler(file, keep, arrays).dump(value)
    return Packed(file.getvalue(), buffers)


def unpack(pickled: memoryview, buffers: Sequence[Any]) -> Any:
    """Return the value of a frame, whose arrays lie in ``buffers``."""
    return pickle.loads(pickled, buffers=buffers)


class Area:
    """Shared memory of two processes, mapped.

    Parameters
    ----------
    fd : int
        Its memfd, which this call closes.
    """

    def __init__(self, fd: int) -> None:
        try:
            self.size = os.fstat(fd).st_size
            self._map = mmap.mmap(fd, self.size)
        finally:
            os.close(fd)
        self._view = memoryview(self._map)
        # Copies of numpy let other threads of Python run.
        self._bytes = np.frombuffer(self._map, np.uint8)

    @staticmethod
    def make(least_bytes: int) -> int:
        """Return the descriptor of a memfd with room for a frame that ends at ``least_bytes``."""
        fd = os.memfd_create("forebay-samples", os.MFD_CLOEXEC)
        try:
            size = max(_MIN_AREA_BYTES, 2 * least_bytes)
            os.ftruncate(fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @property
    def place(self) -> int:
        """Number of the sample of the request that the worker is at, from 1; 0 before the first."""
        (place,) = _WORD.unpack_from(self._view)
        return int(place)

    @place.setter
    def place(self, place: int) -> None:
        _WORD.pack_into(self._view, 0, place)

    def write(self, offset: int, packed: Packed) -> Frame:
        """Write a frame, for which there is room."""
        frame = Frame(offset, len(packed.pickled), len(packed.buffers))
        for buffer in packed.buffers:
            _WORD.pack_into(self._view, offset, buffer.nbytes)
            offset += _WORD.size
        offset = _aligned(offset)
        self._view[offset : offset + len(packed.pickled)] = packed.pickled
        offset += len(packed.pickled)
        for buffer in packed.buffers:
            offset = _aligned(offset)
            self._bytes[offset : offset + buffer.nbytes] = np.frombuffer(buffer, np.uint8)
            offset += buffer.nbytes
        return frame

    def _parts(self, frame: Frame) -> tuple[memoryview, list[slice]]:
        lengths = struct.unpack_from(f"<{frame.buffers}Q", self._view, frame.offset)
        offset = _aligned(frame.offset + _WORD.size * frame.buffers)
        pickled = self._view[offset : offset + frame.pickled_bytes]
        offset += frame.pickled_bytes
        parts = []
        for length in lengths:
            offset = _aligned(offset)
            parts.append(slice(offset, offset + length))
            offset += length
        return pickled, parts

    def after(self, frame: Frame) -> int:
        """Return where a frame behind this one can be."""
        _, parts = self._parts(frame)
        if parts:
            return _aligned(parts[-1].stop)
        return _aligned(_aligned(frame.offset) + frame.pickled_bytes)

    def views(self, frame: Frame) -> Views:
        """Return a frame where it lies."""
        pickled, parts = self._parts(frame)
        # The base of all views: numpy refers to the array that a view is ultimately of.
        base = np.frombuffer(self._map, np.uint8)
        return Views(pickled, [base[part] for part in parts], weakref.ref(base))

    def read(self, frame: Frame) -> Any:
        """Return the value of a frame, with arrays of its own."""
        pickled, parts = self._parts(frame)
        return unpack(pickled, [self._bytes[part].copy() for part in parts])
