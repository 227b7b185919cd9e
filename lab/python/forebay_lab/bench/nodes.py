"""The nodes of a bench: which path each of them reads, and what can be done between runs.

Three cases:

- The dataset lies on a mount of the emulator. Node 0 is that mount; further nodes get mounts of
  their own from the same server, in a temporary directory, for as long as the bench runs.
- ``--pfs PRESET``: the dataset's directory is mounted for the run, once per node.
- Otherwise all nodes read the same path and share the page cache of this machine.

Whatever was mounted here is unmounted at the end, found by the kernel's table and not by what this
process remembers, so that nothing stays after an interruption either.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay._core import StorageError, option_error
from forebay_lab import _native
from forebay_lab.bench.facts import Facts
from forebay_lab.bench.settings import Settings
from forebay_lab.bench.timing import MIB
from forebay_lab.ranks import launch, page_cache
from forebay_lab.scratch import MOUNTS, scratch

__all__ = ["MOST_EVENTS", "SCRATCH", "Nodes", "nodes"]

SCRATCH = "forebay-bench-"
"""Begins the names of temporary directories of a bench."""

MOST_EVENTS = 4000
"""Reads of a repetition that a result keeps, evenly thinned: more points than a figure can show."""

_RESIDENT_SHARE = 0.02
"""Share of a file that may stay in the page cache after a drop without a warning: single pages."""


class Nodes:
    """Nodes without an emulator; the base of those with one."""

    time_scale = 1.0

    def __init__(self, facts: Facts, count: int) -> None:
        self.paths: tuple[tuple[str, ...], ...] = (facts.paths,) * count
        self.count = count
        self._files = tuple(Path(file) for file in facts.files)
        self.warnings: list[str] = []
        self.variables: dict[str, str] = {}
        """Environment of the ranks."""
        self.mounts: list[Path] = []
        """Of the emulated file system, by node; none without it."""
        self.tiers: list[list[Path]] = []
        """Tier mounts by node; none without any."""

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def all_mounts(self) -> list[list[Path]]:
        """Return all mounts by node."""
        data = [[mount] for mount in self.mounts] or [[] for _ in range(self.count)]
        tiers = self.tiers or [[] for _ in range(self.count)]
        return [*map(list.__add__, data, tiers)] if self.mounts or self.tiers else []

    def mount_tiers(self, presets: tuple[str, ...], directory: Path) -> None:
        """Mount empty directories as tiers, each its own file system, at the data's time scale.

        Raises
        ------
        StorageError
            If the emulator cannot be started.
        """
        from forebay_lab import pfs

        for node in range(self.count):
            mounts = []
            for number, preset in enumerate(presets):
                store = directory / f"store{node}-tier{number}"
                mount = directory / f"{MOUNTS}{node}-tier{number}"
                for one in (store, mount):
                    one.mkdir(mode=0o700)
                pfs.Server.start(store, [mount], preset=preset, time_scale=self.time_scale)
                mounts.append(mount)
            if mounts:
                self.tiers.append(mounts)

    def empty_tiers(self) -> None:
        """Remove what a run has left in the tiers."""
        for of_node in self.tiers:
            for mount in of_node:
                for left in mount.iterdir():
                    if left.is_dir() and not left.is_symlink():
                        shutil.rmtree(left)
                    else:
                        left.unlink()

    def counters(self) -> str | None:
        """Return the control socket of the emulator, whose counters are taken after each epoch."""
        return None

    def describe(self) -> dict[str, Any] | None:
        """Return the emulator's part of a result; None without one."""
        return None

    def limit_file(self) -> str:
        """Return the file whose read rate is the storage's limit: node 0's largest."""
        return str(max(self._files, key=lambda file: file.stat().st_size))

    def cool(self) -> None:
        """Empty the page caches of the dataset."""
        self._warn(
            "--cold without the emulator: the kernel was asked to forget the files' pages (posix_fadvise); "
            "caches of disks and servers stay as they are"
        )
        self.drop_caches()
        for file in self._files:
            share = page_cache.resident_share(file)
            if share is not None and share > _RESIDENT_SHARE:
                self._warn(
                    f"--cold: {share:.0%} of {file} stayed in the page cache; somebody else has it mapped"
                )

    def drop_caches(self) -> None:
        """Ask the kernel to forget the pages of the dataset."""
        for file in self._files:
            page_cache.drop(file)

    def begin(self) -> None:
        """Begin a repetition: counters to zero."""

    def end(self, cold: bool) -> dict[str, Any]:
        """End a repetition: return ``pfs``, ``events`` and ``missed_deadlines`` of its result."""
        del cold
        return {"pfs": None, "events": [], "missed_deadlines": False}


class EmulatedNodes(Nodes):
    """Nodes that are mounts of one emulator."""

    def __init__(
        self, facts: Facts, server: Any, mounts: list[Path], relative: tuple[str, ...], cache: Path
    ) -> None:
        super().__init__(facts, len(mounts))
        # A sidecar is tied to a path, and those of the mounts that are made here will never come
        # again.
        self.variables = {"FOREBAY_CACHE_DIR": str(cache)}
        self.paths = tuple(tuple(str(mount / one) for one in relative) for mount in mounts)
        self._server, self.mounts = server, mounts
        backing = Path(os.path.realpath(server.backing))
        own = Path(os.path.realpath(mounts[0]))
        inside = [Path(os.path.realpath(file)) for file in self._files]
        # The files as the engine named them lie below the mount where it was there already, else
        # below the backing directory.
        base = own if inside[0].is_relative_to(own) else backing
        self._limit_files = [mounts[0] / file.relative_to(base) for file in inside]
        self.time_scale = float(server.time_scale)
        self._next_event = 0

    def counters(self) -> str:
        """Return the control socket of the emulator."""
        return str(self._server.socket)

    def describe(self) -> dict[str, Any]:
        """Return the file system's parameters, the time scale and the model's limit."""
        spec = self._server.spec
        allowed = _native.pfs_limit(json.dumps(spec), self.count) / MIB
        return {"spec": spec, "time_scale": self.time_scale, "limit_mib_s": allowed}

    def limit_file(self) -> str:
        """Return the largest file on node 0's mount."""
        return str(max(self._limit_files, key=lambda file: file.stat().st_size))

    def cool(self) -> None:
        """Empty the page cache of every node."""
        self.drop_caches()

    def drop_caches(self) -> None:
        """Empty the page cache of every node."""
        for mount in self.mounts:
            self._server.drop_caches(mount)

    def begin(self) -> None:
        """Set the emulator's counters to zero and forget the reads so far."""
        self._server.reset()
        _, self._next_event = self._server.events(self._next_event)

    def end(self, cold: bool) -> dict[str, Any]:
        """Return counters and reads.

        Raises
        ------
        StorageError
            If nodes were to begin cold and one has asked the emulator for nothing.
        """
        stats = self._server.stats()
        stats.pop("ok", None)
        events, self._next_event = self._server.events(self._next_event)
        if cold:
            self._check_cold(stats)
        first = events[0][0] if events else 0.0
        thinned = (
            events
            if len(events) <= MOST_EVENTS
            else [events[len(events) * place // MOST_EVENTS] for place in range(MOST_EVENTS)]
        )
        late = bool(stats["missed_deadlines"])
        if late:
            self._warn(
                f"the machine was late: {stats['lateness_share']:.0%} of the time of requests is lateness of the emulator; "
                "take a larger --time-scale, or fewer ranks"
            )
        return {
            "pfs": stats,
            "events": [[event[0] - first, *event[1:]] for event in thinned],
            "missed_deadlines": late,
        }

    def _check_cold(self, stats: dict[str, Any]) -> None:
        reads = {os.path.realpath(node["mount"]): node["reads"] for node in stats["nodes"]}
        for mount in self.mounts:
            if reads.get(os.path.realpath(mount), 0) == 0:
                raise StorageError(
                    f"--cold: expected node {mount} to ask the emulator for data, found no read; "
                    "its page cache was not empty"
                )


@contextmanager
def nodes(facts: Facts, settings: Settings) -> Iterator[Nodes]:
    """Make the nodes of a bench, and unmount at the end what was mounted for it.

    Raises
    ------
    OptionError
        If ``--pfs`` was given and the dataset is on a mount of the emulator already.
    StorageError
        If the emulator cannot be started, or is gone.
    """
    from forebay_lab import pfs

    found = pfs.find(facts.paths[0])
    if settings.pfs is not None and found is not None:
        raise option_error(
            f"--pfs: the dataset lies on the emulator's mount {found.mount} already", "leave --pfs out"
        )
    if settings.pfs is None and found is None and not settings.tiers:
        yield _plain(facts, settings)
        return
    with scratch(f"{SCRATCH}nodes-") as directory:
        with launch.held_interrupts():
            if settings.pfs is None and found is None:
                made = _plain(facts, settings)
            else:
                made = _emulated(facts, settings, found, directory)
            made.mount_tiers(settings.tiers, directory)
        yield made


def _plain(facts: Facts, settings: Settings) -> Nodes:
    plain = Nodes(facts, settings.nodes)
    if settings.nodes > 1:
        plain._warn(
            "the nodes share the page cache of this machine: the dataset is not on a mount of the emulator"
        )
    return plain


def _emulated(facts: Facts, settings: Settings, found: Any, directory: Path) -> EmulatedNodes:
    cache = directory / "cache"
    cache.mkdir(mode=0o700)
    mounts = [directory / f"{MOUNTS}{node}" for node in range(settings.nodes)]
    for one in mounts:
        one.mkdir()
    if found is None:
        return _start(facts, settings, mounts, cache)
    return _join(facts, found.mount, mounts[1:], cache)


def _start(facts: Facts, settings: Settings, mounts: list[Path], cache: Path) -> EmulatedNodes:
    from forebay_lab import pfs

    paths = [Path(os.path.realpath(path)) for path in facts.paths]
    backing = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in paths]))
    server = pfs.Server.start(
        backing,
        mounts,
        preset=settings.pfs,
        time_scale=settings.time_scale,
        seed=settings.seed,
        overrides={} if settings.targets is None else {"targets": settings.targets},
    )
    return EmulatedNodes(
        facts, server, mounts, tuple(str(path.relative_to(backing)) for path in paths), cache
    )


def _join(facts: Facts, mount: Path, further: list[Path], cache: Path) -> EmulatedNodes:
    from forebay_lab import pfs

    server = pfs.Server.of(mount)
    point = Path(os.path.realpath(mount))
    relative = tuple(str(Path(os.path.realpath(path)).relative_to(point)) for path in facts.paths)
    for one in further:
        server.add_mount(one)
    return EmulatedNodes(facts, server, [mount, *further], relative, cache)
