"""Finds mounts of the emulator: all of them, the one of a path, and stale ones.

The kernel's table, ``/proc/self/mountinfo``, is the only register. A mount of the emulator has the
type ``fuse.forebay-pfs`` and the source ``forebay-pfs:SOCKET``, where SOCKET is the control socket
of its server. A mount is stale if no server listens on that socket *and* the kernel answers
ENOTCONN: a server that has just started, or one of another user, never looks dead. Nothing here
waits for a server that does not answer.

Source: proc_pid_mountinfo(5); the tests measure the behaviour of stale mounts.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket as sockets
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from forebay._core import StorageError
from forebay._daemon.directory import runtime_directory
from forebay_lab.pfs.emulator import EMULATOR

__all__ = ["TYPE", "Entry", "Mount", "covering", "entries", "find", "list_mounts", "remove", "remove_stale"]

# Type and source of a mount of the emulator, as the kernel shows them.
TYPE = "fuse.forebay-pfs"
SOURCE = "forebay-pfs:"

MOUNTINFO = "/proc/self/mountinfo"

# Bit of CAP_SYS_ADMIN, which mount(2) and umount(2) require.
_SYS_ADMIN = 21

_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the mount table: mount point, type, source."""

    point: Path
    type: str
    source: str


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount of the emulator.

    Attributes
    ----------
    mount : Path
        The mount point.
    socket : Path
        The control socket of its server.
    alive : bool
        Whether a server listened on it when this was created.
    """

    mount: Path
    socket: Path
    alive: bool


def entries(table: bytes | None = None) -> list[Entry]:
    """Read the mount table of this process, in the order of mounting.

    Parameters
    ----------
    table : bytes, optional
        Text of a mount table. Default: that of this process.
    """
    if table is None:
        table = Path(MOUNTINFO).read_bytes()
    found = []
    for line in table.splitlines():
        # The optional fields end with a single dash; type and source follow.
        before, separator, after = line.partition(b" - ")
        left, right = before.split(b" "), after.split(b" ")
        if not separator or len(left) < 5 or len(right) < 2:
            continue
        found.append(Entry(Path(_text(left[4])), _text(right[0]), _text(right[1])))
    return found


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))


def covering(path: str | os.PathLike[str], table: Iterable[Entry] | None = None) -> Entry | None:
    """Return the mount of a path: the last one at the longest mount point around it."""
    whole = Path(os.path.realpath(path))
    best: Entry | None = None
    for entry in entries() if table is None else table:
        if whole.is_relative_to(entry.point) and (
            best is None or len(entry.point.parts) >= len(best.point.parts)
        ):
            best = entry
    return best


def find(path: str | os.PathLike[str]) -> Mount | None:
    """Return the emulator's mount of a path, if there is one.

    Parameters
    ----------
    path : path-like
        Any path; it need not exist.

    Returns
    -------
    Mount or None
    """
    entry = covering(path)
    return None if entry is None else _mount(entry)


def list_mounts() -> list[Mount]:
    """Return all mounts of the emulator that this process sees."""
    return [mount for entry in entries() if (mount := _mount(entry)) is not None]


def _mount(entry: Entry) -> Mount | None:
    if entry.type != TYPE or not entry.source.startswith(SOURCE):
        return None
    socket = Path(entry.source.removeprefix(SOURCE))
    if not socket.is_absolute():
        # An emulator without a control socket, inside of another process.
        return None
    return Mount(entry.point, socket, _listens(socket))


def _listens(path: Path) -> bool:
    """Whether a server listens on a socket; one that we may not use counts as in use."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return False
        except OSError as error:
            # A full queue (EAGAIN) or a missing permission is a sign of life; a path that is too
            # long is not.
            return str(error) != "AF_UNIX path too long"
    return True


def _stale() -> Iterator[Mount]:
    # The caller's lock excludes only those that use the same runtime directory.
    ours = runtime_directory()
    for mount in list_mounts():
        if not mount.alive and mount.socket.parent == ours:
            try:
                # Always sends a request; the kernel may answer a stat from its cache.
                os.statvfs(mount.mount)
            except OSError as error:
                if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                    yield mount


def remove_stale() -> list[Path]:
    """Unmount the stale mounts of our runtime directory, and remove the sockets of their servers.

    Returns
    -------
    list of Path
        The unmounted ones; those of other runtime directories, as of other users, stay.
    """
    removed = []
    for mount in _stale():
        try:
            remove(mount.mount)
        except StorageError:
            continue
        removed.append(mount.mount)
        EMULATOR.forget(mount.socket)
    return removed


def remove(mount: Path) -> None:
    """Unmount lazily, without the server: open files stay until they are closed.

    Raises
    ------
    StorageError
        If the kernel, or fusermount3, refuses.
    """
    # Neither command may access a path whose server has ended.
    commands = [["umount", "--no-canonicalize", "--lazy", os.fspath(mount)]] if may_mount() else []
    if helper := fusermount():
        commands.append([helper, "-u", "-z", "--", os.fspath(mount)])
    problem = "neither root nor fusermount3 is here"
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            problem = f"{command[0]}: {error.strerror}"
            continue
        if done.returncode == 0 or mount not in {entry.point for entry in entries()}:
            return
        problem = done.stderr.strip() or f"{command[0]} ended with {done.returncode}"
    raise StorageError(f"unmount {mount}: {problem}\nhint: as root: umount -l {mount}", filename=mount)


def may_mount() -> bool:
    """Whether this process may mount: it has CAP_SYS_ADMIN, maybe in a user namespace only."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, flags=re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> _SYS_ADMIN & 1)


def fusermount() -> str | None:
    """Return the path of fusermount3, through which users without root mount."""
    return shutil.which("fusermount3")
