"""Caffe's ``Datum`` message, written and read by hand.

A `Datum` is a protobuf message of seven fields (caffe.proto); the demo needs five of them: 1
`channels`, 2 `height`, 3 `width` (varints), 4 `data` (bytes, channel-major) and 5 `label` (varint).
The writer emits them in that order, as Caffe does. The reader is what a py-lmdb training script
would contain: it takes the fields in any order, skips what it does not know by wire type, lets the
last duplicate win, and defaults an absent label to 0. Forebay has its own decoder in Rust; that the
two agree on every step of a training run is what the demo shows.
"""

from __future__ import annotations

import struct

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _ENCODED = 1, 2, 3, 4, 5, 7
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """Base-128 encoding of a non-negative integer, least significant group first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def head(channels: int, height: int, width: int) -> bytes:
    """Return the bytes of a `Datum` before the pixels; the same for all images of one shape."""
    fields = ((_CHANNELS, channels), (_HEIGHT, height), (_WIDTH, width))
    shape = b"".join(varint(number << 3 | _VARINT) + varint(value) for number, value in fields)
    return shape + varint(_DATA << 3 | _BYTES) + varint(channels * height * width)


def tail(label: int) -> bytes:
    """All bytes of a `Datum` that stand behind the pixels."""
    return varint(_LABEL << 3 | _VARINT) + varint(label)


def encode(pixels: bytes, label: int, *, channels: int, height: int, width: int) -> bytes:
    """One whole `Datum`.

    Raises
    ------
    ValueError
        The number of pixels is not `channels` x `height` x `width`, or the label is negative.
    """
    if len(pixels) != channels * height * width:
        raise ValueError(
            f"Datum of {channels}x{height}x{width}: "
            f"expected {channels * height * width} bytes, found {len(pixels)}"
        )
    if label < 0:
        raise ValueError(f"Datum label: expected 0 or more, found {label}")
    return head(channels, height, width) + pixels + tail(label)


def encoded(image: bytes, label: int) -> bytes:
    """One whole `Datum` of an encoded image, as ``convert_imageset --encoded`` of Caffe has it."""
    data = varint(_DATA << 3 | _BYTES) + varint(len(image)) + image
    return data + tail(label) + varint(_ENCODED << 3 | _VARINT) + varint(1)


def decode(record: bytes | memoryview) -> tuple[memoryview, int]:
    """Pixels (a view of `record`) and label.

    Raises
    ------
    ValueError
        The record ends inside a field, or holds a wire type that protobuf does not define.
    """
    view = memoryview(record)
    end = len(view)
    data, label, at = view[:0], 0, 0
    while at < end:
        tag, at = _read_varint(view, at)
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _read_varint(view, at)
            if field == _LABEL:
                label = struct.unpack("<i", struct.pack("<I", value & 0xFFFFFFFF))[0]
        elif wire == _BYTES:
            length, at = _read_varint(view, at)
            if length > end - at:
                raise ValueError(
                    f"Datum field {field} at byte {at}: expected {length} bytes, found {end - at}"
                )
            if field == _DATA:
                data = view[at : at + length]
            at += length
        elif wire in (_FIXED32, _FIXED64):
            at += 4 if wire == _FIXED32 else 8
            if at > end:
                raise ValueError(f"Datum field {field}: the record ends inside it, at byte {end}")
        else:
            raise ValueError(f"Datum field {field} at byte {at}: wire type {wire} is none of 0, 1, 2, 5")
    return data, label


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return the varint at byte `at`, and the position after it."""
    value = shift = 0
    while True:
        if at >= len(view) or shift > 63:
            raise ValueError(f"Datum: varint without an end at byte {at}")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
