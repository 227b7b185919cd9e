"""Checks before mounting, each with its own message.

Wrong arguments raise :class:`forebay.OptionError`; a missing feature of the machine, or an unusable
directory, raises :class:`forebay.StorageError`. The checks change nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from forebay._core import StorageError, option_error
from forebay_lab.pfs.mounts import TYPE, covering, entries, fusermount, may_mount

__all__ = ["check_backing", "check_fuse", "check_points"]

DEVICE = "/dev/fuse"


def check_backing(backing: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a backing directory.

    Raises
    ------
    StorageError
        If it does not exist, or is not a readable directory.
    OptionError
        If it lies on a mount of the emulator.
    """
    path = Path(os.path.realpath(backing))
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise StorageError(
            f"backing directory {backing}: {error.strerror}", errno=error.errno, filename=backing
        ) from error
    if not stat.S_ISDIR(mode):
        raise StorageError(
            f"backing directory {backing}: expected a directory, found {_kind(mode)}\n"
            "hint: give the directory that holds the data"
        )
    if not os.access(path, os.R_OK | os.X_OK):
        raise StorageError(
            f"backing directory {backing}: Permission denied", errno=errno.EACCES, filename=backing
        )
    entry = covering(path)
    if entry is not None and entry.type == TYPE:
        raise option_error(
            f"backing directory {backing}: it lies on {entry.point}, itself a mount of the emulator",
            "give the backing directory of that mount",
        )
    return path


def check_points(backing: Path, points: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the absolute paths of mount points: empty directories, not mounted and not nested.

    Raises
    ------
    OptionError
        If one is given twice or is nested with the backing directory, another mount point or an
        emulator's mount.
    StorageError
        If one does not exist, is not an empty directory, or is already a mount.
    """
    table = entries()
    found: list[Path] = []
    for given in points:
        path = Path(os.path.realpath(given))
        _check_nesting(given, path, backing, found)
        entry = covering(path, table)
        if entry is not None and entry.point == path:
            raise StorageError(
                f"mount point {given}: it is a mount already, of type {entry.type} from {entry.source}\n"
                f"hint: {'forebay pfs unmount' if entry.type == TYPE else 'umount'} {given}, "
                "or give another directory"
            )
        if entry is not None and entry.type == TYPE:
            raise option_error(
                f"mount point {given}: it lies on {entry.point}, itself a mount of the emulator",
                "give a directory outside of it",
            )
        _check_empty(given, path)
        found.append(path)
    if not found:
        raise option_error("expected at least one mount point, found none")
    return found


def _check_nesting(given: str | os.PathLike[str], path: Path, backing: Path, others: Iterable[Path]) -> None:
    if path == backing:
        raise option_error(
            f"mount point {given}: it is the backing directory itself", "mount beside it: mkdir MOUNT"
        )
    if path.is_relative_to(backing):
        raise option_error(
            f"mount point {given}: it lies inside the backing directory {backing}",
            "give a directory outside of it",
        )
    if backing.is_relative_to(path):
        raise option_error(
            f"mount point {given}: the backing directory {backing} lies inside of it",
            "give an empty directory beside it",
        )
    for other in others:
        if path == other:
            raise option_error(f"mount point {given}: it is given twice")
        if path.is_relative_to(other) or other.is_relative_to(path):
            raise option_error(
                f"mount point {given}: it is nested with the mount point {other}",
                "give directories of which none lies inside another",
            )


def _check_empty(given: str | os.PathLike[str], path: Path) -> None:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISDIR(mode):
            raise StorageError(f"mount point {given}: expected a directory, found {_kind(mode)}")
        with os.scandir(path) as inside:
            first = next(inside, None)
    except FileNotFoundError as error:
        raise StorageError(
            f"mount point {given}: No such file or directory\nhint: mkdir -p {given}",
            errno=error.errno,
            filename=given,
        ) from error
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"mount point {given}: {error.strerror}", errno=error.errno, filename=given
        ) from error
    if first is not None:
        raise StorageError(
            f"mount point {given}: expected an empty directory, found {first.name} in it\n"
            f"hint: what is there would be hidden; give an empty directory"
        )
    if not may_mount() and not os.access(path, os.W_OK):
        raise StorageError(
            f"mount point {given}: fusermount3 mounts only on directories that you may write to\n"
            "hint: give a directory of your own"
        )


def _kind(mode: int) -> str:
    return "a file" if stat.S_ISREG(mode) else "something else"


def check_fuse() -> None:
    """Check that this user can mount with FUSE.

    Raises
    ------
    StorageError
        If the device is missing or inaccessible, or if there is neither root nor fusermount3.
    """
    attempt = "mount with FUSE"
    try:
        descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise StorageError(
            f"{attempt}: {DEVICE} is not there\n"
            "hint: as root: modprobe fuse; a container needs --device /dev/fuse --cap-add SYS_ADMIN",
            errno=error.errno,
            filename=DEVICE,
        ) from error
    except OSError as error:
        try:
            mode = f", its mode is {stat.S_IMODE(Path(DEVICE).stat().st_mode):04o}"
        except OSError:
            mode = ""
        raise StorageError(
            f"{attempt}: cannot open {DEVICE}: {error.strerror}{mode}\n"
            "hint: run as root, or as root: chmod 666 /dev/fuse; a container needs --device /dev/fuse",
            errno=error.errno,
            filename=DEVICE,
        ) from error
    os.close(descriptor)
    if not may_mount() and fusermount() is None:
        raise StorageError(
            f"{attempt}: it needs root (CAP_SYS_ADMIN) or fusermount3, and neither is here\n"
            "hint: run as root, or install fuse3 (apt-get install fuse3, dnf install fuse3), "
            "or run everything inside `unshare -Urm`"
        )
