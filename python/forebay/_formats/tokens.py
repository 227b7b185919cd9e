"""Datasets of tokens, whose samples are windows, and the documents that a window has."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from forebay._core import option_error
from forebay._paths import PathLike, expand
from forebay.dataset import Dataset, warn_of_repeated

__all__ = ["TokenDataset", "tokens"]

_DTYPES: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# An index of Megatron-LM: magic, version, code of the type, numbers of sequences and bounds.
_HEADER: Final = np.dtype([("magic", "S9"), ("version", "<u8"), ("code", "u1"), ("counts", "<u8", 2)])


def tokens(
    path: PathLike | Sequence[PathLike],
    window: int,
    *,
    dtype: npt.DTypeLike | None = None,
    stride: int | None = None,
    documents: Literal["ignore", "cut"] = "ignore",
    header_bytes: int | None = None,
    vocabulary: int | None = None,
    field: str = "tokens",
) -> TokenDataset:
    """Open files of tokens, of which a sample is a window of consecutive tokens.

    Files are npy arrays of one axis, files of nothing but tokens, those of llm.c, or pairs of
    Megatron-LM, of which ``path`` names the ``.bin`` and the ``.idx`` lies beside it. A directory
    that LitData wrote for ``TokensLoader`` stands for its chunks. A file that begins like another
    format is refused (docs/formats/tokens.md).

    Parameters
    ----------
    path : path-like or sequence of path-like
        As for :func:`forebay.open`.
    window : int
        Tokens of a sample. For next-token prediction, the context and one more.
    dtype : dtype-like, optional
        Type of the tokens: integers in the byte order of the machine. Required where files do not
        say it; otherwise it must be theirs.
    stride : int, optional
        Tokens from the start of a window to that of the next one; with fewer than ``window``,
        windows overlap. Default: ``window``.
    documents : {"ignore", "cut"}, optional
        What the bounds of documents do. ``ignore``: windows go across them
        (:meth:`TokenDataset.document_ids`). ``cut``: a window ends with its document, so windows
        have different lengths. Default ``ignore``.
    header_bytes : int, optional
        Bytes before the first token of a file that is tokens alone after them. The file is taken as
        that, whatever it begins with. Default: as the file says.
    vocabulary : int, optional
        Number of ids. A token that is not from 0 to below it raises a :class:`FormatError` with
        file and offset when it is read. Default: any id is taken.
    field : str, optional
        Name of the field. Default ``"tokens"``.

    Returns
    -------
    TokenDataset
        The dataset. Tokens at the end of a file that fill no window are left out, with a warning
        when the index is built.

    Raises
    ------
    StorageError
        If a path does not exist or cannot be read.
    FormatError
        If the contents are not what the format says, or no file has a window of tokens.
    OptionError
        If an argument is wrong.
    """
    stride = window if stride is None else stride
    for name, value in (("window", window), ("stride", stride)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value < 1 << 40:
            raise option_error(
                f"forebay.tokens: {name}=: expected a number of tokens, from 1 to 2**40 - 1, found {value!r}"
            )
    _check_count("header_bytes", header_bytes, 0)
    _check_count("vocabulary", vocabulary, 1)
    if documents not in ("ignore", "cut"):
        raise option_error(f'forebay.tokens: documents=: expected "ignore" or "cut", found {documents!r}')
    if not isinstance(field, str) or not field:
        raise option_error(f"forebay.tokens: field=: expected a name, found {field!r}")
    layout = {
        "dtype": None if dtype is None else _dtype(dtype),
        "window": int(window),
        "stride": int(stride),
        "documents": documents,
        "header_bytes": None if header_bytes is None else int(header_bytes),
        "vocabulary": None if vocabulary is None else int(vocabulary),
    }
    found = TokenDataset(expand(path), fields=[field], tokens=json.dumps(layout))
    warn_of_repeated(found)
    return found


def _check_count(name: str, value: object, least: int) -> None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 1 << 63
    ):
        raise option_error(
            f"forebay.tokens: {name}=: expected a number, at least {least}, found {value!r}",
            "vocabulary= is len(tokenizer)" if name == "vocabulary" else None,
        )


def _dtype(dtype: npt.DTypeLike) -> str:
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise option_error(f"forebay.tokens: dtype=: {error}") from None
    if found.name not in _DTYPES or not found.isnative:
        raise option_error(
            f"forebay.tokens: dtype=: expected integers in the byte order of this machine, found {found!r}"
        )
    return found.name


class TokenDataset(Dataset):
    """Hold windows of tokens; :func:`forebay.tokens` makes one."""

    __slots__ = ()

    def document_ids(self, indices: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Return, for each token of windows, the number of its document within the window.

        Tokens of the first document of a window have 0, those of the next one 1: attention masks
        and position ids that stop at documents follow from this.

        Parameters
        ----------
        indices : array_like of int, shape (n,)
            Sample ids, for example ``batch.indices``.

        Returns
        -------
        ndarray of int32, shape (n, window)
            Numbers of documents.

        Raises
        ------
        OptionError
            If the files do not say where documents begin, or windows end with their documents.
        IndexError
            If there is no such sample.
        """
        layout: dict[str, Any] = json.loads(self._options["tokens"])
        if layout["documents"] == "cut":
            raise option_error("document_ids: the windows were cut: each is of one document")
        ids = np.asarray(indices)
        found = np.empty((len(ids), layout["window"]), np.int32)
        for row, sample in enumerate(ids):
            path, offset, length = self.extents(sample)[0]
            ends = _document_ends(path, _changed_ns(path))
            item_bytes = length // layout["window"]
            places = np.arange(layout["window"]) + offset // item_bytes
            numbers = np.searchsorted(ends, places, side="right")
            found[row] = numbers - numbers[0]
        return found


def _changed_ns(path: str) -> int:
    """Return when the index of a pair was changed last; -1 where a file is alone."""
    file, index = Path(path), Path(path).with_suffix(".idx")
    if index == file or not index.is_file():
        return -1
    with file.open("rb") as opened:
        # An array may lie beside the index of something else.
        is_array = opened.read(6) == b"\x93NUMPY"
    return -1 if is_array else index.stat().st_mtime_ns


@functools.lru_cache(maxsize=64)
def _document_ends(path: str, changed_ns: int) -> npt.NDArray[np.int64]:
    """Return where the documents of a pair end [tokens]; the engine has checked its index."""
    index = Path(path).with_suffix(".idx")
    if changed_ns < 0:
        raise option_error(
            f"document_ids: {path}: the file does not say where documents begin",
            "pairs of Megatron-LM say it: x.bin with x.idx beside it",
        )
    header = np.fromfile(index, _HEADER, 1)[0]
    sequences, bounds = map(int, header["counts"])
    lengths = np.fromfile(index, "<i4", sequences, offset=_HEADER.itemsize)
    first = np.fromfile(index, "<i8", bounds, offset=_HEADER.itemsize + 12 * sequences)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    # Without those of empty documents, which no token is in.
    chosen: npt.NDArray[np.int64] = np.unique(ends[first[1:]])
    return chosen
