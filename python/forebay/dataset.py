"""Datasets: container files of samples. Opening reads headers only; first use builds the index."""

from __future__ import annotations

import contextlib
import json
import operator
import resource
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, SupportsIndex, overload

from forebay import _native
from forebay._core import OptionError, StorageError, option_error
from forebay._paths import PathLike as PathLike
from forebay._paths import expand, missing
from forebay.decode import Decoder, decoders_json
from forebay.options import resolve

__all__ = ["Dataset", "open"]

# A shard is open in the dataset, in its loader, and once more where reads go around the page cache.
_DESCRIPTORS = 3
# For what else the process has open.
_OTHER_DESCRIPTORS = 512

# What `sample_axis=` may be, and what the engine calls it.
_AXES: Final = {"auto": "auto", 0: "first", None: "file"}


def open(
    path: PathLike | Sequence[PathLike],
    *,
    format: str | None = None,
    fields: Any = None,
    schema: str | None = None,
    database: str | None = None,
    record_bytes: int | None = None,
    header_bytes: int = 0,
    sample_axis: int | Literal["auto"] | None = "auto",
    decode: Mapping[str, Decoder | str] | None = None,
) -> Dataset:
    """Open a dataset.

    This reads headers only. The first use of a sample builds the index, or loads it from a sidecar;
    a :class:`forebay.Loader` does that once per node.

    Parameters
    ----------
    path : path-like or sequence of path-like
        A file, or the directory of an LMDB environment. A list of them, a pattern such as
        ``"train-*.lmdb"``, or braces such as ``"train-{0000..0131}.tar"``, is one dataset of
        several shards, in the order of the list, of the sorted names, or of the braces. A file with
        exactly that name takes precedence over pattern and braces.
    format : str, optional
        The container format (docs/formats). Default: detected from the contents.
    fields : sequence of str, optional
        The fields to deliver, in this order. Default: all. For a raw file, the layout of a record:
        a mapping of field name to dtype or (dtype, shape), or a structured numpy dtype.
    schema : {"auto", "raw", "caffe-datum", "tf-example", "image-record"}, optional
        How records become fields. ``auto`` infers it from the first records. Default ``auto``.
    database : str, optional
        Name of a sub-database of LMDB. Default: the main one.
    record_bytes : int, optional
        Size of a record of a raw file [bytes]. Default: the size of its fields.
    header_bytes : int, optional
        Bytes before the first record of a raw file. Default 0.
    sample_axis : {"auto", 0, None}, optional
        Which axis of the arrays in HDF5, npy and npz files counts samples. 0: the first axis, so
        that a file is a shard of samples. None: no axis, so that each file is one sample whose
        fields are whole arrays. Default ``auto``: the first axis, with a warning where many files
        share one shape and nothing shows that their first axis counts samples.
    decode : mapping, optional
        Field name → decoder, for fields of encoded bytes (docs/decode.md): :func:`forebay.image`,
        :func:`forebay.array`, ``"int"`` (an int64), ``"text"`` (a ``str``) or ``"json"`` (what
        ``json.loads`` makes of it). Threads of the loader decode. Default: none.

    Returns
    -------
    Dataset
        The data set, whose files are not read beyond their headers yet.

    Raises
    ------
    StorageError
        If a path does not exist or cannot be read.
    FormatError
        If the contents are not what the format says; the message names file, offset, expected and
        found.
    OptionError
        If an option is not one of those above, or the fields do not fit the format.
    """
    axis = _axis(sample_axis)
    options = resolve({"schema": schema, "database": database, "format": format})
    arguments: dict[str, Any] = dict(options.values)
    if (decoders := decoders_json(decode)) is not None:
        arguments["decode"] = decoders
    _check_text("database", options["database"] or "")
    if record_bytes is not None and options["format"] not in (None, "raw"):
        raise option_error(
            f"forebay.open: record_bytes= is for raw files, the format is to be {options['format']}",
            'leave it out, or pass format="raw"',
        )
    if options["format"] == "raw" or record_bytes is not None:
        from forebay._formats.raw_layout import raw_layout

        arguments["raw"], names = raw_layout(fields, record_bytes, header_bytes)
        arguments["format"] = "raw"
    else:
        if header_bytes:
            raise option_error("forebay.open: header_bytes= is for raw files", 'pass format="raw" as well')
        names = _names(fields)
    found = Dataset(expand(path), fields=names, sample_axis=axis, **arguments)
    if database is not None and found.format != "lmdb":
        raise option_error(
            f"forebay.open: database= is for LMDB files; {found.paths[0]} is {found.format}", "leave it out"
        )
    return found


def _axis(sample_axis: object) -> str:
    """Return the engine's name of ``sample_axis``."""
    if isinstance(sample_axis, bool) or not isinstance(sample_axis, str | SupportsIndex | None):
        axis: object = sample_axis
    else:
        axis = operator.index(sample_axis) if isinstance(sample_axis, SupportsIndex) else sample_axis
        for known, name in _AXES.items():
            if axis == known:
                return name
    raise option_error(
        f'forebay.open: sample_axis=: expected "auto", 0 or None, found {axis!r}',
        "0: the first axis counts samples; None: each file is one sample; arrays with samples on another axis have to be "
        "transposed first",
    )


def _check_text(option: str, text: str) -> None:
    """Raise where a name holds surrogates, which stand for bytes that are not UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise option_error(f"forebay.open: {option}=: expected a name that UTF-8 can hold, found {text!r}")


def _names(fields: Any) -> list[str]:
    """Return the names of the fields to deliver; empty for all."""
    if fields is None:
        return []
    if isinstance(fields, str | Mapping) or not all(isinstance(field, str) for field in fields):
        raise option_error(
            f"forebay.open: expected fields= as a list of names, found {fields!r}",
            'types and shapes are told of raw files only: format="raw"',
        )
    names = list(fields)
    for name in names:
        _check_text("fields", name)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise option_error(f"forebay.open: fields= names {twice!r} twice")
    return names


class Dataset:
    """Hold the samples of container files; :func:`forebay.open` makes one.

    ``len(dataset)`` is the number of samples. ``dataset[i]`` reads one of them: bytes where the
    schema is raw, else a dict of field name to value. Use it to look at single samples, and a
    :class:`forebay.Loader` to read all of them fast.

    Parameters
    ----------
    paths : list of str
        Shards, in order.
    options
        As :func:`forebay.open` resolves them.
    """

    __slots__ = ("_native", "_options")

    def __init__(self, paths: list[str], **options: Any) -> None:
        self._options = options
        _allow_open_files(len(paths))
        try:
            self._native = _native.Dataset(paths, **options)
        except StorageError:
            # A file that does not exist is the likeliest reason.
            if (error := missing(paths)) is None:
                raise
            raise error from None

    @property
    def native(self) -> _native.Dataset:
        """The Rust object behind this one."""
        return self._native

    @property
    def format(self) -> str:
        """Name of the container format, for example ``lmdb``."""
        return self._native.format

    @property
    def paths(self) -> list[str]:
        """Paths of the shards, in order."""
        return self._native.paths

    @property
    def fingerprint(self) -> str:
        """String that identifies the data set; a state or sidecar is valid for one fingerprint.

        It changes when the files, the sub-database or the schema change.
        """
        return self._native.fingerprint

    @property
    def decoders(self) -> dict[str, Any]:
        """Field name → decoder, as the engine reads it; empty without ``decode=``."""
        found: dict[str, Any] = json.loads(self._options.get("decode", "{}"))
        return found

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...] | None]]:
        """Field name → (numpy dtype name, shape of one sample), after ``decode=``.

        The shape is None where the length varies; dtype ``object`` stands for Python objects.
        """
        return {name: (dtype, shape) for name, dtype, shape in self._native.fields()}

    def __len__(self) -> int:
        return len(self._native)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        """Read and return one sample; for a slice, a list of samples.

        It is decoded by ``decode=``; what is random is as in epoch 0 of a loader with seed 0.

        Raises
        ------
        IndexError
            If there is no such sample.
        OptionError
            If the index is neither an integer nor a slice; also a :class:`TypeError`.
        FormatError
            If the sample cannot be decoded.
        StorageError
            If the sample cannot be read.
        """
        if isinstance(index, slice):
            return [self[number] for number in range(*self._bounds(index))]
        sample = self._native.sample(self._number(index))
        if len(sample) == 1 and isinstance(data := sample.get("data"), bytes):
            return data
        return sample

    def _bounds(self, index: slice) -> tuple[int, int, int]:
        try:
            return index.indices(len(self))
        except (TypeError, ValueError) as error:
            raise _index_error(f"{self!r}: {error}", "as in dataset[0:3]") from None

    def _number(self, index: object) -> int:
        """Return the sample id of an index, which may be negative."""
        if isinstance(index, str):
            raise _index_error(
                f"{self!r}: expected the number of a sample, found {index!r}",
                f"dataset[0][{index!r}] is a field of one sample, batch[{index!r}] of a batch of forebay.Loader; "
                "forebay.open(..., fields=[...]) chooses fields",
            )
        try:
            number = operator.index(index)  # type: ignore[arg-type]
        except TypeError:
            raise _index_error(
                f"{self!r}: expected the number of a sample, or a slice; found {index!r}",
                "several samples by number: [dataset[number] for number in numbers]",
            ) from None
        samples = len(self)
        if not -samples <= number < samples:
            raise IndexError(f"sample {number} of a data set of {samples} samples")
        return number % samples

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def extents(self, index: SupportsIndex) -> list[tuple[str, int, int]]:
        """Return the extents of a sample: (path, offset [bytes], length [bytes]).

        Raises
        ------
        IndexError
            If there is no such sample.
        """
        return self._native.extents(self._number(index))

    def __repr__(self) -> str:
        paths = self.paths
        shown = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        return f"<forebay.Dataset {self.format} {shown}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the paths and options, so that a spawned process opens the files again."""
        return _reopen, (self.paths, self._options)


def _allow_open_files(shards: int) -> None:
    """Raise the soft limit on open files for this many shards, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _DESCRIPTORS * shards + _OTHER_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    # If this fails, the open that fails later names its file.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


class _IndexError(OptionError, TypeError):
    """The index is neither an integer nor a slice; a `TypeError`, as sequences raise."""


def _index_error(message: str, hint: str) -> OptionError:
    return _IndexError(f"{message}\nhint: {hint}")


def _reopen(paths: list[str], options: dict[str, Any]) -> Dataset:
    return Dataset(paths, **options)
