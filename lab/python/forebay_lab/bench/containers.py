"""Writers of the containers that training data comes in: LMDB, HDF5, TFRecord, npz.

Each takes blocks of samples and makes the files of one dataset, with the format's own library
where there is one. A TFRecord file is a chain of (length, masked CRC32C of the length, data, masked
CRC32C of the data); its records are `tf.train.Example` messages, written by hand as three levels of
protobuf maps, so that TensorFlow is not needed.

Everything is flushed to the disk: pages that are still to be written cannot be dropped from a page
cache, and a cold run would find them.
"""

from __future__ import annotations

import importlib
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay._core import StorageError
from forebay.tools.convert import datum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray

    from forebay_lab.bench.sample import Sample

__all__ = [
    "COMMIT_EVERY",
    "LABELS",
    "WRITERS",
    "Block",
    "example",
    "framed",
    "masked_crc32c",
    "minimum_bytes",
]

LABELS = 1000
"""Sample i has the label i mod this: the classes of ImageNet."""

_PAGE_BYTES = 4096
_PAGE_HEADER_BYTES = 16
_NODE_HEADER_BYTES = 8
# A larger node goes to pages of its own: half a page, even, less its offset in the page (lmdb,
# `me_nodemax`).
_NODE_MOST_BYTES = ((_PAGE_BYTES - _PAGE_HEADER_BYTES) // 2 & ~1) - 2
COMMIT_EVERY = 1000
"""Samples per transaction: what Caffe's `convert_imageset` does."""


@dataclass(frozen=True, slots=True)
class Block:
    """Samples that follow each other."""

    first: int
    """Number of the first one."""
    data: NDArray[np.uint8]
    """All their bytes."""
    ends: NDArray[np.int64]
    """Where each ends in `data`."""

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Walk over (number, bytes)."""
        start = 0
        for at, end in enumerate(self.ends.tolist()):
            yield self.first + at, self.data[start:end]
            start = end


def write_lmdb(directory: Path, sample: Sample, counts: Sequence[int], blocks: Iterable[Block]) -> list[Path]:
    """Write one LMDB directory, in the order of the keys ``00000000``, ``00000001``, ..."""
    lmdb = _package("lmdb")
    path = directory / "data.lmdb"
    (samples,) = counts
    digits = max(8, len(str(samples - 1)))
    head = b""
    if sample.record == "caffe-datum":
        head = datum.head(*(sample.fields[0].shape or ()))
    with lmdb.open(
        str(path), map_size=2 * _lmdb_bytes(sample, samples) + (64 << 20), sync=False, meminit=False
    ) as environment:
        for block in blocks:
            numbered = iter(block)
            for _ in range(0, len(block), COMMIT_EVERY):
                with environment.begin(write=True) as transaction:
                    for number, payload in _first(numbered, COMMIT_EVERY):
                        value = payload.data
                        if head:
                            value = b"".join((head, payload.data, datum.tail(number % LABELS)))
                        transaction.put(b"%0*d" % (digits, number), value, append=True)
        environment.sync(True)
    return [path]


def write_hdf5(directory: Path, sample: Sample, counts: Sequence[int], blocks: Iterable[Block]) -> list[Path]:
    """Write files with one contiguous dataset per field, the first axis the sample, and labels.

    A field without a shape becomes a dataset of variable length.
    """
    h5py = _package("h5py")
    paths = []
    blocks = iter(blocks)
    for number, count in enumerate(counts):
        path = directory / f"part-{number:05d}.h5"
        with h5py.File(path, "w") as file:
            targets = []
            for field in sample.fields:
                if field.shape is None:
                    targets.append(file.create_dataset(field.name, (count,), h5py.vlen_dtype(np.uint8)))
                else:
                    targets.append(file.create_dataset(field.name, (count, *field.shape), field.dtype))
            labels = file.create_dataset("label", (count,), np.int64)
            at = 0
            while at < count:
                block = next(blocks)
                for target, values in zip(targets, _columns(sample, block), strict=True):
                    if isinstance(values, list):
                        # Of equal lengths, h5py would take them for a table.
                        for place, one in enumerate(values):
                            target[at + place] = one
                    else:
                        target[at : at + len(block)] = values
                labels[at : at + len(block)] = np.arange(block.first, block.first + len(block)) % LABELS
                at += len(block)
        _flush(path)
        paths.append(path)
    return paths


def write_tfrecord(
    directory: Path, sample: Sample, counts: Sequence[int], blocks: Iterable[Block]
) -> list[Path]:
    """Write files of `tf.train.Example` records: each field as bytes, ``label`` as an integer."""
    paths = []
    blocks = iter(blocks)
    for number, count in enumerate(counts):
        path = directory / f"part-{number:05d}-of-{len(counts):05d}.tfrecord"
        with path.open("wb") as file:
            at = 0
            while at < count:
                block = next(blocks)
                for sample_number, payload in block:
                    file.write(framed(example(sample, sample_number, payload)))
                at += len(block)
            file.flush()
            os.fsync(file.fileno())
        paths.append(path)
    return paths


def write_npz(directory: Path, sample: Sample, counts: Sequence[int], blocks: Iterable[Block]) -> list[Path]:
    """Write one file per sample, as `numpy.savez` does: its fields and ``y``, the label."""
    paths = []
    digits = max(6, len(str(len(counts) - 1)))
    for block in blocks:
        for number, payload in block:
            path = directory / f"sample-{number:0{digits}d}.npz"
            arrays: dict[str, Any] = {
                field.name: values
                for field, values in zip(sample.fields, _fields(sample, payload), strict=True)
            }
            np.savez(path, y=np.array([number % LABELS], np.int64), **arrays)
            _flush(path)
            paths.append(path)
    return paths


WRITERS: dict[str, Callable[[Path, Sample, Sequence[int], Iterable[Block]], list[Path]]] = {
    "lmdb": write_lmdb,
    "hdf5": write_hdf5,
    "tfrecord": write_tfrecord,
    "npz": write_npz,
}
"""Container → function that writes a dataset and returns the paths that a reader opens.

Its arguments: directory, sample, samples of each file, and blocks, none of which spans two files.
"""


def minimum_bytes(container: str, sample: Sample, samples: int, files: int) -> int:
    """Estimate what the files take on a disk: an upper bound for samples of the mean size."""
    if container == "lmdb":
        return _lmdb_bytes(sample, samples)
    # Per sample: framing, names, label. Per file: superblock and object headers of HDF5, directory
    # of npz, the last block.
    extra = 32 * len(sample.fields) + 96
    return samples * (sample.bytes + extra) + files * (16 << 10)


def _lmdb_bytes(sample: Sample, samples: int) -> int:
    value = sample.bytes + 32 * (sample.record == "caffe-datum")
    node = _NODE_HEADER_BYTES + 12 + value
    if node > _NODE_MOST_BYTES:
        pages = -(-(value + _PAGE_HEADER_BYTES) // _PAGE_BYTES)
        # Half a page more where sizes vary: what the last page wastes is that on average. Leaves
        # hold page numbers only.
        return int(samples * (_PAGE_BYTES * (pages + 0.5 * bool(sample.deviation_bytes)) + 40)) + (1 << 20)
    return int(samples * node * 1.1) + (1 << 20)


def _first(numbered: Iterator[tuple[int, NDArray[np.uint8]]], count: int) -> Iterator[Any]:
    for _, one in zip(range(count), numbered, strict=False):
        yield one


def _fields(sample: Sample, payload: NDArray[np.uint8]) -> Iterator[NDArray[Any]]:
    """Cut a sample into its fields."""
    start = 0
    for field in sample.fields:
        end = len(payload) if field.bytes is None else start + field.bytes
        values = payload[start:end]
        yield values if field.shape is None else values.view(field.dtype).reshape(field.shape)
        start = end


def _columns(sample: Sample, block: Block) -> list[NDArray[Any] | list[NDArray[Any]]]:
    """Put the same fields of all samples of a block together; a field without a shape is a list."""
    columns = zip(*(_fields(sample, payload) for _, payload in block), strict=True)
    return [
        list(values) if field.shape is None else np.stack(values)
        for field, values in zip(sample.fields, columns, strict=True)
    ]


def _message(field: int, *parts: bytes) -> bytes:
    """Write a length-delimited protobuf field."""
    return b"".join((datum.varint(field << 3 | 2), datum.varint(sum(map(len, parts))), *parts))


def example(sample: Sample, number: int, payload: NDArray[np.uint8]) -> bytes:
    """Encode an `Example`.

    `Example{features=1}`, `Features{map feature=1}`, `Feature{bytes_list=1, int64_list=3}`, each
    list `{value=1}`.
    """
    entries = []
    for field, values in zip(sample.fields, _fields(sample, payload), strict=True):
        feature = _message(1, _message(1, values.tobytes()))
        entries.append(_message(1, _message(1, field.name.encode()), _message(2, feature)))
    label = _message(3, _message(1, datum.varint(number % LABELS)))
    entries.append(_message(1, _message(1, b"label"), _message(2, label)))
    return _message(1, *entries)


def framed(record: bytes) -> bytes:
    """Return a record of a TFRecord file."""
    length = struct.pack("<Q", len(record))
    return b"".join((length, masked_crc32c(length), record, masked_crc32c(record)))


def masked_crc32c(data: bytes) -> bytes:
    """Return the checksum of TFRecord, masked: a checksum of data with checksums stays sound."""
    checksum: int = _package("google_crc32c").value(data)
    rotated = (checksum >> 15 | checksum << 17) + 0xA282EAD8
    return struct.pack("<I", rotated & 0xFFFFFFFF)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise StorageError(f"generating a dataset: {error}\nhint: pip install 'forebay[bench]'") from error
