"""Temporary directories that are always removed, with the mounts in them.

The process that makes one keeps it locked while it lives. A later process removes directories
without a lock, whose makers were killed. It considers only directories that belong to this user
alone and hold our marker, and follows no link.
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
from forebay_lab import pfs
from forebay_lab.ranks import launch

__all__ = ["MOUNTS", "remove_leftovers", "scratch"]

MOUNTS = "node"
"""Begins the names of directories inside that are there to be mounted on."""

_MARKER = ".forebay-scratch"


@contextlib.contextmanager
def scratch(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a temporary directory; at the end, unmount what is mounted below it and remove it.

    ``parent`` is where it is made; None: the directory for temporary files.

    Raises
    ------
    StorageError
        If something could not be unmounted; what it shows stays.
    """
    with contextlib.ExitStack() as stack:
        with launch.held_interrupts():
            directory = Path(os.path.realpath(tempfile.mkdtemp(prefix=prefix, dir=parent)))
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
        # No locks here: without a marker, `remove_leftovers` leaves the directory alone.
        return
    new.rename(directory / _MARKER)


def _end(directory: Path, held: list[int]) -> None:
    try:
        _remove(directory)
    finally:
        for descriptor in held:
            os.close(descriptor)


def remove_leftovers(prefix: str) -> None:
    """Remove this user's directories with this prefix whose processes were killed."""
    for directory in Path(os.path.realpath(tempfile.gettempdir())).glob(f"{prefix}*"):
        # Skip what another process removes at the same time, or still uses.
        with contextlib.suppress(OSError, StorageError):
            found = directory.lstat()
            # As mkdtemp makes them: no other user can have put anything there.
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                continue
            marker = os.open(directory / _MARKER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(directory)
            finally:
                os.close(marker)


def _remove(directory: Path) -> None:
    """Unmount what is mounted below a directory, and remove it.

    A directory that might be a mount is never removed recursively: a mount that cannot be unmounted
    is an error, and the data behind it stays. Other files that cannot be removed are left; the
    marker goes last.
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
