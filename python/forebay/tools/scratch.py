"""Temporary directories that go whatever happens, with what is mounted in them.

One is locked as long as its maker lives. Who comes next removes those that nobody holds any more:
their makers were killed. Only directories that are this user's alone and bear our marker are taken
for such; no link is followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from forebay._core import StorageError
from forebay.tools import pfs
from forebay.tools.ranks import launch

__all__ = ["MOUNTS", "remove_leftovers", "scratch"]

MOUNTS = "node"
"""Begins the names of directories inside that are there to be mounted on."""

_MARKER = ".forebay-scratch"


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """Make a temporary directory; at the end what is mounted below it is unmounted, and it is removed.

    Raises
    ------
    StorageError
        If something could not be unmounted; what it shows stays.
    """
    with contextlib.ExitStack() as stack:
        with launch.held_interrupts():
            directory = Path(os.path.realpath(tempfile.mkdtemp(prefix=prefix)))
            held: list[int] = []
            stack.callback(_end, directory, held)
            _lock(directory, held)
        yield directory


def _lock(directory: Path, held: list[int]) -> None:
    """Lock a directory with its marker, which has its name only when it is locked."""
    new = directory / f"{_MARKER}.new"
    held.append(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode=0o600))
    try:
        fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # No locks here: without a marker the directory is nobody's leftover.
        return
    new.rename(directory / _MARKER)


def _end(directory: Path, held: list[int]) -> None:
    try:
        _remove(directory)
    finally:
        for descriptor in held:
            os.close(descriptor)


def remove_leftovers(prefix: str) -> None:
    """Remove directories of this user that were made with this prefix by processes which were killed."""
    for directory in Path(os.path.realpath(tempfile.gettempdir())).glob(f"{prefix}*"):
        # What another one removes at the same time, or is still in use, hurts nobody.
        with contextlib.suppress(OSError, StorageError):
            found = directory.lstat()
            # As mkdtemp makes them: nobody else can have put anything there.
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                continue
            marker = os.open(directory / _MARKER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(directory)
            finally:
                os.close(marker)


def _remove(directory: Path) -> None:
    """Unmount and remove.

    No directory is removed together with what is in it where that might be a mount: a mount that
    could not be taken away is an error, and the data behind it stays. Anything else that cannot be
    removed is left; the marker goes last.
    """
    with launch.held_interrupts():
        inside = sorted(directory.iterdir())
        for point in (one for one in inside if one.name.startswith(MOUNTS)):
            found = pfs.find(point)
            if found is not None and found.mount == point:
                pfs.unmount(point)
            point.rmdir()
        for one in inside:
            if one.name.startswith((MOUNTS, _MARKER)):
                continue
            if one.is_dir() and not one.is_symlink():
                shutil.rmtree(one, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    one.unlink()
        left = list(directory.iterdir())
        if all(one.name.startswith(_MARKER) for one in left):
            for one in left:
                one.unlink()
            with contextlib.suppress(OSError):
                directory.rmdir()
