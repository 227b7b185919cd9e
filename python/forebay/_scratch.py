"""Temporary directories that go whatever happens, with what is mounted in them.

One is locked as long as its maker lives. Who comes next removes those that nobody holds any more: their makers were killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from forebay import launch, pfs
from forebay._core import StorageError

__all__ = ["remove_leftovers", "scratch"]

MOUNTS = "node"
"""Begins the names of directories inside that are there to be mounted on."""

_LOCK = "lock"


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """Make a temporary directory; at the end what is mounted below it is unmounted, and it is removed.

    Raises
    ------
    StorageError
        If something could not be unmounted; what it shows stays.
    """
    with launch.held_interrupts():
        directory = Path(os.path.realpath(tempfile.mkdtemp(prefix=prefix)))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        lock = os.open(directory / _LOCK, flags, mode=0o600)
        # Where locks are not to be had, leftovers are not found.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield directory
    finally:
        try:
            _remove(directory)
        finally:
            os.close(lock)


def remove_leftovers(prefix: str) -> None:
    """Remove directories of this user that were made with this prefix by processes which were killed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # What another one removes at the same time, what is of another user, or still in use: it hurts nobody.
        with contextlib.suppress(OSError, StorageError):
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(Path(os.path.realpath(directory)))
            finally:
                os.close(lock)


def _remove(directory: Path) -> None:
    """Unmount and remove.

    No directory is removed together with what is in it where that might be a mount: a mount that could not be taken away is an
    error, and the data behind it stays.
    """
    with launch.held_interrupts():
        inside = sorted(directory.iterdir())
        for point in (one for one in inside if one.name.startswith(MOUNTS)):
            found = pfs.find(point)
            if found is not None and found.mount == point:
                pfs.unmount(point)
            point.rmdir()
        for one in inside:
            if one.name.startswith(MOUNTS):
                continue
            if one.is_dir() and not one.is_symlink():
                shutil.rmtree(one)
            else:
                one.unlink()
        directory.rmdir()
