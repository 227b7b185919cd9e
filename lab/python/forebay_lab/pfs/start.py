"""Starts a server, or joins the running one.

In order, under the lock of the runtime directory:

1. Remove our stale mounts and check all arguments.
2. Look for the server of this backing directory. If one runs with the same numbers, it mounts the
   new mount points.
3. Otherwise start a process that leaves our session (see ``serve``). Wait until it answers and all
   its mounts are in the kernel's table. If it ends before that, the error shows the end of its log.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forebay._core import StorageError, option_error
from forebay._daemon import GoneError
from forebay_lab import _native
from forebay_lab.pfs import checks
from forebay_lab.pfs.emulator import EMULATOR
from forebay_lab.pfs.mounts import TYPE, entries, list_mounts, remove_stale

__all__ = ["DEFAULT_PRESET", "Started", "Wanted", "prepare", "start"]

DEFAULT_PRESET = "lustre-hdd"

# Fields of a spec that are text and not compared.
_TEXTS = ("about", "sources")

_LARGEST_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The arguments of :meth:`forebay_lab.pfs.Server.start`; None if not given."""

    preset: str | None = None
    spec: Mapping[str, Any] | str | os.PathLike[str] | None = None
    time_scale: float | str | None = None
    seed: int | None = None
    events: Path | None = None
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.preset is not None and self.spec is not None:
            raise option_error("expected a preset or a spec, found both")
        if self.time_scale is not None and self.time_scale != "auto":
            number = self.time_scale
            if isinstance(number, str) or not math.isfinite(number) or number <= 0:
                raise option_error(f"time_scale: expected a number above 0, or auto; found {number!r}")
        if self.seed is not None and not 0 <= self.seed <= _LARGEST_SEED:
            raise option_error(f"seed: expected an integer from 0 to 2**64 - 1, found {self.seed}")
        if self.events is not None and not self.events.absolute().parent.is_dir():
            raise StorageError(
                f"event log {self.events}: its directory is not there",
                errno=errno.ENOENT,
                filename=self.events.absolute().parent,
            )

    @classmethod
    def named(cls, name: str, **overrides: Any) -> Wanted:
        """Return a preset by its name, or the file system of a TOML file by its path."""
        path = Path(name)
        if path.suffix == ".toml":
            return cls(spec=path, overrides=overrides)
        return cls(preset=name, overrides=overrides)

    def names_a_file_system(self) -> bool:
        """Whether any argument must agree with the numbers of a running server."""
        return self.preset is not None or self.spec is not None or bool(self.overrides)

    def resolve(self, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the resulting numbers; overrides alone apply to ``base``, if given."""
        overrides = dict(self.overrides)
        if "targets" in overrides and "stripe_count" not in overrides:
            # With fewer targets than stripes a file is striped over all of them.
            whole = replace(self, overrides={}).resolve(base)
            overrides["stripe_count"] = min(whole["stripe_count"], overrides["targets"])
        if isinstance(self.spec, str | os.PathLike):
            path = os.fspath(self.spec)
            try:
                text = Path(path).read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise option_error(f"file system {path}: expected TOML in UTF-8: {error}") from error
            except OSError as error:
                raise StorageError(
                    f"file system {path}: {error.strerror}", errno=error.errno, filename=path
                ) from error
            return _spec(None, text, path, overrides)
        if self.spec is not None or (self.preset is None and base is not None):
            fields = dict(self.spec if self.spec is not None else base or {})
            sources = fields.pop("sources", {})
            spec = _spec("none", None, None, {**fields, **overrides})
            # A replaced number has no source.
            return {
                **spec,
                "sources": {name: text for name, text in sources.items() if name not in overrides},
            }
        return _spec(self.preset or DEFAULT_PRESET, None, None, overrides)


def _spec(
    preset: str | None, toml: str | None, path: str | None, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    resolved: dict[str, Any] = json.loads(_native.pfs_spec(preset, toml, path, json.dumps(dict(overrides))))
    return resolved


@dataclass(frozen=True, slots=True)
class Started:
    """The socket, the new mounts, whether the server is new, and the removed stale mounts."""

    socket: Path
    mounts: list[Path]
    is_new: bool
    removed: list[Path]


def start(backing: str | os.PathLike[str], points: list[Any], wanted: Wanted) -> Started:
    """Mount a backing directory at empty directories; see `forebay_lab.pfs.Server.start`."""
    with EMULATOR.locked():
        removed, whole, found = _examine(backing, points)
        socket, facts = _running(whole)
        if facts is not None:
            _compare(wanted, facts)
            _join(socket, found)
            return Started(socket, found, False, removed)
        _launch(_configure(whole, found, socket, wanted), socket)
        return Started(socket, found, True, removed)


def prepare(
    backing: str | os.PathLike[str], points: list[Any], wanted: Wanted
) -> tuple[dict[str, Any], list[Path]]:
    """Prepare the start of a server; return its configuration and the removed stale mounts.

    Raises
    ------
    OptionError
        If a server of this backing directory is already running.
    """
    with EMULATOR.locked():
        removed, whole, found = _examine(backing, points)
        socket, facts = _running(whole)
        if facts is not None:
            raise option_error(
                f"{whole} is mounted already, by process {facts['pid']}",
                "join it without --foreground, or unmount all its mounts first",
            )
        socket.unlink(missing_ok=True)
        return _configure(whole, found, socket, wanted), removed


def _examine(backing: str | os.PathLike[str], points: list[Any]) -> tuple[list[Path], Path, list[Path]]:
    """Remove stale mounts and check the arguments.

    Return the removed mounts, the backing directory and the mount points.
    """
    removed = remove_stale()
    checks.check_fuse()
    whole = checks.check_backing(backing)
    return removed, whole, checks.check_points(whole, points)


def _running(backing: Path) -> tuple[Path, dict[str, Any] | None]:
    """Return the socket of the server of a backing directory, and its facts if it runs.

    Also queries the servers of all mounts: one may have been started with another runtime
    directory.
    """
    ours = EMULATOR.socket(os.fsencode(backing))
    for socket in dict.fromkeys(
        [ours, *(mount.socket for mount in list_mounts() if EMULATOR.is_own(mount.socket))]
    ):
        try:
            facts = EMULATOR.ask(socket, {"command": "ping"})
        except GoneError:
            continue
        if facts["backing"] == os.fspath(backing):
            return socket, facts
    return ours, None


def _join(socket: Path, points: list[Path]) -> None:
    """Make a running server mount new points: all or none."""
    done = []
    try:
        for point in points:
            EMULATOR.ask(socket, {"command": "mount", "mount": os.fspath(point)})
            done.append(point)
    except BaseException:
        for point in done:
            with suppress(StorageError):
                EMULATOR.ask(socket, {"command": "unmount", "mount": os.fspath(point)})
        raise


def _compare(wanted: Wanted, facts: Mapping[str, Any]) -> None:
    """Check that a running server agrees with the given arguments."""
    running = facts["spec"]
    differences = []
    if wanted.names_a_file_system():
        asked = wanted.resolve(running)
        differences = [
            (name, running.get(name), value)
            for name, value in asked.items()
            if name not in _TEXTS and value != running.get(name)
        ]
    if wanted.time_scale is not None:
        factor = _time_scale(wanted.time_scale, running)
        if factor != facts["time_scale"]:
            differences.append(("time_scale", facts["time_scale"], factor))
    if wanted.seed is not None and "seed" in facts and wanted.seed != facts["seed"]:
        differences.append(("seed", facts["seed"], wanted.seed))
    hint = "leave the options away to join it, or unmount all its mounts first"
    if differences:
        text = "; ".join(f"{name} is {there}, asked for {asked}" for name, there, asked in differences)
        raise option_error(f"{facts['backing']} is mounted with other numbers: {text}", hint)
    if wanted.events is not None:
        raise option_error(
            f"{facts['backing']} is mounted already; an event log is begun when the first mount is made", hint
        )


def _time_scale(wanted: float | str | None, spec: Mapping[str, Any]) -> float:
    if wanted == "auto":
        return float(_native.pfs_suggested_time_scale(json.dumps(dict(spec))))
    return 1.0 if wanted is None else float(wanted)


def _configure(backing: Path, points: list[Path], socket: Path, wanted: Wanted) -> dict[str, Any]:
    """Return the configuration of a server."""
    spec = wanted.resolve()
    return {
        "backing": os.fspath(backing),
        "mounts": [os.fspath(point) for point in points],
        "spec": spec,
        "time_scale": _time_scale(wanted.time_scale, spec),
        "seed": wanted.seed or 0,
        "socket": os.fspath(socket),
        "events": None if wanted.events is None else os.fspath(wanted.events.absolute()),
        "request_threads": 2,
        "reply_threads": 2,
    }


def _launch(configuration: dict[str, Any], socket: Path) -> None:
    """Start the process of a server and wait until it has mounted everything."""
    expected = set(map(Path, configuration["mounts"]))

    def is_up(facts: dict[str, Any]) -> bool:
        return set(map(Path, facts["mounts"])) >= expected and expected <= {
            entry.point for entry in entries() if entry.type == TYPE
        }

    EMULATOR.launch(configuration, socket, attempt=f"mount {configuration['backing']}", is_up=is_up)
