"""Datasets of files that a table lists, with labels: a manifest.

A manifest is a table of text (CSV, TSV), JSON in lines, or Parquet. One column names the files,
below a folder; the others are fields. :func:`find` reads it once, before an index is built, and
tells the engine paths and labels in the order of the rows (``container/folder/manifest.rs``
describes the bytes). From then on only the files are read.
"""

from __future__ import annotations

import csv
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from forebay._core import FormatError, StorageError, option_error
from forebay._paths import PathLike, missing
from forebay.dataset import Dataset, _names
from forebay.decode import Decoder, decoders_of

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ManifestDataset", "find", "manifest"]

# Names of the column of files, in small letters.
_FILES: Final = (
    *("file_name", "filename", "file", "path", "filepath", "file_path", "image", "image_path", "image_file"),
    *("img_path", "img"),
)
_INTEGER: Final = re.compile(r"-?(0|[1-9]\d{0,18})")
# A number with zeros in front is rather an id.
_FLOAT: Final = re.compile(
    r"[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)(e[-+]?\d+)?|nan|[-+]?inf(inity)?", re.IGNORECASE
)
_DATA: Final = "data"


def manifest(
    path: PathLike,
    *,
    root: PathLike | None = None,
    file: str | None = None,
    suffix: str = "",
    classes: str | Sequence[str] = (),
    fields: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    follow_symlinks: bool = False,
    decode: Mapping[str, Decoder | str] | None = None,
) -> ManifestDataset:
    """Open the files that a table lists, with the values of its other columns.

    Samples are in the order of the rows. ``data`` is the bytes of the file. Columns of integers are
    int64, of other numbers float64; integers with empty cells are float64 as well, with NaN. Any
    other column is the bytes of its strings (``decode={"caption": "text"}`` makes ``str`` of them).

    Parameters
    ----------
    path : path-like
        A table of text with a header (CSV, TSV), JSON in lines, or Parquet.
    root : path-like, optional
        The folder that the files are below. Default: the directory of the table.
    file : str, optional
        The column that names the files. Default: the one called ``file_name``, ``filename``,
        ``file``, ``path``, ``image`` or the like.
    suffix : str, optional
        Added to each name, for example ``".jpg"`` where the column has ids. Default: nothing.
    classes : str or sequence of str, optional
        Columns whose values become class numbers (int64), in the order of the sorted values
        (:meth:`ManifestDataset.classes_of`). Default: none.
    fields : sequence of str, optional
        The fields to deliver, in this order: ``data`` and columns. Default: ``data`` and all
        columns but that of the files.
    columns : sequence of str, optional
        Names of the columns of a table of text without a header.
    delimiter : str, optional
        What is between the cells of a table of text. Default: a tabulator or a comma, by the first
        line; a blank where ``columns`` is given and there is neither.
    follow_symlinks : bool, optional
        Whether symbolic links are followed, wherever they lead. Default False: they are an error.
    decode : mapping, optional
        As for :func:`forebay.open`, by the names of fields.

    Returns
    -------
    ManifestDataset
        The dataset. The table is read when the index is built.

    Raises
    ------
    StorageError
        If the table or the folder cannot be read, or a file is missing; the message names the line.
    FormatError
        If the table is damaged, or a line names no file below the folder.
    OptionError
        If a column does not exist, or an argument is wrong.
    """
    table = Path(path)
    if isinstance(classes, str):
        classes = [classes]
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
        raise option_error(f"forebay.manifest: delimiter=: expected one character, found {delimiter!r}")
    reading = {
        "file": file,
        "suffix": suffix,
        "classes": list(classes),
        "columns": None if columns is None else list(columns),
        "delimiter": delimiter,
    }
    folder = str(table.parent if root is None else Path(root))
    if (error := missing([str(table), folder])) is not None:
        raise error
    options: dict[str, Any] = {"manifest": (str(table), json.dumps(reading)), "format": "folder"}
    if follow_symlinks:
        options["follow_symlinks"] = True
    if decoders := decoders_of(decode):
        options["decode"] = decoders
    return ManifestDataset([folder], fields=_names(fields), **options)


class ManifestDataset(Dataset):
    """Hold the files that a table lists; :func:`forebay.manifest` makes one."""

    __slots__ = ()

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes of the one column of ``classes=``, in the order of their numbers.

        None with no such column, or several (:meth:`classes_of`).
        """
        columns = json.loads(self._options["manifest"][1])["classes"]
        return list(map(str, self.classes_of(columns[0]))) if len(columns) == 1 else None

    def classes_of(self, column: str) -> list[Any]:
        """Return the values of a column of ``classes=`` in the order of their class numbers."""
        path, reading = self._options["manifest"]
        return _Table(Path(path), json.loads(reading)).numbered(column)[0]


def find(path: str, root: str, reading: str, fields: list[str]) -> bytes:
    """Read a manifest.

    Parameters
    ----------
    path : str
        The table.
    root : str
        The folder that its files are below.
    reading : str
        The arguments of :func:`manifest` in JSON.
    fields : list of str
        The fields to deliver; none: all.

    Returns
    -------
    bytes
        What the engine reads of it.
    """
    table = _Table(Path(path), json.loads(reading))
    names = fields
    if not fields:
        names = [name for name in table.names if name != table.file]
        if _DATA in names:
            raise option_error(
                f"{path}: a column is called {_DATA!r}, as the field of the files is",
                "rename it, or choose other columns with fields=",
            )
        names = [_DATA, *names]
    labels = [name for name in names if name != _DATA]
    warnings = []
    if table.left_out and not fields:
        warnings.append(f"{path}: columns of lists or objects are left out: {', '.join(table.left_out)}")
    paths = list(table.paths(root))
    if repeated := _repeated(paths):
        warnings.append(
            f"{path}: {len(repeated)} files are listed more than once, the first, {paths[repeated[0]]}, again in line "
            f"{table.lines[repeated[0]]}"
        )
    described, coded = [], []
    for name in labels:
        kind, bytes_of = table.coded(name)
        described.append({"name": name, "kind": kind})
        coded.append(bytes_of)
    place = names.index(_DATA) if _DATA in names else None
    header = {"rows": len(paths), "data": place, "columns": described, "warnings": warnings}
    text = json.dumps(header).encode()
    lines = np.array(table.lines, "<u8").tobytes()
    return b"".join([struct.pack("<Q", len(text)), text, lines, _texts(map(os.fsencode, paths)), *coded])


def _repeated(paths: Sequence[str]) -> list[int]:
    """Return the rows whose file an earlier row has."""
    seen: set[str] = set()
    return [row for row, path in enumerate(paths) if path in seen or seen.add(path)]  # type: ignore[func-returns-value]


def _texts(texts: Iterable[bytes]) -> bytes:
    """Code strings: the end of each, and all bytes."""
    found = list(texts)
    return np.cumsum([len(text) for text in found], dtype="<u8").tobytes() + b"".join(found)


class _Table:
    """A table: the names of its columns, their values, and the line of each row."""

    def __init__(self, path: Path, reading: dict[str, Any]) -> None:
        self.path, self.reading = path, reading
        self.left_out: list[str] = []
        self.lines: list[int] = []
        self.values: dict[str, list[Any]] = {}
        self._read()
        self.names = list(self.values)
        self.file = self._file_column()
        for name in reading["classes"]:
            self._column(name)

    def _read(self) -> None:
        try:
            with self.path.open("rb") as opened:
                head = opened.read(4096)
            if head.startswith(b"PAR1"):
                self._read_parquet()
            elif head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
                self._read_json()
            else:
                self._read_text(head)
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{self.path}: text at offset {error.start}: expected UTF-8, found byte {error.object[error.start]:#04x}\n"
                "hint: iconv -t UTF-8 rewrites it"
            ) from error
        except OSError as error:
            raise StorageError(
                f"{self.path}: cannot be read: {error}", errno=error.errno, filename=self.path
            ) from error

    def _read_text(self, head: bytes) -> None:
        first = head.decode("utf-8", "replace").partition("\n")[0]
        names = self.reading["columns"]
        marks = ["\t", ",", " "] if names else ["\t", ","]
        delimiter = self.reading["delimiter"] or next((mark for mark in marks if mark in first), ",")
        with self.path.open(encoding="utf-8-sig", newline="") as opened:
            rows = csv.reader(opened, delimiter=delimiter, strict=True, skipinitialspace=delimiter == " ")
            try:
                self._take_rows(rows, names)
            except csv.Error as error:
                raise self._damaged(rows.line_num, "a row", str(error)) from error

    def _take_rows(self, rows: Any, names: list[str] | None) -> None:
        found = list(names) if names else [name.strip() for name in next(rows, [])]
        if len(set(found)) < len(found) or not all(found):
            raise self._damaged(1, "a name for each column, none twice", repr(found))
        columns: list[list[str]] = [[] for _ in found]
        before = rows.line_num
        for row in rows:
            if row:
                if len(row) != len(found):
                    raise self._damaged(
                        before + 1, f"{len(found)} cells: {', '.join(found)}", f"{len(row)} cells"
                    )
                for column, cell in zip(columns, row, strict=True):
                    column.append(cell)
                self.lines.append(before + 1)
            before = rows.line_num
        self.values = {name: _typed(column) for name, column in zip(found, columns, strict=True)}

    def _read_json(self) -> None:
        rows: list[dict[str, Any]] = []
        with self.path.open(encoding="utf-8-sig") as opened:
            for line, text in enumerate(opened, 1):
                if not text.strip():
                    continue
                try:
                    row = json.loads(text)
                except ValueError as error:
                    raise self._damaged(line, "an object of JSON", str(error)) from error
                if not isinstance(row, dict):
                    raise self._damaged(line, "an object of JSON", type(row).__name__)
                rows.append(row)
                self.lines.append(line)
        names = dict.fromkeys(name for row in rows for name in row)
        self._take_columns({name: [row.get(name) for row in rows] for name in names})

    def _read_parquet(self) -> None:
        import pyarrow.parquet as pq

        table: pyarrow.Table = pq.read_table(self.path)
        self.lines = list(range(1, len(table) + 1))
        self._take_columns({name: table.column(name).to_pylist() for name in table.column_names})

    def _take_columns(self, columns: dict[str, list[Any]]) -> None:
        """Take columns of objects of Python; what is neither number nor text is left out."""
        for name, column in columns.items():
            kinds = {type(value) for value in column} - {type(None)}
            if kinds <= {bool, int}:
                # As in a table of text: what is missing is NaN.
                self.values[name] = [float("nan") if value is None else int(value) for value in column]
            elif kinds <= {bool, int, float}:
                self.values[name] = [float("nan") if value is None else float(value) for value in column]
            elif kinds == {str}:
                self.values[name] = ["" if value is None else value for value in column]
            else:
                self.left_out.append(name)

    def _damaged(self, line: int, expected: str, found: str) -> FormatError:
        return FormatError(f"{self.path}: line {line}: expected {expected}, found {found}")

    def _file_column(self) -> str:
        if (file := self.reading["file"]) is not None:
            self._column(file)
            return str(file)
        known = {name.lower(): name for name in reversed(self.names)}
        for name in _FILES:
            if name in known:
                return known[name]
        raise option_error(
            f"{self.path}: no column is known to name files; the columns: {', '.join(self.names)}",
            "file= names it; columns= names those of a table without a header",
        )

    def _column(self, name: str) -> list[Any]:
        if name not in self.values:
            what = "holds lists or objects" if name in self.left_out else "does not exist"
            raise option_error(
                f"{self.path}: column {name!r} {what}; the columns: {', '.join(self.names or self.values)}"
            )
        return self.values[name]

    def paths(self, root: str) -> Iterator[str]:
        """Yield the files, from the folder on."""
        top = os.path.realpath(root)
        for line, value in zip(self.lines, self.values[self.file], strict=True):
            text = f"{value}{self.reading['suffix']}"
            path = os.path.normpath(text)
            if Path(path).is_absolute():
                path = os.path.relpath(
                    path, root if path.startswith(str(Path(root).absolute()) + os.sep) else top
                )
            if (
                value == ""
                or "\0" in path
                or path in (os.curdir, os.pardir)
                or path.startswith(os.pardir + os.sep)
            ):
                raise FormatError(
                    f"{self.path}: line {line}: expected a file below {root}, found {text!r}\n"
                    "hint: root= is the folder that all files are below"
                )
            yield path

    def numbered(self, name: str) -> tuple[list[Any], list[int]]:
        """Return the sorted values of a column, and the place of each row's value among them."""
        column = self._column(name)
        for line, value in zip(self.lines, column, strict=True):
            if value == "" or value != value:
                raise self._damaged(line, f"a class in column {name!r}", "an empty cell")
        values = sorted(set(column))
        place = {value: number for number, value in enumerate(values)}
        return values, [place[value] for value in column]

    def coded(self, name: str) -> tuple[str, bytes]:
        """Return the kind of a column and its values as the engine reads them."""
        column = self.numbered(name)[1] if name in self.reading["classes"] else self._column(name)
        if all(isinstance(value, int) for value in column):
            try:
                return "integer", np.array(column, "<i8").tobytes()
            except OverflowError:
                raise option_error(f"{self.path}: column {name!r} holds integers beyond 64 bits") from None
        if all(isinstance(value, int | float) for value in column):
            return "float", np.array(column, "<f8").tobytes()
        return "text", _texts(str(value).encode() for value in column)


def _typed(column: list[str]) -> list[Any]:
    """Return the cells of a column as numbers, where all are: an empty one is NaN then."""
    cells = {cell for cell in column if cell}
    if not cells:
        return list(column)
    if all(map(_INTEGER.fullmatch, cells)):
        return [int(cell) if cell else float("nan") for cell in column]
    if all(map(_FLOAT.fullmatch, cells)):
        return [float(cell) if cell else float("nan") for cell in column]
    return list(column)
