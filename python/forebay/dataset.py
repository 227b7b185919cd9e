"""Datasets: container files of samples. Opening reads headers only; first use builds the index."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, SupportsIndex, overload

from forebay import _native
from forebay._core import FormatError, StorageError, option_error
from forebay._paths import PathLike as PathLike
from forebay._paths import expand, missing
from forebay._sample_ids import SomeIds, index_error, sample_ids
from forebay._selection import Ids, checked_ids, split_ids
from forebay._shown import counted, fields_text, table
from forebay._warn import warn
from forebay.decode import Decoder, decoders_of
from forebay.options import resolve

if TYPE_CHECKING:
    from forebay._iteration import Batch

__all__ = ["Dataset", "open"]

# What `sample_axis=` may be, and what the engine calls it.
_AXES: Final = {"auto": "auto", 0: "first", None: "file"}
# What `nulls=` may be, and the formats that have nulls.
_NULLS: Final = ("raise", "mask")
_TABLES: Final = ("arrow", "parquet")


def open(
    path: PathLike | Sequence[PathLike],
    *,
    format: str | None = None,
    split: str | None = None,
    fields: Any = None,
    schema: str | None = None,
    database: str | None = None,
    record_bytes: int | None = None,
    header_bytes: int = 0,
    sample_axis: int | Literal["auto"] | None = "auto",
    follow_symlinks: bool = False,
    decode: Mapping[str, Decoder | str] | None = None,
    nulls: Literal["raise", "mask"] = "raise",
) -> Dataset:
    """Open a dataset.

    This reads headers only. The first use of a sample builds the index, or loads it from a sidecar;
    a :class:`forebay.Loader` does that once per node.

    Parameters
    ----------
    path : path-like or sequence of path-like
        A file, or a directory: of an LMDB environment, of a dataset of Hugging Face
        (``save_to_disk``, a cache, a repository with one split), of shards with an ``index.json``
        (MDS, LitData), or of files that are samples. A list of them, a pattern such as
        ``"train-*.lmdb"``, or braces such as ``"train-{0000..0131}.tar"``, is one dataset of
        several shards, in the order of the list, of the sorted names, or of the braces. A file with
        exactly that name takes precedence over pattern and braces.
    format : str, optional
        The container format (docs/formats). Default: detected from the contents.
    split : str, optional
        The split to open, where ``path`` is a directory that holds several: a directory in it, such
        as ``train``, or the shards of that name in a directory of Hugging Face.
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
    follow_symlinks : bool, optional
        Whether symbolic links in a folder of samples are followed, wherever they lead: to files and
        to directories. Default False: they are skipped, with a warning.
    decode : mapping, optional
        Field name → decoder, for fields of encoded bytes (docs/decode.md): :func:`forebay.image`,
        :func:`forebay.array`, ``"int"`` (an int64), ``"text"`` (a ``str``) or ``"json"`` (what
        ``json.loads`` makes of it). Threads of the loader decode. Default: none.
    nulls : {"raise", "mask"}, optional
        What becomes of nulls in the columns of Arrow and Parquet. ``mask``: each field that may
        have nulls is followed by a field of booleans, ``"name.valid"``, which is False where the
        value is null; the value in its place is 0 or empty. Default ``raise``: a null is an
        error.

    Returns
    -------
    Dataset
        The dataset, whose files are not read beyond their headers yet.

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
    if nulls not in _NULLS:
        raise option_error(f'forebay.open: nulls=: expected "raise" or "mask", found {nulls!r}')
    options = resolve({"schema": schema, "database": database, "format": format})
    arguments: dict[str, Any] = dict(options.values)
    if follow_symlinks:
        arguments["follow_symlinks"] = True
    if decoders := decoders_of(decode):
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
    paths, indices = _files(expand(path), options["format"], split)
    if nulls != "raise":
        arguments["nulls"] = nulls
    found = Dataset(paths, fields=names, sample_axis=axis, **arguments)
    if nulls != "raise" and found.format not in _TABLES:
        raise option_error(
            f"forebay.open: nulls= is for Arrow and Parquet; {found.paths[0]} is {found.format}",
            "leave it out",
        )
    warn_of_repeated(found)
    if found.format in _TABLES:
        from forebay._formats.huggingface_directory import check_class_names

        check_class_names(found.paths)
    if found.format == "npy" and names:
        _warn_of_renamed(found.paths, names[0])
    if indices:
        found = found.select(_row_numbers(indices, len(found)))
    if database is not None and found.format != "lmdb":
        raise option_error(
            f"forebay.open: database= is for LMDB files; {found.paths[0]} is {found.format}", "leave it out"
        )
    return found


def _warn_of_renamed(paths: list[str], name: str) -> None:
    """Warn where the name that is given to an array is that of another file beside it."""
    for path in map(Path, paths):
        if (
            path.stem != name
            and (other := path.with_name(f"{name}.npy")).is_file()
            and str(other) not in paths
        ):
            warn(
                f"{path}: fields= gives its array the name {name!r}; {other} is another file\n"
                f'hint: forebay.open("{other}") opens that one; files of npy are not fields of one dataset, npz files are'
            )
            return


def warn_of_repeated(dataset: Dataset) -> None:
    """Warn of files that were given more than once."""
    if (text := dataset.native.repeated_files()) is not None:
        warn(text)


def _files(paths: list[str], format: str | None, split: str | None) -> tuple[list[str], list[str]]:
    """Return the paths, or the files of a directory of Hugging Face; then files of row numbers."""
    if split is not None:
        from forebay._formats.splits import split_files

        chosen = split_files(paths, split)
        return chosen.paths, chosen.indices
    # One question for one path; many files on shared storage would take minutes.
    if len(paths) != 1 or format not in (None, "arrow", "parquet"):
        return paths, []
    from forebay._formats.huggingface_directory import data_files

    found = data_files(paths[0])
    return (paths, []) if found is None else (found.paths, found.indices)


def _row_numbers(paths: list[str], rows: int) -> Any:
    """Return the row numbers that files of the library datasets hold, each below ``rows``."""
    import numpy as np

    indices = Dataset(paths, fields=["indices"], sample_axis="auto", format="arrow")
    numbers = indices.read(range(len(indices)))["indices"]
    where = f"{', '.join(paths)}: row numbers of datasets"
    if len(beyond := numbers[numbers >= rows]):
        raise FormatError(
            f"{where}: expected numbers below {rows}, the rows of the data files; found {beyond[0]}\n"
            "hint: copy the directory again: its data files are others than those of the row numbers"
        )
    found, counts = np.unique(numbers, return_counts=True)
    if len(found) < len(numbers):
        raise FormatError(
            f"{where}: expected each row once, found {found[counts > 1][0]} more than once\n"
            "hint: flatten_indices() before save_to_disk() writes repeated rows as rows"
        )
    return numbers.astype(np.int64)


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
    if not names:
        raise option_error("forebay.open: fields= names no field", "leave it out for all fields")
    for name in names:
        _check_text("fields", name)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise option_error(f"forebay.open: fields= names {twice!r} twice")
    return names


class Dataset:
    """Hold the samples of container files; :func:`forebay.open` makes one.

    ``len(dataset)`` is the number of samples. ``dataset[i]`` reads one of them: a dict of field
    name to value, or bytes where samples are opaque records, which have no field names in the file
    (schema ``raw``). :meth:`read` reads several together, and a :class:`forebay.Loader` reads all
    of them fast.

    Parameters
    ----------
    paths : list of str
        Shards, in order.
    options
        As :func:`forebay.open` resolves them.
    """

    __slots__ = ("_ids", "_native", "_opened_paths", "_options")

    def __init__(self, paths: list[str], **options: Any) -> None:
        self._options = options
        self._ids: Ids | None = None
        # A directory may list its shards, which are opened by that list again.
        self._opened_paths = paths
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

    def native_of(self, module: ModuleType) -> _native.Dataset:
        """Return the Rust object; the files are opened again for another native module."""
        if type(self._native) is module.Dataset:
            return self._native
        whole: _native.Dataset = module.Dataset(self._opened_paths, **self._options)
        return whole if self._ids is None else whole.select(self._ids)

    @property
    def format(self) -> str:
        """Name of the container format, for example ``lmdb``."""
        return self._native.format

    @property
    def paths(self) -> list[str]:
        """Paths of the shards, in order."""
        return self._native.paths

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes in the order of their labels; None where the files name none.

        A folder names the directories of its classes. Hugging Face's ``dataset_info.json`` beside
        the files names those of its ``ClassLabel``, if there is exactly one.
        """
        from forebay._formats.huggingface_directory import class_names

        return self._native.classes() or class_names(self.paths)

    @property
    def fingerprint(self) -> str:
        """String that identifies the dataset; a state or sidecar is valid for one fingerprint.

        It changes when the files, the sub-database or the schema change.
        """
        return self._native.fingerprint

    @property
    def decoders(self) -> dict[str, Any]:
        """Field name → decoder, as the engine reads it; empty without ``decode=``."""
        return dict(self._options.get("decode", {}))

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...] | None]]:
        """Field name → (numpy dtype name, shape of one sample), after ``decode=``.

        The shape is None where the length varies; dtype ``object`` stands for Python objects.
        """
        return {name: (dtype, shape) for name, dtype, shape in self._native.fields()}

    @property
    def ids(self) -> Ids | None:
        """Of a selection, the ids of its samples among all samples of the files; shape (samples,).

        None where all samples are selected. The array is read-only.
        """
        return self._ids

    def select(self, ids: Any) -> Self:
        """Return the dataset of some of these samples.

        Sample *i* of it is sample ``ids[i]`` of this one. Where the ids ascend, neighbours stay
        neighbours, and reads of them are joined.

        Parameters
        ----------
        ids : array_like of int, shape (n,), or of bool, shape (samples,)
            Ids, in any order, each once; or a mask.

        Returns
        -------
        Dataset
            A dataset of the same files, with another fingerprint.

        Raises
        ------
        OptionError
            If ``ids`` are neither, select nothing, or name a sample twice.
        IndexError
            If there is no such sample.
        """
        chosen = checked_ids(ids, len(self))
        selected = type(self).__new__(type(self))
        selected._options, selected._opened_paths = self._options, self._opened_paths
        selected._native = self._native.select(chosen)
        selected._ids = chosen if self._ids is None else self._ids[chosen]
        selected._ids.flags.writeable = False
        return selected

    def split(self, parts: Sequence[float], *, seed: int = 0) -> list[Self]:
        """Share out the samples at random among datasets.

        Parameters
        ----------
        parts : sequence of float, or of int
            The size of each part: fractions with a sum of at most 1, or numbers of samples.
        seed : int, optional
            Decides which samples a part gets. Default 0.

        Returns
        -------
        list of Dataset
            A selection for each part (:meth:`select`), in the order of the files. No sample is in
            two of them.

        Raises
        ------
        OptionError
            If the parts are larger than the dataset, or one would have no sample.
        """
        return [self.select(ids) for ids in split_ids(parts, len(self), seed)]

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
            return self.__getitems__(range(*self._bounds(index)))
        sample = self._native.sample(self._number(index))
        if len(sample) == 1 and isinstance(data := sample.get("data"), bytes) and self._native.are_records():
            return data
        return sample

    def __getitems__(self, ids: SomeIds) -> list[Any]:
        """Return several samples, read together: the list ``[dataset[i] for i in ids]``.

        A torch ``DataLoader`` calls it for each batch.

        Parameters
        ----------
        ids : sequence or array of int, shape (samples,)
            As :meth:`read` takes them.

        Raises
        ------
        IndexError, OptionError, FormatError, StorageError
            As :meth:`read` raises them.
        """
        return self._native.samples(sample_ids(ids, len(self), self._brief))

    def read(self, ids: SomeIds, *, threads: int | None = None, ragged: bool = False) -> Batch:
        """Read several samples together.

        Neighbouring samples are one read, each byte is read once and each chunk is decoded once,
        also where ids repeat. The files stay open. The interpreter lock is released meanwhile, and
        Ctrl-C ends the call between two reads. With ``decode=``, fields are decoded in the same
        threads, with the random numbers of seed 0 and epoch 0.

        Parameters
        ----------
        ids : sequence or array of int, shape (samples,)
            Sample ids in any order. They may repeat, and negative ones count from the end.
        threads : int, optional
            Threads that read and decode. Default: one, and more for many bytes, for images that
            are decoded, or for storage of other nodes.
        ragged : bool, optional
            Whether a field whose length varies is a :class:`forebay.Ragged` of values and offsets
            instead of a list of arrays.

        Returns
        -------
        Batch
            As a loader delivers it: field name → array of shape ``(samples, *field_shape)``, or a
            list of one array per sample. ``indices`` are the ids, counted from 0, and ``position``
            is None. The arrays own their memory.

        Raises
        ------
        IndexError
            If there is no such sample.
        OptionError
            If the ids are not integers in one axis (also a :class:`TypeError`), or ``threads`` is
            not at least 1.
        FormatError
            If a sample cannot be decoded or has a wrong checksum.
        StorageError
            If a sample cannot be read, or a file was replaced since it was opened.
        """
        if threads is not None and (
            isinstance(threads, bool) or not hasattr(threads, "__index__") or operator.index(threads) < 1
        ):
            raise option_error(f"Dataset.read: expected threads= of at least 1, found {threads!r}")
        numbers = sample_ids(ids, len(self), self._brief)
        values = self._native.read(numbers, threads=threads, ragged=ragged)
        if ragged:
            from forebay._samples.collate import Ragged

            values = {
                name: Ragged(*value) if isinstance(value, tuple) else value for name, value in values.items()
            }
        from forebay._iteration import Batch

        batch = Batch(values)
        batch.indices = numbers
        batch.position = None  # type: ignore[assignment]  # no batch of a loader
        return batch

    def _bounds(self, index: slice) -> tuple[int, int, int]:
        try:
            return index.indices(len(self))
        except (TypeError, ValueError) as error:
            raise index_error(f"{self._brief}: {error}", "as in dataset[0:3]") from None

    def _number(self, index: object) -> int:
        """Return the sample id of an index, which may be negative."""
        if isinstance(index, str):
            raise index_error(
                f"{self._brief}: expected the number of a sample, found {index!r}",
                f"dataset[0][{index!r}] is a field of one sample, batch[{index!r}] of a batch of forebay.Loader; "
                "forebay.open(..., fields=[...]) chooses fields",
            )
        try:
            number = operator.index(index)  # type: ignore[arg-type]
        except TypeError:
            raise index_error(
                f"{self._brief}: expected the number of a sample, or a slice; found {index!r}",
                "several samples by number: dataset.read(numbers)",
            ) from None
        samples = len(self)
        if not -samples <= number < samples:
            raise IndexError(f"sample {number} of a dataset of {samples} samples")
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

    @property
    def _brief(self) -> str:
        """What it is, for errors."""
        return f"<forebay.{type(self).__name__} {self.format} {self._source}>"

    @property
    def _source(self) -> str:
        """The files, in short."""
        paths = self.paths
        return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"

    def __repr__(self) -> str:
        """Return what it is; with its length and fields, once the index is loaded."""
        shown = f"forebay.{type(self).__name__} {self.format} {self._source}"
        if not self._native.is_loaded():
            return f"<{shown}>"
        selected = "" if self._ids is None else " selected"
        return f"<{shown}: {counted(len(self), 'sample')}{selected}, {fields_text(self.fields)}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks; with its length and fields, once the index is loaded."""
        is_loaded = self._native.is_loaded()
        rows = [("files", self._source)]
        if is_loaded:
            rows.append(("samples", f"{len(self):,}" + ("" if self._ids is None else " selected")))
        return table(f"forebay.{type(self).__name__} {self.format}", rows, self.fields if is_loaded else {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the paths and options, so that a spawned process opens the files again."""
        return _reopen, (type(self), self._opened_paths, self._options, self._ids)


def _reopen(kind: type[Dataset], paths: list[str], options: dict[str, Any], ids: Ids | None) -> Dataset:
    whole = kind(paths, **options)
    return whole if ids is None else whole.select(ids)
