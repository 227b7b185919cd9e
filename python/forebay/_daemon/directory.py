"""The private directory for sockets and logs of daemons.

It is the directory in which the ranks of a node meet (``runtime_directory.rs`` in forebay-host).
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay import _native

__all__ = ["is_own_socket", "locked", "own_sockets", "runtime_directory"]


def runtime_directory() -> Path:
    """Return the directory; create it if needed.

    Raises
    ------
    StorageError
        If it is not a directory of this user with mode 0700.
    """
    return _native.runtime_directory(make=True)


def own_sockets(prefix: str) -> list[Path]:
    """Return the sockets of this user whose names begin with ``prefix``, also of dead daemons."""
    found = sorted(_native.runtime_directory(make=False).glob(f"{prefix}*.sock"))
    return [path for path in found if is_own_socket(path, prefix)]


def is_own_socket(path: Path, prefix: str) -> bool:
    """Whether a path, which another user may have chosen, is a socket of this user."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid() and path.name.startswith(prefix)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Exclude other processes from starting daemons; the lock is on the directory itself."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
