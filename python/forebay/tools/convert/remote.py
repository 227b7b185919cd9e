"""Copies of remote objects for ``forebay convert``: addresses such as ``s3://`` become local files.

Forebay reads at offsets of files, so the objects are copied to a temporary directory first, as a
whole, and converted from there. fsspec copies them. The objects of one address keep their names and
their places below it, so that a directory with a list of shards stays one.
"""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from forebay._braces import braces
from forebay._core import StorageError, option_error
from forebay._paths import remote_scheme

if TYPE_CHECKING:
    from forebay.tools.convert.source import Progress

__all__ = ["local_copies"]

_CACHE = "FOREBAY_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class _Object:
    """A remote object, and where its copy goes."""

    files: Any
    path: str
    bytes: int
    copy: Path


@contextlib.contextmanager
def local_copies(
    paths: Sequence[str], most_bytes: int, directory: Path | None, progress: Progress
) -> Iterator[tuple[str, ...]]:
    """Yield the paths with copies in place of addresses, which are removed at the end.

    Parameters
    ----------
    paths : sequence of str
        Paths and addresses.
    most_bytes : int
        Most bytes that are copied.
    directory : Path or None
        Where the copies go. None: the directory for temporary files.
    progress : function
        Told ("bytes", done, all).

    Raises
    ------
    OptionError
        If the objects are larger than that, or fsspec or the library of the scheme is missing.
    StorageError
        If an address has no object, or one cannot be copied.
    """
    if not any(remote_scheme(path) for path in paths):
        yield tuple(paths)
        return
    with tempfile.TemporaryDirectory(prefix="forebay-convert-", dir=directory) as made:
        place = Path(made)
        found: list[str] = []
        objects: list[_Object] = []
        for number, path in enumerate(paths):
            if remote_scheme(path) is None:
                found.append(path)
                continue
            new, given = _objects(path, place / str(number))
            objects += new
            # Names of objects are no patterns.
            found += [str(copy) for copy in given]
        total = sum(one.bytes for one in objects)
        if total > most_bytes:
            raise option_error(
                f"forebay convert: {paths[0]}: {len(objects)} objects of {total} bytes are to be copied "
                f"(expected at most {most_bytes} bytes)",
                "--copy-at-most allows more; the copies need as much space until the command ends",
            )
        done = 0
        for one in objects:
            progress("bytes", done, total)
            _copy(one)
            done += one.bytes
        with _cache_in(place / "cache"):
            yield tuple(found)


@contextlib.contextmanager
def _cache_in(directory: Path) -> Iterator[None]:
    """Keep the sidecars of the copies beside them, so that they are removed as well."""
    before = os.environ.get(_CACHE)
    os.environ[_CACHE] = str(directory)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CACHE]
        else:
            os.environ[_CACHE] = before


def _objects(address: str, place: Path) -> tuple[list[_Object], list[Path]]:
    """Return the objects of an address, and the paths that stand for it once they are copied."""
    objects: list[_Object] = []
    given: list[Path] = []
    try:
        from fsspec.core import url_to_fs

        for plain in braces(address):
            files, root = url_to_fs(plain)
            matches = sorted(files.glob(root)) if glob.has_magic(root) else [root]
            for match in matches:
                base = place / str(len(given))
                new = list(_below(files, match, base))
                given.append(base / PurePosixPath(match).name)
                objects += new
    except ImportError as error:
        raise option_error(
            f"forebay convert: {address}: {error}",
            "pip install 'forebay[remote]', and the library of the storage for fsspec: s3fs for s3://, gcsfs for gs://",
        ) from None
    except FileNotFoundError:
        objects = []
    except Exception as error:  # each file system of fsspec has errors of its own
        raise StorageError(f"forebay convert: {address}: cannot be listed: {error}") from error
    if not objects:
        raise StorageError(f"forebay convert: {address}: no object has this address")
    return objects, given


def _below(files: Any, path: str, base: Path) -> Iterator[_Object]:
    """Iterate the objects of a path: itself, or all below it."""
    target = base / PurePosixPath(path).name
    if not files.isdir(path):
        yield _Object(files, path, _bytes(files.info(path)), target)
        return
    for name, facts in files.find(path, detail=True).items():
        parts = PurePosixPath(name).relative_to(PurePosixPath(path)).parts
        if ".." in parts:
            raise StorageError(f"forebay convert: {name}: an object outside of {path}")
        yield _Object(files, name, _bytes(facts), target.joinpath(*parts))


def _bytes(facts: dict[str, Any]) -> int:
    return int(facts.get("size") or 0)


def _copy(one: _Object) -> None:
    """Copy an object, and compare its size."""
    one.copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        one.files.get_file(one.path, str(one.copy))
        found = one.copy.stat().st_size
    except Exception as error:  # each file system of fsspec has errors of its own
        raise StorageError(f"forebay convert: {one.path}: cannot be copied: {error}") from error
    if one.bytes not in (0, found):
        raise StorageError(
            f"forebay convert: {one.path}: copied a part of it (expected {one.bytes} bytes, found {found})"
        )
