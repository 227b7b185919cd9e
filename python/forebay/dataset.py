"""Datasets: containers of samples, opened by their headers only, indexed at first need."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forebay import _native
from forebay._core import StorageError, option_error
from forebay.options import resolve

__all__ = ["Dataset", "open"]

PathLike = str | os.PathLike[str]


def open(
    path: PathLike | Sequence[PathLike],
    *,
    format: str | None = None,
    fields: Any = None,
    schema: str | None = None,
    database: str | None = None,
    record_bytes: int | None = None,
    header_bytes: int = 0,
) -> Dataset:
    """Open a dataset.

    Only headers are read. The index is built, or found as a sidecar, when it is first needed; a :class:`forebay.Loader` does
    that once per node.

    Parameters
    ----------
    path : path-like or sequence of path-like
        A file, or the directory of an LMDB environment. A list of them, or a pattern such as ``"train-*.lmdb"``, is one
        dataset of several shards, in the order of the list, or of the sorted names.
    format : str, optional
        The container format (docs/formats). Default: found from the contents.
    fields : sequence of str, optional
        The fields that are wanted, in this order. Default: all. Of a raw file, a mapping of field name to dtype or
        (dtype, shape), or a structured dtype of numpy's: what its records consist of.
    schema : {"auto", "raw", "caffe-datum", "tf-example", "image-record"}, optional
        How records become fields. ``auto`` looks at the first records. Default ``auto``.
    database : str, optional
        Name of a sub-database of LMDB. Default: the main one.
    record_bytes : int, optional
        Size of a record of a raw file [bytes]. Default: what the fields take.
    header_bytes : int, optional
        Bytes in front of the first record of a raw file.

    Returns
    -------
    Dataset

    Raises
    ------
    StorageError
        If a path is not there or cannot be read.
    FormatError
        If the contents are not what the format says; the message names file, offset, expected and found.
    OptionError
        If an option is not one of those above, or the fields do not fit the format.
    """
    options = resolve({"schema": schema, "database": database, "format": format})
    arguments: dict[str, Any] = dict(options.values)
    if record_bytes is not None and options["format"] not in (None, "raw"):
        raise option_error(
            f"forebay.open: record_bytes= is for raw files, the format is to be {options['format']}",
            'leave it out, or say format="raw"',
        )
    if options["format"] == "raw" or record_bytes is not None:
        from forebay.records import raw_layout

        arguments["raw"], names = raw_layout(fields, record_bytes, header_bytes)
        arguments["format"] = "raw"
    else:
        if header_bytes:
            raise option_error("forebay.open: header_bytes= is for raw files", 'say format="raw" as well')
        names = _names(fields)
    found = Dataset(_expand(path), fields=names, **arguments)
    if database is not None and found.format != "lmdb":
        raise option_error(
            f"forebay.open: database= is for LMDB files; {found.paths[0]} is {found.format}", "leave it out"
        )
    return found


def _names(fields: Any) -> list[str]:
    """Return the names of wanted fields."""
    if fields is None:
        return []
    if isinstance(fields, str | Mapping) or not all(isinstance(field, str) for field in fields):
        raise option_error(
            f"forebay.open: expected fields= as a list of names, found {fields!r}",
            'types and shapes are told of raw files only: format="raw"',
        )
    names = list(fields)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise option_error(f"forebay.open: fields= names {twice!r} twice")
    return names


def _expand(path: PathLike | Sequence[PathLike]) -> list[str]:
    """Return plain paths; a pattern stands for what it matches unless something has that very name."""
    given = (
        list(path)
        if isinstance(path, Iterable) and not isinstance(path, str | bytes | os.PathLike)
        else [path]
    )
    if not given:
        raise option_error("forebay.open: the list of paths is empty")
    found: list[str] = []
    for one in given:
        text = os.fspath(one) if isinstance(one, os.PathLike) else one
        if not isinstance(text, str) or not text:
            raise option_error(f"forebay.open: expected a path, or a list of paths, as text; found {text!r}")
        if not glob.has_magic(text) or Path(text).exists():
            found.append(text)
            continue
        matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
        if not matches:
            raise StorageError(f"forebay.open: no file matches the pattern {text}")
        found += matches
    return found


class Dataset:
    """Samples in container files; made by :func:`forebay.open`.

    ``len(dataset)`` is the number of samples, ``dataset[i]`` one of them: bytes where the schema is raw, else a dict of field
    name to value. This is the plain way to look at single samples; a :class:`forebay.Loader` is the fast way to all.

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
        self._native = _native.Dataset(paths, **options)

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
        """Text that changes when the files, the sub-database or the schema change; states and sidecars are tied to it."""
        return self._native.fingerprint

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...] | None]]:
        """Field name → (numpy dtype name, shape of one sample); a shape of None means that the length varies."""
        return {name: (dtype, shape) for name, dtype, shape in self._native.fields()}

    def __len__(self) -> int:
        return len(self._native)

    def __getitem__(self, index: int) -> Any:
        """Return one sample, read now.

        Raises
        ------
        IndexError
            If there is no such sample.
        FormatError, StorageError
            If it cannot be decoded, or read.
        """
        sample = self._native.sample(index)
        if len(sample) == 1 and isinstance(data := sample.get("data"), bytes):
            return data
        return sample

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def extents(self, index: int) -> list[tuple[str, int, int]]:
        """Return where the bytes of a sample lie: (path, offset [bytes], length [bytes]).

        Raises
        ------
        IndexError
            If there is no such sample.
        """
        return self._native.extents(index)

    def __repr__(self) -> str:
        paths = self.paths
        shown = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        return f"<forebay.Dataset {self.format} {shown}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as what it takes to open the files again, for processes that are spawned."""
        return _reopen, (self.paths, self._options)


def _reopen(paths: list[str], options: dict[str, Any]) -> Dataset:
    return Dataset(paths, **options)
