"""``forebay cache``: what the storage tiers hold."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from forebay.cli.commands import Group, as_json

# Sources of a tier that `ls` lists.
_LISTED = 20

_PIECE_BYTES = 64 << 10

_STATES = {
    "open": "takes copies and serves them",
    "full": "takes no more copies, serves those that it has",
    "out": "not used: it failed, or its directory was deleted",
    "stored": "no daemon of this user uses it now",
}

_tiers = click.argument("tiers", nargs=-1, metavar="[TIER]...", type=click.Path(path_type=Path))


@click.group(cls=Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@as_json
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Show, check or delete what the storage tiers hold, and sidecars; list it without a command.

    TIER is a directory as in `tiers=`. Without one, the commands take the tiers of the running tier
    daemon, of FOREBAY_TIERS and of the configuration files.
    """
    if context.invoked_subcommand is None:
        context.invoke(ls, tiers=(), as_json=as_json)


@command.command("ls")
@_tiers
@as_json
def ls(tiers: tuple[Path, ...], as_json: bool) -> None:
    """List the copies of each tier by source; without TIER, also the sidecars of indexes."""
    from forebay.cli.output import bytes_text, print_json, print_pairs, print_table

    daemon = _daemon()
    levels = _levels(tiers, daemon)
    running = {"pid": daemon["pid"], "clients": daemon["clients"]} if daemon else None
    kept = [] if tiers else _sidecars()
    if as_json:
        print_json({"levels": levels, "daemon": running, "sidecars": kept})
        return
    if running is None:
        click.echo(_NO_DAEMON)
    else:
        click.echo(f"tier daemon: process {running['pid']}, used by {running['clients']} process(es)")
    if not levels:
        click.echo("no tier holds copies of this user")
    for level in levels:
        click.echo()
        quota = f" of {bytes_text(level['quota_bytes'])}" if level["quota_bytes"] else ""
        print_pairs(
            (
                ("tier", level["name"]),
                ("directory", level["path"]),
                ("kind", "memory" if level["is_memory"] else "disk"),
                ("state", f"{level['state']}: {_STATES[level['state']]}"),
                ("taken", f"{bytes_text(level['taken_bytes'])}{quota}, in {level['slabs']} slab(s)"),
            )
        )
        if level["sources"]:
            print_table(
                ("source", "size", "held", "last used", "in use"),
                [
                    (
                        source["path"],
                        bytes_text(source["bytes"]),
                        f"{min(1.0, source['pieces'] * _PIECE_BYTES / max(source['bytes'], 1)):.0%}",
                        time.strftime("%Y-%m-%d %H:%M", time.localtime(source["used_unix_s"])),
                        "yes" if source["is_used"] else "no",
                    )
                    for source in level["sources"][:_LISTED]
                ],
            )
        if (more := len(level["sources"]) - _LISTED) > 0:
            click.echo(f"and {more} more sources (--json lists all)")
        if level["roots"]:
            print_table(
                ("source of forebay run", "files held", "size", "last used", "in use"),
                [
                    (
                        root["path"],
                        f"{root['files']:,}",
                        bytes_text(root["bytes"]),
                        time.strftime("%Y-%m-%d %H:%M", time.localtime(root["used_unix_s"])),
                        "yes" if root["is_used"] else "no",
                    )
                    for root in level["roots"][:_LISTED]
                ],
            )
        if (more := len(level["roots"]) - _LISTED) > 0:
            click.echo(f"and {more} more sources of forebay run (--json lists all)")
    if kept:
        click.echo()
        size = bytes_text(sum(one["bytes"] for one in kept))
        click.echo(f"sidecars of indexes: {len(kept)}, {size}, in {Path(kept[0]['path']).parent}")
        print_table(
            ("dataset", "format", "samples", "size", "written"),
            [
                (
                    one["names"][0] + (f" and {one['files'] - 1} more" if one["files"] > 1 else "")
                    if one["names"]
                    else "(not readable)",
                    one["format"] or "-",
                    f"{one['samples']:,}",
                    bytes_text(one["bytes"]),
                    time.strftime("%Y-%m-%d %H:%M", time.localtime(one["written_unix_s"])),
                )
                for one in kept[:_LISTED]
            ],
        )
        if (more := len(kept) - _LISTED) > 0:
            click.echo(f"and {more} more sidecars (--json lists all)")


@command.command("verify")
@_tiers
@click.option(
    "--against-source",
    is_flag=True,
    help="Compare the copies with the bytes of their sources instead: reads as much of the sources as is copied.",
)
@click.option("--drop", is_flag=True, help="Drop copies that differ from their sources.")
@as_json
def verify(tiers: tuple[Path, ...], against_source: bool, drop: bool, as_json: bool) -> None:
    """Compare all copies with their checksums; exit with 1 if any is damaged.

    Example: forebay cache verify --against-source --drop
    """
    from forebay import _native
    from forebay.cli.output import bytes_text, print_json

    if drop and not against_source:
        raise click.UsageError("--drop is for --against-source")
    paths = _paths(tiers, _daemon())
    if against_source:
        _compare(paths, drop, as_json)
        return
    found = _each_tier(paths, _native.verify_tier)
    if as_json:
        print_json({"tiers": found})
    else:
        for name, verified in found.items():
            click.echo(
                f"{name}: {verified['pieces']} pieces and files, {bytes_text(verified['bytes'])}, "
                f"{len(verified['damaged'])} damaged"
            )
            if lost := verified["lost_log_bytes"]:
                click.echo(f"{name}: the last {lost} bytes of the log are no whole record and are ignored")
            for piece in verified["damaged"]:
                click.echo(
                    f"{piece['slab']}: at byte {piece['offset']}: {piece['problem']} (copy of {piece['source']})"
                )
        if not found:
            click.echo("no tier holds copies of this user")
    if any(verified["damaged"] for verified in found.values()):
        raise SystemExit(1)


def _each_tier(paths: list[Path], check: Callable[..., str | None]) -> dict[str, Any]:
    """Check tiers, and return what was found of those that hold copies."""
    from forebay.cli.output import progress

    found: dict[str, Any] = {}
    with progress() as report:
        for tier in paths:
            answer = check(tier, progress=report)
            if answer is not None:
                found[str(tier)] = json.loads(answer)
    return found


def _compare(paths: list[Path], drop: bool, as_json: bool) -> None:
    """Compare the copies of tiers with their sources."""
    from forebay import _native
    from forebay.cli.output import bytes_text, print_json

    found = _each_tier(paths, _native.compare_tier)
    for name, compared in found.items():
        differing = compared["differing"]
        compared["dropped"] = bool(drop and differing)
        if drop and differing:
            keys = [one["key"] for one in differing if one["key"] is not None]
            files = [one["file"] for one in differing if one["file"] is not None]
            _native.drop_copies_of_tier(Path(name), keys, files)
    if as_json:
        print_json({"tiers": found})
    else:
        for name, compared in found.items():
            click.echo(
                f"{name}: {compared['pieces']} pieces and files, {bytes_text(compared['bytes'])} compared, "
                f"{len(compared['differing'])} source(s) differ"
            )
            for one in compared["differing"]:
                what = "its copy differs" if one["key"] is None else f"{one['pieces']} piece(s) differ"
                click.echo(f"{one['source']}: {what}, first at byte {one['offset']}")
            if outdated := len(compared["outdated"]):
                click.echo(f"{name}: {outdated} source(s) changed or are gone: their copies are not used")
            for folder in compared["folders"]:
                click.echo(
                    f"{folder}: not compared: a folder of one file per sample (a loader compares a sample)"
                )
            if compared["dropped"]:
                click.echo(f"{name}: the copies that differ are dropped")
            elif compared["differing"]:
                click.echo("hint: --drop drops the copies that differ", err=True)
        if not found:
            click.echo("no tier holds copies of this user")
    if any(compared["differing"] for compared in found.values()):
        raise SystemExit(1)


@command.command("clear")
@_tiers
@click.option(
    "--source",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Delete only copies of the data at or below PATH, which need not exist any more.",
)
@as_json
def clear(tiers: tuple[Path, ...], source: Path | None, as_json: bool) -> None:
    """Delete the copies that no loader and no run uses; without TIER, also the sidecars of indexes.

    Example: forebay cache clear --source /lustre/train.tfrecord
    """
    from forebay import _native
    from forebay.cli.output import bytes_text, print_json, progress

    paths = _paths(tiers, _daemon())
    real = None if source is None else Path(os.path.realpath(source))
    with progress() as report:
        freed = _native.clear_tiers(paths, source=real, progress=report)
    # Loaders have read theirs: the next one makes it again.
    kept_sidecars = [] if tiers or source is not None else _sidecars()
    for one in kept_sidecars:
        Path(one["path"]).unlink(missing_ok=True)
    kept = {
        level["name"]: used
        for level in _levels(tiers, _daemon())
        if (
            used := [
                one["path"]
                for one in (*level["sources"], *level["roots"])
                if one["is_used"] and (real is None or Path(one["path"]).is_relative_to(real))
            ]
        )
    }
    if as_json:
        print_json({"freed_bytes": freed, "in_use": kept, "sidecars": len(kept_sidecars)})
        return
    click.echo(f"{bytes_text(freed)} given back")
    if kept_sidecars:
        click.echo(f"{len(kept_sidecars)} sidecar(s) of indexes deleted")
    for name, sources in kept.items():
        click.echo(f"{name}: kept the copies of {len(sources)} source(s) that are in use")


@command.command("stop")
@as_json
def stop(as_json: bool) -> None:
    """End the tier daemon, unless a loader uses it; exit with 1 if one does."""
    from forebay import _native
    from forebay.cli.output import print_json

    daemon = _daemon()
    clients = None if daemon is None else _native.stop_tiers()
    pid = None if daemon is None or clients is None else daemon["pid"]
    others = _daemons_elsewhere(pid)
    if as_json:
        print_json({"daemon": clients is not None, "clients": clients or 0, "pid": pid, "others": others})
    elif daemon is None or clients is None:
        click.echo(_NO_DAEMON)
    elif clients:
        click.echo(f"process {daemon['pid']} goes on: {clients} process(es) use it", err=True)
    else:
        names = ", ".join(level["name"] for level in daemon["levels"]) or "none"
        click.echo(f"the tier daemon, process {daemon['pid']}, ends (tiers: {names})")
    if not as_json:
        for one in others:
            click.echo(
                f"process {one['pid']} is a tier daemon of this user, too, with another runtime directory\n"
                f"hint: FOREBAY_RUNTIME_DIR={one['runtime_directory']} forebay cache stop",
                err=True,
            )
    if clients:
        raise SystemExit(1)


_NO_DAEMON = "no tier daemon of this user runs on this node"


def _daemon() -> dict[str, Any] | None:
    """Return what the running daemon knows."""
    from forebay import _native

    known = _native.tiers_usage()
    return None if known is None else dict(json.loads(known))


def _daemons_elsewhere(own: int | None) -> list[dict[str, Any]]:
    """Return this user's tier daemons that serve another runtime directory."""
    from forebay import _native

    found = []
    here = str(_native.runtime_directory(make=False))
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not process.name.isdigit() or process.stat().st_uid != os.geteuid():
                continue
            if b"forebay.tools.tiers" not in (process / "cmdline").read_bytes().split(b"\0"):
                continue
            variables = (process / "environ").read_bytes().split(b"\0")
            named = [one for one in variables if one.startswith(b"FOREBAY_RUNTIME_DIR=")]
            place = os.fsdecode(named[0].partition(b"=")[2]) if named else None
            if place is not None and place != here and int(process.name) != own:
                found.append({"pid": int(process.name), "runtime_directory": place})
    return sorted(found, key=lambda one: one["pid"])


def _sidecars() -> list[dict[str, Any]]:
    """Return the sidecars of indexes in the user's cache directory, the newest first."""
    from forebay import _native

    found = []
    directory = _native.sidecar_directory()
    with contextlib.suppress(OSError):
        for path in [] if directory is None else directory.glob("*.forebay"):
            stat = path.lstat()
            if path.is_symlink() or stat.st_uid != os.geteuid():
                continue
            facts: dict[str, Any] = {"format": None, "samples": 0, "files": 0, "names": []}
            facts |= json.loads(_native.describe_sidecar(path) or "{}")
            found.append(
                {"path": str(path), "bytes": stat.st_size, "written_unix_s": int(stat.st_mtime), **facts}
            )
    return sorted(found, key=lambda one: (-one["written_unix_s"], one["path"]))


def _paths(tiers: tuple[Path, ...], daemon: dict[str, Any] | None) -> list[Path]:
    """Return the tiers that are named, else those of the daemon and of the configuration.

    Raises
    ------
    StorageError
        If a tier that is named is no directory.
    """
    from forebay._core import StorageError
    from forebay.options import resolve

    for path in tiers:
        if not path.is_dir():
            number = errno.ENOTDIR if path.exists() else errno.ENOENT
            found = "another file" if path.exists() else "nothing"
            raise StorageError(
                f"tier {path}: expected a directory, found {found}", errno=number, filename=path
            )
    if tiers:
        return [path.absolute() for path in tiers]
    known = [Path(level["name"]) for level in (daemon or {"levels": []})["levels"]]
    configured = resolve({"tiers": None}, os.environ)["tiers"]
    known += [Path(os.path.abspath(tier.path)) for tier in configured]  # noqa: PTH100
    return list(dict.fromkeys(known))


def _levels(tiers: tuple[Path, ...], daemon: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return what each tier holds: as the daemon knows it, else as its log has it."""
    from forebay import _native

    live = {
        identity: level
        for level in (daemon or {"levels": []})["levels"]
        if (identity := _identity(level["path"]))
    }
    levels: dict[Any, dict[str, Any]] = {}
    for path in _paths(tiers, daemon):
        identity = _identity(path / f"forebay-{os.geteuid()}" / "v1")
        if identity in live:
            levels.setdefault(identity, live[identity])
        elif (stored := _native.stored_tier(path)) is not None:
            levels.setdefault(identity, json.loads(stored))
    return list(levels.values())


def _identity(path: str | Path) -> tuple[int, int] | None:
    """Return device and inode of a directory, which may have several names."""
    with contextlib.suppress(OSError):
        stat = Path(path).stat()
        return stat.st_dev, stat.st_ino
    return None
