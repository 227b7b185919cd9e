"""The client of a running server: starts, joins, queries and ends it.

A server is one process that holds the model of one backing directory and all its mounts. It
outlives the process that started it, and ends with its last mount.
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from forebay._core import StorageError, StorageTimeout, option_error
from forebay._daemon import GoneError
from forebay_lab.pfs import checks, start
from forebay_lab.pfs.emulator import EMULATOR
from forebay_lab.pfs.mounts import TYPE, entries, find, remove
from forebay_lab.ranks import launch

__all__ = ["Server", "mounted", "unmount"]

# Watchdog for the end of a server, which unmounts and joins its threads [s].
_END_WITHIN_S = 60.0


class Server:
    """The server of a backing directory; created by :meth:`start`, :meth:`connect` or :meth:`of`.

    Times in its answers are model seconds: real seconds divided by ``time_scale``.
    """

    __slots__ = ("_facts", "socket")

    def __init__(self, socket: Path, facts: dict[str, Any]) -> None:
        self.socket = socket
        self._facts = facts

    @classmethod
    def connect(cls, socket: str | os.PathLike[str]) -> Server:
        """Return the server that listens on a control socket.

        Raises
        ------
        StorageError
            If no server listens.
        """
        path = Path(socket)
        return cls(path, EMULATOR.ask(path, {"command": "ping"}))

    @classmethod
    def of(cls, mount: str | os.PathLike[str]) -> Server:
        """Return the server of the mount of a path.

        Raises
        ------
        StorageError
            If the path is not on a mount of the emulator, or on a stale one.
        """
        found = find(mount)
        if found is None:
            raise _not_a_mount(mount)
        try:
            return cls.connect(found.socket)
        except GoneError as error:
            raise StorageError(
                f"{found.mount}: the server of this mount is gone\n"
                f"hint: forebay pfs unmount {found.mount}; it can be mounted again then"
            ) from error

    @classmethod
    def start(
        cls,
        backing: str | os.PathLike[str],
        mounts: Iterable[str | os.PathLike[str]],
        *,
        preset: str | None = None,
        spec: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        time_scale: float | str | None = None,
        seed: int | None = None,
        events: str | os.PathLike[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Server:
        """Mount a backing directory: start its server, or join the running one.

        Parameters
        ----------
        backing : path-like
            Directory that holds the data.
        mounts : iterable of path-like
            Empty directories; each becomes a node with its own page cache.
        preset : str, optional
            Name of a file system. Default: ``lustre-hdd``, or that of the running server.
        spec : mapping or path-like, optional
            The numbers of a file system, or a TOML file of them, instead of a preset.
        time_scale : float or "auto", optional
            Factor on all times of the model; ``auto``: what a small machine needs. Default 1.
        seed : int, optional
            Seed of the model's jitter. Default 0.
        events : path-like, optional
            File that records all reads.
        overrides : mapping, optional
            Single numbers of the preset or spec, by name.

        Returns
        -------
        Server

        Raises
        ------
        OptionError
            If an argument is wrong, or differs from that of the running server.
        StorageError
            If FUSE, the backing directory or a mount point is unusable, or the server does not
            start.
        """
        wanted = start.Wanted(
            preset=preset,
            spec=spec,
            time_scale=time_scale,
            seed=seed,
            events=None if events is None else Path(events),
            overrides=dict(overrides or {}),
        )
        # Ctrl-C in the middle would leave mounts that no one knows of.
        with launch.held_interrupts() as interrupts:
            started = start.start(backing, list(mounts), wanted)
            server = cls.connect(started.socket)
            for point in started.mounts if interrupts else []:
                with suppress(StorageError):
                    server.unmount(point)
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def command(self, command: str, **request: Any) -> dict[str, Any]:
        """Send a request of the control protocol (docs/pfs.md) and return the answer.

        Raises
        ------
        StorageError
            If the server has ended, or reports an error.
        """
        return EMULATOR.ask(self.socket, {"command": command, **request})

    @property
    def spec(self) -> dict[str, Any]:
        """The file system's numbers."""
        return dict(self._facts["spec"])

    @property
    def time_scale(self) -> float:
        """The factor on all times of the model."""
        if "time_scale" not in self._facts:
            raise StorageError(
                f"{self.socket}: expected the key time_scale, found {', '.join(self._facts)}\n"
                f"hint: another version of Forebay serves {self.backing}; unmount it and mount it again"
            )
        return float(self._facts["time_scale"])

    @property
    def pid(self) -> int:
        """The process of the server."""
        return int(self._facts["pid"])

    @property
    def backing(self) -> Path:
        """The directory that holds the data."""
        return Path(self._facts["backing"])

    @property
    def mounts(self) -> list[Path]:
        """The current mounts, by node."""
        return [Path(one) for one in self.command("ping")["mounts"]]

    def stats(self) -> dict[str, Any]:
        """Return all counters; keys as in docs/metrics.md."""
        return self.command("stats")

    def prometheus(self) -> str:
        """Return the counters in the text format of Prometheus."""
        return str(self.command("prometheus")["text"])

    def reset(self) -> None:
        """Set all counters to zero and empty the model's queues."""
        self.command("reset")

    def drop_caches(self, mount: str | os.PathLike[str]) -> int:
        """Empty the page cache of one node; return the number of files."""
        return int(self.command("drop_caches", mount=self._point(mount))["pages_dropped_files"])

    def events(self, since: int = 0) -> tuple[list[list[Any]], int]:
        """Return the kept reads from number ``since`` on, and the next number.

        Each is [seconds, node, file, offset, length, latency]. The server keeps the last 200,000.
        """
        answer = self.command("events", since=since)
        return list(answer["events"]), int(answer["next"])

    def add_mount(self, mount: str | os.PathLike[str]) -> Path:
        """Mount one more node at an empty directory and return its absolute path."""
        checks.check_fuse()
        (path,) = checks.check_points(self.backing, [mount])
        self.command("mount", mount=os.fspath(path))
        return path

    def unmount(self, mount: str | os.PathLike[str]) -> None:
        """Unmount one node. The server ends with the last one, and this waits for that."""
        self._take_away(self._point(mount))

    def end(self) -> None:
        """Unmount all nodes, end the server and wait until it has ended, also after Ctrl-C."""
        with launch.held_interrupts():
            self._wait_for_end({"command": "end"})

    def fail_range(self, file: str | os.PathLike[str], begin: int = 0, end: int | None = None) -> None:
        """Make reads of bytes ``begin`` to ``end`` of a file fail with EIO on every node.

        Parameters
        ----------
        file : path-like
            On one of the mounts, or relative to a mount.
        begin, end : int
            Offsets [bytes]; by default the whole file.
        """
        path = Path(file)
        if path.is_absolute():
            # The last component may be a link, which is a file of its own here.
            whole = Path(os.path.realpath(path.parent)) / path.name
            path = whole.relative_to(self._point(whole))
        last = sys.maxsize if end is None else end
        if not 0 <= begin < last:
            raise option_error(f"fault eio: expected a range of bytes, found {begin} to {last}")
        self.command("fault", kind="eio", file=os.fspath(path), **{"from": begin, "to": last})

    def stall(self, server: int, seconds: float) -> None:
        """Stall a server for some model seconds: its requests wait."""
        self.command("fault", kind="stall", server=server, for_seconds=seconds)

    def slow(self, server: int, factor: float) -> None:
        """Slow a server down: it takes ``factor`` times as long; 1 ends that."""
        self.command("fault", kind="slow", server=server, factor=factor)

    def partition(self, mount: str | os.PathLike[str]) -> None:
        """Partition one mount, as an evicted client: all requests fail until it is unmounted."""
        self.command("fault", kind="partition", mount=self._point(mount))

    def clear_faults(self) -> None:
        """End all faults but partitions; waiting requests are answered at once."""
        self.command("fault", kind="clear")

    def _point(self, mount: str | os.PathLike[str]) -> str:
        """Return the mount of this server for a path."""
        found = find(mount)
        if found is None or found.socket != self.socket:
            raise option_error(
                f"{os.fspath(mount)}: expected a mount of {self.backing}, "
                f"found {'none' if found is None else f'one of another backing directory, {found.mount}'}"
            )
        return os.fspath(found.mount)

    def _take_away(self, point: str) -> None:
        request = {"command": "unmount", "mount": point}
        if [os.fspath(one) for one in self.mounts] == [point]:
            self._wait_for_end(request)
        else:
            EMULATOR.ask(self.socket, request)

    def _wait_for_end(self, request: dict[str, Any]) -> None:
        try:
            process: int | None = os.pidfd_open(self.pid)
        except OSError:
            # The server has ended, or is in another pid namespace.
            process = None
        try:
            EMULATOR.ask(self.socket, request)
            if process is not None:
                waiting = select.poll()
                waiting.register(process, select.POLLIN)
                if not waiting.poll(_END_WITHIN_S * 1000):
                    raise self._does_not_end()
        finally:
            if process is not None:
                os.close(process)
        deadline = time.monotonic() + _END_WITHIN_S
        while any(entry.source.endswith(f":{self.socket}") for entry in entries()):
            if time.monotonic() > deadline:
                raise self._does_not_end()
            time.sleep(0.01)

    def _does_not_end(self) -> StorageTimeout:
        return StorageTimeout(
            f"the emulator of {self.backing} (process {self.pid}) has not ended within {_END_WITHIN_S:g} s\n"
            f"hint: kill -9 {self.pid}, then: forebay pfs unmount MOUNT"
        )


@contextmanager
def mounted(backing: str | os.PathLike[str], **options: Any) -> Iterator[tuple[Server, Path]]:
    """Mount a backing directory for a while, as one node.

    Parameters
    ----------
    backing : path-like
        Directory that holds the data.
    **options
        Of :meth:`Server.start`.

    Yields
    ------
    tuple of Server and Path
        The server, and the mount.
    """
    with (
        tempfile.TemporaryDirectory(prefix="forebay-mount-") as point,
        Server.start(backing, [point], **options) as server,
    ):
        yield server, Path(point)


def _not_a_mount(path: str | os.PathLike[str]) -> StorageError:
    return StorageError(
        f"{os.fspath(path)}: expected a path on a mount of the emulator, found none\n"
        "hint: forebay pfs list tells the mounts"
    )


def unmount(mount: str | os.PathLike[str]) -> Path:
    """Unmount a mount of the emulator, with or without a running server.

    Returns
    -------
    Path
        The mount point.

    Raises
    ------
    StorageError
        If it is not a mount of the emulator, or unmounting is refused.
    """
    found, path = find(mount), Path(os.path.realpath(mount))
    if found is None:
        # A server is not notified if someone else unmounts a partitioned mount.
        for socket in EMULATOR.sockets():
            with suppress(GoneError):
                server = Server.connect(socket)
                if path in server.mounts:
                    server._take_away(os.fspath(path))
                    return path
        raise _not_a_mount(mount)
    if found.mount != path:
        raise StorageError(
            f"{os.fspath(mount)}: expected a mount, found a path on {found.mount}\n"
            f"hint: forebay pfs unmount {found.mount}"
        )
    try:
        Server.connect(found.socket).unmount(found.mount)
    except GoneError:
        if any(entry.point == found.mount and entry.type == TYPE for entry in entries()):
            remove(found.mount)
        EMULATOR.forget(found.socket)
    return found.mount
