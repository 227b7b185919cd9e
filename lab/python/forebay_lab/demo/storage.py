"""The storage of the training runs: an emulated file system before the dataset, or the local disk.

`choose` decides before anything is made, and removes mounts that a killed demo left. `opened`
mounts the dataset's directory through the emulator, as one node, in a temporary directory that is
locked while this process lives; it unmounts at the end, also after an error. Between runs, `cool`
empties the node's page cache and resets the counters; `counted` returns what has reached the file
system since, with page faults.

Without FUSE, or on request, the runs read the local disk, and the result holds the reason.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from forebay._core import StorageError, option_error
from forebay_lab import _native, pfs
from forebay_lab.pfs import checks
from forebay_lab.ranks import launch, page_cache
from forebay_lab.scratch import remove_leftovers, scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_lab.demo.data import DemoDataset

PRESET = "nfs"
"""One server behind 10 Gb/s Ethernet: what most labs have."""

PREFIX = "forebay-demo-mount-"
"""Begins the name of the temporary directory in which the mount is."""

_MIB = 1 << 20
_PIECE_BYTES = 4 * _MIB

_WARM_SHARE = 0.98
"""Share of the file in the page cache that counts as all; probes are accurate to a few per cent."""


class Storage(Protocol):
    """What the ranks read from."""

    @property
    def directory(self) -> Path:
        """The dataset's directory, as the ranks see it."""

    @property
    def cache(self) -> Path:
        """Where Forebay keeps the index; it goes when the dataset or the mount goes."""

    @property
    def reason(self) -> str | None:
        """Why this is no emulated file system, if it is none."""

    def describe(self) -> dict[str, Any] | None:
        """Return the emulated file system (``spec``, ``time_scale``, ``limit_mib_s``) or None."""

    def cool(self) -> None:
        """Begin a run: page cache empty of the dataset, counters at zero."""

    def counted(self) -> dict[str, Any] | None:
        """Return what has reached the emulated file system since; None if there is none."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be used: an emulated file system, or none and why."""

    preset: str | None = None
    reason: str | None = None
    insisted: bool = False
    """The user has named the file system: a local disk will not do."""


def choose(preset: str | None, emulate: bool) -> Choice:
    """Choose, and remove what a demo that was killed left mounted.

    Parameters
    ----------
    preset
        The file system to emulate; None leaves that to us.
    emulate
        False: read the local disk.

    Raises
    ------
    OptionError
        The preset is unknown, or a file system is named and emulation is not wanted.
    StorageError
        The file system was named, and this user cannot mount with FUSE here.
    """
    if not emulate:
        if preset is not None:
            raise option_error(f"expected --pfs or --no-pfs, found both (--pfs {preset})")
        return Choice(reason="--no-pfs was given")
    _native.pfs_spec(preset or PRESET, None, None, "{}")
    try:
        checks.check_fuse()
    except StorageError as error:
        if preset is not None:
            raise
        return Choice(reason=str(error))
    remove_leftovers(PREFIX)
    return Choice(preset or PRESET, insisted=preset is not None)


@contextlib.contextmanager
def opened(dataset: DemoDataset, choice: Choice) -> Iterator[Storage]:
    """Yield the storage of the ranks; nothing stays mounted after the block.

    Raises
    ------
    OptionError
        The dataset is mounted through the emulator already, or lies on such a mount.
    StorageError
        The file system was named and cannot be mounted, or could not be unmounted.
    """
    with contextlib.ExitStack() as stack:
        storage: Storage = Disk(dataset, choice.reason or "")
        if choice.preset is not None:
            try:
                storage = _mount(dataset, choice.preset, stack)
            except StorageError as error:
                if choice.insisted:
                    raise
                storage = Disk(dataset, str(error))
        yield storage


@dataclass(frozen=True, slots=True)
class Disk:
    """The dataset where it is."""

    dataset: DemoDataset
    reason: str

    @property
    def directory(self) -> Path:
        """The dataset's own directory."""
        return self.dataset.directory

    @property
    def cache(self) -> Path:
        """A part of the dataset's directory."""
        return self.dataset.cache

    def describe(self) -> None:
        """No file system is emulated."""
        return

    def cool(self) -> None:
        """Ask the kernel to forget the file."""
        page_cache.drop(self.dataset.file)

    def counted(self) -> None:
        """Nothing is counted beside what the kernel counts of the ranks."""
        return


@dataclass(frozen=True, slots=True)
class Emulated:
    """The dataset behind the emulator, as the only node of it that is ours."""

    dataset: DemoDataset
    directory: Path
    cache: Path
    server: pfs.Server
    reason: None = None

    def describe(self) -> dict[str, Any]:
        """Return the file system's parameters, and the limit of one node [MiB per model second]."""
        spec = self.server.spec
        allowed = _native.pfs_limit(json.dumps(spec), 1) / _MIB
        return {"spec": spec, "time_scale": self.server.time_scale, "limit_mib_s": allowed}

    def cool(self) -> None:
        """Empty the node's page cache and set the counters to zero."""
        self.server.drop_caches(self.directory)
        self.server.reset()

    def counted(self) -> dict[str, Any]:
        """Return the node's counters as in stats, ``mean_read_bytes`` and how late replies were.

        Raises
        ------
        StorageError
            Nothing has reached the file system, so that the node was not cold; or the emulator is
            gone.
        """
        stats = self.server.stats()
        (node,) = (one for one in stats["nodes"] if Path(one["mount"]) == self.directory)
        if node["reads"] == 0:
            raise StorageError(
                f"training run on {self.directory}: expected reads of the emulated file system, found none; "
                "the page cache was not empty"
            )
        kept = (
            "reads",
            "read_bytes",
            "sequential_reads",
            "queue_seconds",
            "max_in_flight",
            "metadata",
            "sizes",
        )
        return {
            **{key: node[key] for key in kept},
            "mean_read_bytes": node["read_bytes"] / node["reads"],
            "lateness_share": stats["lateness_share"],
            "missed_deadlines": bool(stats["missed_deadlines"]),
        }


def _mount(dataset: DemoDataset, preset: str, stack: contextlib.ExitStack) -> Emulated:
    directory = stack.enter_context(scratch(PREFIX))
    with launch.held_interrupts():
        node, cache = directory / "node", directory / "cache"
        node.mkdir()
        # A sidecar is tied to a path, and that of this mount will never come again.
        cache.mkdir(mode=0o700)
        server = pfs.Server.start(dataset.directory, [node], preset=preset, time_scale="auto")
        if others := [str(one) for one in server.mounts if one != node]:
            raise option_error(
                f"{dataset.directory} is mounted already, at {', '.join(others)}, and its counters would be set to zero",
                "forebay pfs unmount it first, or --no-pfs",
            )
    _warm(dataset.file)
    return Emulated(dataset, node, cache, server)


def _warm(file: Path) -> None:
    """Read the file behind the emulator into memory, so that the local disk is not measured."""
    share = page_cache.resident_share(file)
    if share is None or share < _WARM_SHARE:
        piece = bytearray(_PIECE_BYTES)
        with file.open("rb", buffering=0) as source:
            while source.readinto(piece):
                pass
