"""Paths of datasets: expand braces and patterns, and name missing paths with what is there.

A path is taken as it is if something has that very name. Else braces are expanded
(:mod:`forebay._braces`), and each result that holds ``*``, ``?`` or ``[`` stands for the sorted
names that match it. Beyond that nothing is looked at: whether a file is there is found out by
opening it, since one question per file takes minutes for many files on shared storage.
:func:`missing` makes the error when one is not.
"""

from __future__ import annotations

import errno
import glob
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from forebay._braces import braces
from forebay._core import OptionError, StorageError, option_error

__all__ = ["PathLike", "expand", "missing", "remote_scheme"]

PathLike = str | os.PathLike[str]

# What systems and writers of tables leave behind beside data: no pattern stands for it
# (``container/folder/foreign.rs`` has the same for folders).
LEFTOVER = re.compile(
    r"(_(success|metadata|common_metadata|temporary)|_(committed|started)_.*|e?h?thumbs\.db|desktop\.ini|__macosx"
    r"|lost\+found|\$recycle\.bin|system volume information|@eadir|.*\.crc)$",
    re.IGNORECASE,
)

# Names that a message lists.
MAX_NAMED = 8

# Entries of a directory that are looked at for a message.
MAX_ENTRIES = 10_000

# How much a name has to be like another to be taken for it.
_NEARLY = 0.6

# What to do with addresses of what is no file system, before what `forebay convert` does.
_WAYS = {
    "s3": "mount the bucket (mountpoint-s3, s3fs), copy it (aws s3 cp --recursive)",
    "gs": "mount the bucket (gcsfuse), copy it (gcloud storage cp --recursive)",
    "http": "download it (curl -O)",
    "hdfs": "mount it (its NFS gateway, fuse-dfs), copy it (hdfs dfs -get)",
    "hf": "download it (hf download --repo-type dataset --local-dir)",
    "az": "mount the container (blobfuse2), copy it (azcopy copy --recursive)",
    "oci": "mount the bucket (ocifs), copy it (oci os object bulk-download)",
}
# What no file system of fsspec reads, or what is one already.
_ONLY_WAYS = {
    "file": "give the path alone, without file://",
    "pipe": "run the command first, and keep what it prints in a file",
}
_SAME = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "https": "http",
    "ftp": "http",
    "ftps": "http",
    "webhdfs": "hdfs",
    "abfs": "az",
    "abfss": "az",
}
_ANY_WAY = "mount it as a directory, copy it"

# An address; of those that are known also as a Path writes it, with one slash.
_ADDRESS = re.compile(
    rf"([A-Za-z][A-Za-z0-9+.-]+)://|({'|'.join([*_WAYS, *_ONLY_WAYS, *_SAME])}):/|(pipe):", re.IGNORECASE
)


def expand(path: PathLike | Sequence[PathLike]) -> list[str]:
    """Return plain paths.

    Raises
    ------
    OptionError
        If something is no path, or stands for too many.
    StorageError
        If a pattern matches nothing.
    """
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
            raise option_error(f"forebay.open: expected a string or path, or a list of these; found {text!r}")
        if "\0" in text:
            raise option_error(f"forebay.open: expected a path, found {text!r} with a zero byte")
        address = _ADDRESS.match(text)
        is_plain = not address and "{" not in text and not glob.has_magic(text)
        if is_plain or os.path.lexists(text):
            found.append(text)
        elif address:
            raise _is_address(text, _scheme(address))
        else:
            found += itertools.chain.from_iterable(map(_matches, braces(text)))
    return found


def remote_scheme(path: PathLike) -> str | None:
    """Return the scheme of an address that fsspec may read; None of any other path."""
    text = os.fspath(path)
    address = _ADDRESS.match(text)
    if not address or os.path.lexists(text) or (scheme := _scheme(address)) == "pipe":
        return None
    return scheme


def _scheme(address: re.Match[str]) -> str:
    return str(next(filter(None, address.groups()))).lower()


def _is_address(text: str, scheme: str) -> OptionError:
    way = _ONLY_WAYS.get(scheme)
    if way is None:
        way = (
            f"{_WAYS.get(_SAME.get(scheme, scheme), _ANY_WAY)}, or rewrite it: forebay convert {text} TARGET"
        )
    return option_error(
        f"forebay.open: {text} is not a path: expected files of a file system, found an address of {scheme}",
        way,
    )


def _matches(text: str) -> list[str]:
    """Return the sorted matches of a pattern; any other text, or an existing name, as it is."""
    if not glob.has_magic(text) or os.path.lexists(text):
        return [text]
    matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if glob.has_magic(last := Path(text).name) and not LEFTOVER.match(last):
        matches = [path for path in matches if not LEFTOVER.match(Path(path).name)]
    if not matches:
        # What stands before the first wildcard is a directory that may not be there.
        fixed = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), Path(text).parts))
        around, _ = _surroundings(fixed / "*")
        raise StorageError(
            f"forebay.open: no file matches the pattern {text} ({around})", errno=errno.ENOENT, filename=text
        )
    return matches


def missing(paths: Sequence[str]) -> StorageError | None:
    """Return the error that names missing paths, or None if none is known to be missing."""
    gone = [path for path in paths if _is_gone(path)]
    if not gone:
        return None
    first = Path(gone[0])
    around, hint = _surroundings(first)
    if len(gone) > 1:
        told = ", ".join(gone[:MAX_NAMED]) + (", ..." if len(gone) > MAX_NAMED else "")
        text = f"{len(gone)} of {len(paths)} paths do not exist: {told}"
    elif first.is_symlink():
        text = f"{first} is a symbolic link to {first.readlink()}, which does not exist"
    else:
        text = f"{first} does not exist"
    if "{" in gone[0] and not hint:
        hint = (
            "braces stand for paths as in shards-{0000..0131}.tar and {train,val}.h5; any others are part of the name, "
            "and so are those after a backslash"
        )
    message = f"forebay.open: {text} ({around})" + (f"\nhint: {hint}" if hint else "")
    return StorageError(message, errno=errno.ENOENT, filename=gone[0])


def _is_gone(path: str) -> bool:
    try:
        Path(path).stat()
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)
    return False


def _working_directory() -> str:
    try:
        return f" {Path.cwd()}"
    except OSError:  # it was removed
        return ""


def _surroundings(path: Path) -> tuple[str, str]:
    """Name the nearest existing directory of a missing path, what it holds, and a similar name."""
    missing_part, above = path.name, path.parent
    while _is_gone(str(above)):
        missing_part, above = above.name, above.parent
    shown = f"the directory {above}" if above != Path() else f"the working directory{_working_directory()}"
    if not above.is_dir():
        return f"{above} is a file, not a directory", ""
    try:
        with os.scandir(above) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, MAX_ENTRIES))
    except OSError as error:
        return f"{shown} exists; its entries cannot be listed: {error.strerror}", ""
    if not names:
        return f"{shown} exists and is empty", ""
    import difflib

    near = difflib.get_close_matches(missing_part, names, MAX_NAMED, _NEARLY)
    told = [*near, *(name for name in names if name not in near and not name.startswith("."))][:MAX_NAMED]
    more = len(names) - len(told)
    listed = ", ".join(told) if told else "hidden entries only"
    if told and more:
        listed += f" and {'at least ' if len(names) == MAX_ENTRIES else ''}{more} more"
    return f"{shown} exists and holds {listed}", f"is {above / near[0]} meant?" if near else ""
