"""The structure of an HDF5 file, found by h5py once, before an index is built.

``find`` says where the datasets of a file lie: contiguous data, or every chunk with its place, its
length and the filters that it skipped. What it returns is checked in Rust
(``crates/forebay-format/src/container/hdf5/structure.rs``, which also describes the bytes). From
then on samples are read without h5py and without the lock of libhdf5.

libhdf5 says several things that lead to wrong bytes without an error, so nothing is believed before
it was compared: places of chunks may or may not count from the end of a user block, coordinates of
chunks may be those of moved axes, chunks at the edges may be stored without filters although their
masks say otherwise, and other drivers than the plain one count offsets over several files.
docs/formats/hdf5.md lists what is refused and why.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import math
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from forebay._core import StorageError
from forebay._formats.hdf5_groups import sample_groups
from forebay._formats.hdf5_heap import REFERENCE, Heap, HeapError, decoded

__all__ = ["datasets_of", "find", "open_plainly", "shapes_of"]

# Types of elements that Forebay has itself; all others are bytes of which numpy makes a view.
_OWN = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
}

# An entry of the table of chunks.
_CHUNK = np.dtype([("number", "<u8"), ("offset", "<u8"), ("length", "<u8"), ("mask", "<u4")])

# A mask of a chunk that has skipped all filters.
_ALL_SKIPPED = 0xFFFFFFFF

# Datasets that a message lists.
_LISTED = 16

# Most dimensions, those of elements that are arrays included; libhdf5 has as many.
_MAX_DIMENSIONS = 32

# Most strings of an element that end at their first NUL; the codec allows as many.
_MAX_STRINGS = 1 << 12
# Members of an enumeration that a message lists.
_SHOWN_MEMBERS = 8

_REWRITE_HINT = "leave it out with fields=, or rewrite it"
_LENGTHS_HINT = "leave it out with fields=, or rewrite it: forebay convert FILE.h5 FILE.parquet"

# h5py cannot tell how many bits of a bitfield count.
_BITS_HINT = "leave it out with fields=, or rewrite it as integers"

# Chunks that are compared with what h5py reads, per dataset, until it is clear what their places
# count from.
_PROBES = 16

# h5py reads the fill value where an index has chunks outside the shape.
_PLACES_HINT = "compare it with what was written, since h5py may miss chunks, and write it again"


class _RefusalError(Exception):
    """What is answered instead of a structure: a key of the description and its fields."""

    def __init__(self, kind: str, **fields: object) -> None:
        super().__init__(kind)
        plain = {name: _plain(value) if isinstance(value, str) else value for name, value in fields.items()}
        self.description: dict[str, object] = {kind: plain}


def find(path: str, fields: list[str], one_sample: bool = False) -> bytes:
    """Find the structure of an HDF5 file.

    Parameters
    ----------
    path : str
        The file.
    fields : list of str
        Datasets that are wanted, by path in the file; empty: all, if they have one first dimension.
    one_sample : bool
        Whether the file is one sample, so that no dimension counts samples and datasets may have
        any shape.

    Returns
    -------
    bytes
        The structure, or a refusal in its place.
    """
    try:
        datasets, tables = _find(path, fields, one_sample)
        description: dict[str, object] = {"datasets": datasets}
    except _RefusalError as refusal:
        description, tables = refusal.description, []
    text = json.dumps(description).encode()
    return b"".join([struct.pack("<I", len(text)), text, *tables])


def _find(path: str, fields: list[str], one_sample: bool) -> tuple[list[dict[str, object]], list[bytes]]:
    try:
        import h5py
    except ImportError as error:
        raise _RefusalError(
            "usage",
            message=f"HDF5 files are indexed with h5py, which cannot be imported: {error}",
            hint="pip install 'forebay[hdf5]'",
        ) from None
    if not hasattr(h5py.h5d.DatasetID, "chunk_iter"):
        raise _RefusalError(
            "usage",
            message=f"HDF5 files are indexed with h5py 3.11 or later, found {h5py.__version__}",
            hint="pip install 'forebay[hdf5]'",
        )
    with _blaming(path, "HDF5 file", "one that h5py opens"):
        file = open_plainly(path, h5py)
    with (
        file,
        _blaming(path, "structure", "one that h5py can read"),
        Path(path).open("rb", buffering=0) as raw,
    ):
        names = fields or _default_names(file, one_sample, h5py)
        found = []
        for name in names:
            with _blaming(path, f"structure of dataset {name!r}", "one that h5py can read"):
                dataset = _dataset(file, name, one_sample, h5py)
                found.append(_Dataset(dataset, name, raw, file.userblock_size, one_sample))
        if not one_sample and len({one.dataset.shape[0] for one in found}) > 1:
            told = ", ".join(f"{one.name} {one.dataset.shape}" for one in found)
            raise _RefusalError(
                "usage",
                message=f"the fields have different first dimensions: {told}",
                hint="the fields of a sample have one row each; if each file is one sample: sample_axis=None",
            )
        described = []
        for one in found:
            with _blaming(path, f"structure of dataset {one.name!r}", "one that h5py can read"):
                described.append(one.describe())
    return [dataset for dataset, _ in described], [table for _, table in described]


def open_plainly(path: str, h5py: Any) -> Any:
    """Open a file with the plain driver, since others count over several files.

    Without a lock where the file system has none: ``best-effort`` of libhdf5 is that for ENOSYS
    alone. A lock that somebody else holds is an error. A file that this process has open is opened
    as it is.
    """
    first: OSError | None = None
    for locking in ("best-effort", False, True):
        try:
            return h5py.File(path, "r", driver="sec2", locking=locking)
        except OSError as error:
            first = first or error
            if not _is_of_locks(error):
                break
    assert first is not None
    raise first


def _is_of_locks(error: OSError) -> bool:
    """Whether another kind of locking may open the file."""
    if "unable to lock file" in str(error):
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return "flag values don't match" in str(error)


@contextlib.contextmanager
def _blaming(path: str, what: str, expected: str) -> Iterator[None]:
    """Turn whatever h5py and numpy raise into an error that names the file and ``what``.

    libhdf5 reports damage through every class of exception that h5py has; the operating system's
    answers keep apart.
    """
    try:
        yield
    except (_RefusalError, StorageError):
        raise
    except OSError as error:
        if error.errno:
            text = f"{path}: cannot read the {what}: {_line(error)}"
            raise StorageError(text, errno=error.errno, filename=path) from error
        if "conversion path" in str(error):
            raise _RefusalError(
                "unsupported",
                what=f"{what.removeprefix('structure of ')} of a type that h5py does not convert",
                found=_line(error),
                hint=_REWRITE_HINT,
            ) from error
        raise _corrupt(what, expected, error) from error
    except Exception as error:
        raise _corrupt(what, expected, error) from error


def _corrupt(what: str, expected: str, error: Exception) -> _RefusalError:
    found = f"{type(error).__name__}: {_line(error)}"
    return _RefusalError("corrupt", what=what, offset=0, expected=expected, found=found)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _plain(text: str) -> str:
    """Return text that UTF-8 can hold: names of files and datasets are bytes, and any bytes."""
    return text.encode(errors="backslashreplace").decode()


def datasets_of(file: Any, h5py: Any) -> dict[str | bytes, Any]:
    """Return all datasets by path; h5py gives paths that are not UTF-8 as bytes."""
    datasets: dict[str | bytes, Any] = {}

    def take(name: str | bytes, found: Any) -> None:
        if isinstance(found, h5py.Dataset):
            datasets[name] = found

    file.visititems(take)
    return datasets


def shapes_of(datasets: Mapping[str | bytes, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the datasets that have elements and a name."""
    return {
        name: found.shape
        for name, found in datasets.items()
        if isinstance(name, str) and found.shape is not None
    }


def _default_names(file: Any, one_sample: bool, h5py: Any) -> list[str]:
    """Return the datasets with one common first dimension; all datasets of a one-sample file."""
    shapes: dict[str, tuple[int, ...]] = {}
    datasets = datasets_of(file, h5py)
    if not one_sample:
        _refuse_sample_groups(shapes_of(datasets))
    for name, found in datasets.items():
        # A dataset without elements has no shape; a scalar has no first dimension.
        if found.shape is None or not (found.shape or one_sample):
            continue
        if isinstance(name, bytes):
            raise _RefusalError(
                "unsupported",
                what="a dataset whose name is not UTF-8",
                found=repr(name),
                hint="leave it out: name the others with fields=[...]",
            )
        shapes[name] = found.shape
    if not shapes:
        raise _RefusalError(
            "unsupported",
            what="an HDF5 file without samples",
            found="no dataset with elements" if one_sample else "no dataset with a first dimension",
            hint="" if one_sample else "if each file is one sample: sample_axis=None",
        )
    if not one_sample and len({shape[0] for shape in shapes.values()}) > 1:
        told = ", ".join(f"{name} {shape}" for name, shape in itertools.islice(shapes.items(), _LISTED))
        told += f" and {len(shapes) - _LISTED} more" if len(shapes) > _LISTED else ""
        raise _RefusalError(
            "usage",
            message=f"its datasets have different first dimensions: {told}",
            hint="name those that belong together: fields=[...]; if each file is one sample: sample_axis=None",
        )
    return list(shapes)


def _refuse_sample_groups(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a file whose groups are samples: as fields, their datasets would be cut into rows."""
    if (found := sample_groups(shapes)) is None:
        return
    shape = {name: shapes[f"{found.groups[0]}/{name}"] for name in found.members}
    # As forebay convert writes them: arrays of one shape, or rows of any length.
    is_regular = all(
        len(one) == 1 or all(shapes[f"{group}/{name}"] == one for group in found.groups)
        for name, one in shape.items()
    )
    told = ", ".join(f"{name} {one}" for name, one in itertools.islice(shape.items(), _LISTED))
    raise _RefusalError(
        "unsupported",
        what="an HDF5 file with one group per sample",
        found=f"{len(found.groups)} groups such as {found.groups[0]!r}, each with {told}",
        hint=(
            "forebay convert writes a file with a sample for each group, to .parquet for example; if the datasets "
            "are fields: name them with fields=[...]"
            if is_regular
            else "open the datasets of one group with fields=[...]; shapes of the groups differ, so that they are no "
            "samples of one kind"
        ),
    )


def _dataset(file: Any, name: str, one_sample: bool, h5py: Any) -> Any:
    """Return a dataset by its path."""
    try:
        found = file.get(name)
    except (OSError, KeyError):
        found = None
    if not isinstance(found, h5py.Dataset):
        names = ", ".join(one if isinstance(one, str) else repr(one) for one in datasets_of(file, h5py))
        raise _RefusalError(
            "usage", message=f"it has no dataset {name!r}", hint=f"its datasets: {names or 'none'}"
        )
    if found.file.filename != file.filename:
        raise _RefusalError(
            "unsupported",
            what=f"dataset {name!r}, which is a link to another file",
            found=str(found.file.filename),
            hint="open that file",
        )
    if found.shape is None:
        raise _RefusalError(
            "usage", message=f"dataset {name!r} has no elements", hint="leave it out of fields="
        )
    if not (found.shape or one_sample):
        raise _RefusalError(
            "usage",
            message=f"dataset {name!r} has no first dimension",
            hint="leave it out of fields=; if each file is one sample: sample_axis=None",
        )
    return found


class _Dataset:
    """One dataset, about to be described."""

    def __init__(
        self, dataset: Any, name: str, raw: BinaryIO, user_block_bytes: int, one_sample: bool = False
    ) -> None:
        self.dataset = dataset
        # A file that is one sample is described as one row.
        self._first = (1,) if one_sample else ()
        self.name = name
        self._raw = raw
        self._user_block_bytes = user_block_bytes
        self._properties = dataset.id.get_create_plist()
        # Strings of an element that end at their first NUL: offset and length [bytes].
        self._strings: list[tuple[int, int]] = []

    def describe(self) -> tuple[dict[str, object], bytes]:
        """Return the description and the table behind it."""
        import h5py

        sources = [
            self._properties.get_external(number) for number in range(self._properties.get_external_count())
        ]
        if sources:
            self._refuse(
                "external data", ", ".join(repr(name.decode(errors="replace")) for name, *_ in sources)
            )
        layout = self._properties.get_layout()
        if layout == h5py.h5d.VIRTUAL:
            files = sorted({source.file_name for source in self.dataset.virtual_sources()})
            self._refuse("virtual data", ", ".join(files), "open the files that it is made of")
        kind = self.dataset.id.get_type()
        if kind.get_class() in (h5py.h5t.STRING, h5py.h5t.VLEN) and self._varies(h5py):
            return self._of_varying_length(kind, layout, h5py)
        described = self._type()
        base, rows = _item(self.dataset.dtype)
        described |= {"name": self.name, "fill": list(self._fill(h5py)), "strings": self._strings}
        described["shape"] = [*self._first, *self.dataset.shape, *rows]
        if len(self._first) + len(self.dataset.shape) + len(rows) > _MAX_DIMENSIONS:
            self._refuse("too many dimensions", f"shape {(*self.dataset.shape, *rows)}")
        if members := _members(self.dataset.dtype, h5py):
            described["members"] = members
        described["item_bytes"] = base.itemsize
        table = b""
        if layout == h5py.h5d.COMPACT:
            described["layout"] = "compact"
            table = self._whole()
        elif layout == h5py.h5d.CHUNKED:
            described["layout"], table = self._chunked(rows)
        # A dataset without storage has no place, whatever libhdf5 says.
        elif self.dataset.id.get_storage_size() == 0:
            described["layout"] = "missing"
        else:
            described["layout"] = self._contiguous()
        return described, table

    def _refuse(self, what: str, found: str, hint: str = _REWRITE_HINT) -> NoReturn:
        raise _RefusalError("unsupported", what=f"dataset {self.name!r} with {what}", found=found, hint=hint)

    def _type(self) -> dict[str, object]:
        """Return the type of an element, if its bytes in the file are what numpy has in memory."""
        import h5py

        kind = self.dataset.id.get_type()
        try:
            dtype = self.dataset.dtype
        except (TypeError, ValueError, KeyError) as error:
            # A class or a precision that numpy has not, or members whose names are not UTF-8.
            self._refuse("elements that numpy has no type for", f"{_class_name(kind, h5py)}: {_line(error)}")
        if dtype.hasobject:
            item = h5py.check_vlen_dtype(dtype)
            # What forebay convert writes.
            is_row = not self._first and len(self.dataset.shape) == 1
            is_row &= bool(h5py.check_string_dtype(dtype)) or (
                item is not None and not np.dtype(item).hasobject
            )
            found = f"{_class_name(kind, h5py)} as numpy {dtype}"
            axes = len(self._first) + len(self.dataset.shape)
            what = "elements of variable length" + (
                f" in an array of shape {self.dataset.shape}" if axes > 1 else ""
            )
            self._refuse(what, found, _LENGTHS_HINT if is_row else _REWRITE_HINT)
        if _has_bits(kind, h5py):
            self._refuse("bitfields", f"{_class_name(kind, h5py)} as numpy {dtype}", _BITS_HINT)
        if dtype.itemsize != kind.get_size() or not _is_plain(kind, dtype, h5py):
            self._refuse("elements that have to be converted", f"{_class_name(kind, h5py)} as numpy {dtype}")
        base, _ = _item(dtype)
        self._strings = list(itertools.islice(_nul_terminated(kind, h5py), _MAX_STRINGS + 1))
        if len(self._strings) > _MAX_STRINGS:
            self._refuse("elements of many strings", f"more than {_MAX_STRINGS}")
        if base.isnative and base.name in _OWN:
            return {"dtype": base.name, "numpy": None}
        try:
            described: object = np.lib.format.dtype_to_descr(_without_metadata(base))
        except ValueError as error:
            self._refuse("members that overlap", _line(error))
        return {"dtype": None, "numpy": described if isinstance(described, str) else repr(described)}

    def _varies(self, h5py: Any) -> bool:
        """Whether rows are elements of variable length that Forebay has a type for."""
        try:
            dtype = self.dataset.dtype
        except (TypeError, ValueError, KeyError):
            return False
        if not dtype.hasobject or len(self._first) + len(self.dataset.shape) != 1:
            return False
        if (text := h5py.check_string_dtype(dtype)) is not None:
            return text.length is None
        kind, item = self.dataset.id.get_type().get_super(), np.dtype(h5py.check_vlen_dtype(dtype))
        is_own = item.isnative and item.name in _OWN and item.itemsize == kind.get_size()
        return bool(is_own and _is_plain(kind, item, h5py) and not _has_bits(kind, h5py))

    def _of_varying_length(self, kind: Any, layout: int, h5py: Any) -> tuple[dict[str, object], bytes]:
        """Return the description of rows in the global heap, and the table of their places."""
        is_text = kind.get_class() == h5py.h5t.STRING
        item = np.dtype(np.uint8) if is_text else np.dtype(h5py.check_vlen_dtype(self.dataset.dtype))
        # A scalar of a file that is one sample is its one row.
        places = np.zeros((self.dataset.size, 2), np.uint64)
        heap = Heap(self._read, self._user_block_bytes)
        references = self._references(layout, h5py)
        for row in np.flatnonzero(references["items"]).tolist():
            try:
                offset, length = heap.place(references[row].item(), item.itemsize)
            except HeapError as error:
                raise _RefusalError(
                    "corrupt",
                    what=f"row {row} of dataset {self.name!r}",
                    offset=error.offset,
                    expected=error.expected,
                    found=error.found,
                ) from None
            # A string of C ends at its first NUL, if it has one.
            end = self._read(offset, length).find(b"\0") if is_text else -1
            places[row] = offset, length if end < 0 else end
        spread = dict.fromkeys([len(places) - 1, *range(0, len(places), max(1, len(places) // _PROBES))])
        for row in spread if len(places) else ():
            wanted = self.dataset[row] if self.dataset.shape else self.dataset[()]
            wanted = wanted if is_text else np.asarray(wanted, item).tobytes()
            offset, length = places[row].tolist()
            if self._read(offset, length) != wanted:
                self._compare(offset, b"", b"other")
        described = {
            "name": self.name,
            "dtype": item.name,
            "numpy": None,
            "item_bytes": item.itemsize,
            "shape": [len(places)],
            "fill": [0] * item.itemsize,
            "layout": "rows",
        }
        return described, places.astype("<u8").tobytes()

    def _references(self, layout: int, h5py: Any) -> np.ndarray[Any, Any]:
        """Return the references of all rows to the global heap."""
        rows, size = self.dataset.size, REFERENCE.itemsize
        references = np.zeros(rows, REFERENCE)
        is_written = self.dataset.id.get_storage_size() > 0
        if layout == h5py.h5d.CHUNKED:
            described, table = self._chunked(())
            filters = [(one["id"], one["values"]) for one in described["chunked"]["filters"]]
            length = self.dataset.chunks[0]
            for number, offset, chunk_bytes, mask in np.frombuffer(table, _CHUNK).tolist():
                chunk = decoded(self._read(offset, chunk_bytes), filters, mask, length * size)
                if chunk is None or len(chunk) != length * size:
                    told = ", ".join(one["name"] or str(one["id"]) for one in described["chunked"]["filters"])
                    self._refuse("elements of variable length behind filters", told, _LENGTHS_HINT)
                part = references[number * length : (number + 1) * length]
                part[:] = np.frombuffer(chunk, REFERENCE)[: len(part)]
            is_written = len(table) == _CHUNK.itemsize * -(-rows // length)
        elif is_written and layout == h5py.h5d.CONTIGUOUS:
            found = self._read(self.dataset.id.get_offset(), rows * size)
            if len(found) == rows * size == self.dataset.id.get_storage_size():
                return np.frombuffer(found, REFERENCE)
            self._refuse(
                "references of another size", f"{self.dataset.id.get_storage_size()} bytes", _LENGTHS_HINT
            )
        elif is_written:
            self._refuse("compact references", "elements of variable length", _LENGTHS_HINT)
        if not is_written and self._properties.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
            self._refuse("a fill value of variable length", str(self.dataset.fillvalue), _LENGTHS_HINT)
        return references

    def _fill(self, h5py: Any) -> bytes:
        """Return the value of elements that were never written."""
        base, _ = _item(self.dataset.dtype)
        defined = self._properties.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
        if not defined or self._properties.get_fill_time() == h5py.h5d.FILL_TIME_NEVER:
            return bytes(base.itemsize)
        if self.dataset.dtype.subdtype is not None:
            self._refuse("a fill value of arrays", str(self.dataset.dtype))
        return np.asarray(self.dataset.fillvalue, dtype=base).tobytes()

    def _read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file; fewer at its end."""
        self._raw.seek(offset)
        found = b""
        while len(found) < length and (more := self._raw.read(length - len(found))):
            found += more
        return found

    def _whole(self) -> bytes:
        """Return all bytes of a small dataset, as h5py reads them."""
        value = self.dataset[()]
        if not isinstance(value, np.ndarray):
            # The string that h5py gives for a scalar has lost the zeros at its end.
            value = np.asarray(value, dtype=self.dataset.dtype)
        return np.ascontiguousarray(value).tobytes()

    def _contiguous(self) -> dict[str, object]:
        offset = self.dataset.id.get_offset()
        if offset is None:
            self._refuse("data without a place", "contiguous data")
        if not self.dataset.shape:
            self._compare(offset, self._read(offset, self.dataset.dtype.itemsize), self._whole())
            return {"contiguous": {"offset": int(offset)}}
        row_bytes = self.dataset.dtype.itemsize * math.prod(self.dataset.shape[1:])
        rows = self.dataset.shape[0]
        for row in sorted({0, rows - 1}):
            # As an array: a string alone would lose the zeros at its end.
            wanted = np.ascontiguousarray(self.dataset[row : row + 1]).tobytes()
            self._compare(offset + row * row_bytes, self._read(offset + row * row_bytes, row_bytes), wanted)
        return {"contiguous": {"offset": int(offset)}}

    def _is_same(self, found: bytes, wanted: bytes) -> bool:
        """Whether bytes of the file and bytes that h5py has read hold the same elements."""
        base, _ = _item(self.dataset.dtype)
        if found == wanted or len(found) != len(wanted) or not base.itemsize:
            return found == wanted
        one, other = (
            np.frombuffer(some, np.uint8).reshape(-1, base.itemsize).copy() for some in (found, wanted)
        )
        for offset, length in self._strings:
            string = one[:, offset : offset + length]
            string *= np.logical_and.accumulate(string != 0, axis=1)
        counts = _counts(base)
        return bool((one[:, counts] == other[:, counts]).all())

    def _compare(self, offset: int, found: bytes, wanted: bytes) -> None:
        if not self._is_same(found, wanted):
            raise _RefusalError(
                "corrupt",
                what=f"data of dataset {self.name!r}",
                offset=offset,
                expected="what h5py reads",
                found="other bytes",
            )

    def _chunked(self, rows: tuple[int, ...]) -> tuple[dict[str, Any], bytes]:
        shape, chunk = self.dataset.shape, self.dataset.chunks
        starts, places = array("Q"), array("Q")

        def take(info: Any) -> None:
            starts.extend(info.chunk_offset)
            places.extend((info.byte_offset, info.size, info.filter_mask))

        if self.dataset.id.get_storage_size() > 0:
            # The only way that does not search the whole table for each chunk.
            self.dataset.id.chunk_iter(take)
        first = np.frombuffer(starts, np.uint64).reshape(-1, len(shape)).astype(np.int64)
        place = np.frombuffer(places, np.uint64).reshape(-1, 3)
        first, base = self._located(first, place)
        counts = [-(-extent // length) for extent, length in zip(shape, chunk, strict=True)]
        numbers = np.zeros(len(first), np.int64)
        for axis, count in enumerate(counts):
            numbers = numbers * count + first[:, axis] // chunk[axis]
        # Chunks that were written before the dataset was made smaller are no part of it.
        inside = (first < np.asarray(shape)).all(axis=1)
        order = np.argsort(numbers[inside], kind="stable")
        first, place, numbers = first[inside][order], place[inside][order], numbers[inside][order]
        table = np.empty(len(numbers), _CHUNK)
        table["number"], table["length"], table["mask"] = numbers, place[:, 1], place[:, 2]
        table["offset"] = place[:, 0] + np.uint64(base)
        filters = [self._properties.get_filter(number) for number in range(self._properties.get_nfilters())]
        if filters and not self.dataset.dtype.hasobject:
            self._find_bare_edges(first, table)
        described = [
            {"id": code, "name": name.decode(errors="replace").split(";")[0], "values": list(values)}
            for code, _, values, name in filters
        ]
        layout = {"shape": [*self._first, *chunk, *rows], "filters": described, "chunks": len(table)}
        return {"chunked": layout}, table.tobytes()

    def _located(
        self, first: np.ndarray[Any, Any], place: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], int]:
        """Return the first element of every chunk, and the base of their offsets [bytes].

        What libhdf5 reports can be read in several ways; raw chunks that h5py reads show the right
        one. Versions differ in the base: 0, or the end of the user block.
        """
        if not len(first):
            return first, 0
        bases = sorted({0, self._user_block_bytes})
        readings = [(chunks, base) for chunks in (first, *self._of_moved_axis(first)) for base in bases]
        is_doubtful = len(readings) > len(bases)
        numbers = np.arange(len(first))
        if not is_doubtful:
            # Both ends first: most wrong readings fail there.
            inside = np.flatnonzero((first < np.asarray(self.dataset.shape)).all(axis=1))
            numbers = np.concatenate([inside[-1:], inside[:: max(1, len(inside) // _PROBES)]])
        for compared, number in enumerate(numbers.tolist(), start=1):
            readings = [one for one in readings if self._holds(one, place[number], number, is_doubtful)]
            if not readings and is_doubtful:
                self._refuse(
                    "chunks elsewhere than h5py reads them", f"chunk {number} of its index", _PLACES_HINT
                )
            if not readings:
                self._compare(int(place[number][0]), b"", b"other")
            if len(readings) == 1 and readings[0][0] is first and compared > 1:
                break
        # More than one is left where there is nothing in which they differ.
        return readings[0]

    def _of_moved_axis(self, first: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Return the first elements of chunks, if they may have been reported for a moved axis.

        An extensible array counts chunks with its one unlimited axis in front of all others.
        ``chunk_iter`` of libhdf5 counts them without moving it back, and never increments the axes
        before it: what it reports holds the place in the array, and no coordinates.
        """
        free = [axis for axis, most in enumerate(self.dataset.maxshape) if most is None]
        grid = first // np.asarray(self.dataset.chunks)
        if len(free) != 1 or not free[0] or grid[:, : free[0]].any():
            return []
        others = [axis for axis in range(len(self.dataset.shape)) if axis != free[0]]
        counts = {axis: -(-self.dataset.maxshape[axis] // self.dataset.chunks[axis]) for axis in others}
        number = grid[:, free[0]]
        for axis in others[free[0] :]:
            number = number * counts[axis] + grid[:, axis]
        moved = np.empty_like(grid)
        for axis in reversed(others):
            number, moved[:, axis] = np.divmod(number, counts[axis])
        moved[:, free[0]] = number
        return [] if np.array_equal(moved, grid) else [moved * np.asarray(self.dataset.chunks)]

    def _holds(
        self,
        reading: tuple[np.ndarray[Any, Any], int],
        place: np.ndarray[Any, Any],
        number: int,
        is_doubtful: bool,
    ) -> bool:
        """Whether h5py reads, as this chunk, the bytes that lie at its place."""
        chunks, base = reading
        offset, length, mask = place.tolist()
        try:
            found = self.dataset.id.read_direct_chunk(tuple(chunks[number].tolist()))
        except (OSError, RuntimeError, ValueError, OverflowError) as error:
            # Where no chunk is, none can be read.
            if getattr(error, "errno", None) or not is_doubtful:
                raise
            return False
        return bool(found == (mask, self._read(base + offset, length)))

    def _find_bare_edges(self, first: np.ndarray[Any, Any], table: np.ndarray[Any, Any]) -> None:
        """Mark chunks at the edges that are stored without filters (H5Pset_chunk_opts).

        Their masks do not show it.

        Such a chunk has the length of a decoded one, and its bytes are what h5py reads.
        """
        shape, chunk, dtype = self.dataset.shape, self.dataset.chunks, self.dataset.dtype
        chunk_bytes = dtype.itemsize * math.prod(chunk)
        reaches_out = (first + np.asarray(chunk) > np.asarray(shape)).any(axis=1)
        for number in np.flatnonzero(reaches_out & (table["length"] == chunk_bytes)):
            parts = [
                slice(start, min(start + length, extent))
                for start, length, extent in zip(first[number].tolist(), chunk, shape, strict=True)
            ]
            bare = self._read(int(table["offset"][number]), chunk_bytes)
            if len(bare) != chunk_bytes:
                continue
            base, rows = _item(dtype)
            values = np.frombuffer(bare, base).reshape((*chunk, *rows))
            inside = values[tuple(slice(0, part.stop - part.start) for part in parts)]
            if self._is_same(inside.tobytes(), np.ascontiguousarray(self.dataset[tuple(parts)]).tobytes()):
                table["mask"][number] = _ALL_SKIPPED


def _item(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the type of an element, and the shape of the arrays, or arrays of arrays, of it."""
    shape: tuple[int, ...] = ()
    while dtype.subdtype is not None:
        dtype, shape = dtype.base, (*shape, *dtype.shape)
    return dtype, shape


def _without_metadata(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a type without h5py's notes, such as that a string is UTF-8."""
    if dtype.subdtype is not None:
        return np.dtype((_without_metadata(dtype.base), dtype.shape))
    members: Mapping[str, Any] = dtype.fields or {}
    if not members:
        return np.dtype(dtype.str)
    # By their places: numpy describes no others.
    names = sorted(members, key=lambda name: members[name][1])
    return np.dtype(
        {
            "names": names,
            "formats": [_without_metadata(members[name][0]) for name in names],
            "offsets": [members[name][1] for name in names],
            "itemsize": dtype.itemsize,
        }
    )


def _counts(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return which bytes of an element are of a value, and none of the room between members."""
    if dtype.subdtype is not None:
        return np.tile(_counts(dtype.base), math.prod(dtype.shape))
    members: Mapping[str, Any] = dtype.fields or {}
    counts = np.full(dtype.itemsize, not members)
    for member, offset, *_ in members.values():
        counts[offset : offset + member.itemsize] |= _counts(member)
    return counts


def _nul_terminated(kind: Any, h5py: Any, offset: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the offset and the length of each string of an element that ends at its first NUL.

    An element of a dataset of arrays is one of the array.
    """
    code = kind.get_class()
    if code == h5py.h5t.STRING and kind.get_strpad() == h5py.h5t.STR_NULLTERM:
        yield offset, kind.get_size()
    elif code == h5py.h5t.COMPOUND:
        for number in range(kind.get_nmembers()):
            item, start = kind.get_member_type(number), offset + kind.get_member_offset(number)
            end = start + item.get_size()
            while item.get_class() == h5py.h5t.ARRAY:
                item = item.get_super()
            strings = list(itertools.islice(_nul_terminated(item, h5py), _MAX_STRINGS + 1))
            for at in range(start, end, item.get_size()) if strings else ():
                yield from ((at + first, length) for first, length in strings)
    elif code == h5py.h5t.ARRAY:
        yield from _nul_terminated(kind.get_super(), h5py, offset)


def _class_name(kind: Any, h5py: Any) -> str:
    """Return the class of a type, as HDF5 calls it."""
    names = {
        h5py.h5t.INTEGER: "integer",
        h5py.h5t.FLOAT: "float",
        h5py.h5t.TIME: "time",
        h5py.h5t.STRING: "string",
        h5py.h5t.BITFIELD: "bitfield",
        h5py.h5t.OPAQUE: "opaque",
        h5py.h5t.COMPOUND: "compound",
        h5py.h5t.REFERENCE: "reference",
        h5py.h5t.ENUM: "enum",
        h5py.h5t.VLEN: "variable length",
        h5py.h5t.ARRAY: "array",
    }
    return names.get(kind.get_class(), "unknown")


def _members(dtype: np.dtype[Any], h5py: Any) -> str:
    """Return what the integers of enumerations stand for: the first ones, and a digest of all."""
    if dtype.fields:
        found = [f"{name}: {_members(part, h5py)}" for name, (part, *_) in dtype.fields.items()]
        return "; ".join(one for one in found if not one.endswith(": "))
    members = h5py.check_enum_dtype(dtype.base)
    if not members:
        return ""
    pairs = [f"{name}={number}" for name, number in sorted(members.items(), key=lambda one: (one[1], one[0]))]
    if len(pairs) <= _SHOWN_MEMBERS:
        return ", ".join(pairs)
    digest = hashlib.sha256("\0".join(pairs).encode(errors="surrogateescape")).hexdigest()[:16]
    return f"{', '.join(pairs[:_SHOWN_MEMBERS])}, … ({len(pairs)} members, digest {digest})"


def _has_bits(kind: Any, h5py: Any) -> bool:
    """Whether elements are bitfields, or hold some."""
    code = kind.get_class()
    if code == h5py.h5t.COMPOUND:
        return any(_has_bits(kind.get_member_type(number), h5py) for number in range(kind.get_nmembers()))
    if code == h5py.h5t.ARRAY:
        return _has_bits(kind.get_super(), h5py)
    return bool(code == h5py.h5t.BITFIELD)


def _is_plain(kind: Any, dtype: np.dtype[Any], h5py: Any) -> bool:
    """Whether elements lie in the file as numpy has them in memory."""
    code = kind.get_class()
    if code == h5py.h5t.COMPOUND:
        members: Iterable[int] = range(kind.get_nmembers())
        fields: Mapping[str, Any] = dtype.fields or {}
        # Complex numbers are compounds, too.
        if dtype.kind == "c":
            half = np.dtype(f"{dtype.byteorder}f{dtype.itemsize // 2}")
            return all(_is_plain(kind.get_member_type(number), half, h5py) for number in members)
        return all(
            fields[name][1] == kind.get_member_offset(number)
            and fields[name][0].itemsize == kind.get_member_type(number).get_size()
            and _is_plain(kind.get_member_type(number), fields[name][0], h5py)
            for number in members
            for name in [kind.get_member_name(number).decode()]
        )
    if code == h5py.h5t.ARRAY:
        return _is_plain(kind.get_super(), dtype.base, h5py)
    if code == h5py.h5t.ENUM:
        return _is_plain(kind.get_super(), np.dtype(f"{dtype.byteorder}i{dtype.itemsize}"), h5py)
    if code == h5py.h5t.STRING:
        # Blanks at the end belong to numpy's strings, and not to those that are padded with them.
        return bool(kind.get_strpad() != h5py.h5t.STR_SPACEPAD)
    if code == h5py.h5t.INTEGER:
        return bool(kind.get_precision() == 8 * kind.get_size() and kind.get_offset() == 0)
    if code == h5py.h5t.FLOAT:
        return bool(kind.equal(h5py.h5t.py_create(dtype)))
    return bool(code == h5py.h5t.OPAQUE)
