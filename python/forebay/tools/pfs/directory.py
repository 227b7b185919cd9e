"""The private directory for sockets of the emulator's servers.

It is ``$FOREBAY_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/forebay`` if that variable's directory
exists and is ours, else ``/tmp/forebay-UID``: the directory in which the ranks of a node meet. It
is created with mode 0700; an existing one must be a real directory with our owner and that mode.
Names begin with ``pfs-``, unlike those of the ranks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay._core import StorageError

__all__ = ["forget", "is_ours", "locked", "log_of", "runtime_directory", "socket_of", "sockets"]

VARIABLE = "FOREBAY_RUNTIME_DIR"

# Longest path of a socket [bytes]: `sun_path` has 108, including the final NUL (unix(7)).
_SOCKET_PATH_BYTES = 107


def runtime_directory() -> Path:
    """Return the directory; create it if needed.

    Raises
    ------
    StorageError
        If it is not a directory of this user with mode 0700.
    """
    path = _choose()
    elsewhere = f"set {VARIABLE} to a directory of your own"
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise _refused(path, f"cannot make it: {error.strerror}", elsewhere) from error
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "something else"
        raise _refused(path, f"expected a directory, found {kind}", elsewhere)
    if found.st_uid != os.geteuid():
        expected = f"expected it to belong to user {os.geteuid()}, found user {found.st_uid}"
        raise _refused(path, expected, elsewhere)
    if (mode := stat.S_IMODE(found.st_mode)) != 0o700:
        raise _refused(path, f"expected mode 0700, found {mode:04o}", f"chmod 700 {path}, or {elsewhere}")
    return path


def _choose() -> Path:
    if given := os.environ.get(VARIABLE):
        if not Path(given).is_absolute():
            raise _refused(Path(given), f"${VARIABLE} is not an absolute path", 'begin it with "/"')
        return Path(given)
    if (given := os.environ.get("XDG_RUNTIME_DIR")) and Path(given).is_absolute():
        place = Path(given)
        if place.is_dir() and place.stat().st_uid == os.geteuid():
            return place / "forebay"
    return Path(f"/tmp/forebay-{os.geteuid()}")


def _refused(path: Path, problem: str, hint: str) -> StorageError:
    return StorageError(f"runtime directory {path}: {problem}\nhint: {hint}", filename=path)


def socket_of(directory: Path, backing: Path) -> Path:
    """Return the socket of the server of a backing directory: one per directory and user.

    Raises
    ------
    StorageError
        If its path is too long for a socket.
    """
    name = hashlib.blake2b(os.fsencode(backing), digest_size=8).hexdigest()
    socket = directory / f"pfs-{name}.sock"
    if (length := len(os.fsencode(socket))) > _SOCKET_PATH_BYTES:
        raise _refused(
            directory,
            f"its path is too long for a socket: expected at most {_SOCKET_PATH_BYTES} bytes, found {length}",
            f"set {VARIABLE} to a shorter path",
        )
    return socket


def sockets() -> list[Path]:
    """Return the sockets of our servers, also of killed ones."""
    return [path for path in sorted(_choose().glob("pfs-*.sock")) if is_ours(path)]


def log_of(socket: Path) -> Path:
    """Return the log file of the server of a socket."""
    return socket.with_suffix(".log")


def is_ours(socket: Path) -> bool:
    """Whether a path of the mount table, into which others can write, is a socket of this user."""
    try:
        found = socket.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid() and socket.name.startswith("pfs-")


def forget(socket: Path) -> None:
    """Remove the socket and the log of a killed server."""
    if is_ours(socket):
        socket.unlink(missing_ok=True)
        log_of(socket).unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Exclude other processes from starting servers; the lock is on the directory itself."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
