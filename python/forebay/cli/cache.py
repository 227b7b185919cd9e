"""``forebay cache``: what the storage tiers hold."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
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
    """Show, check or delete what the storage tiers hold; list it without a command.

    TIER is a directory as in `tiers=`. Without one, the commands take the tiers of the running tier
    daemon, of FOREBAY_TIERS and of the configuration files.
    """
    if context.invoked_subcommand is None:
        context.invoke(ls, tiers=(), as_json=as_json)


@command.command("ls")
@_tiers
@as_json
def ls(tiers: tuple[Path, ...], as_json: bool) -> None:
    """List the copies of each tier by source."""
    from forebay.cli.output import bytes_text, print_json, print_pairs, print_table

    daemon = _daemon()
    levels = _levels(tiers, daemon)
    running = {"pid": daemon["pid"], "clients": daemon["clients"]} if daemon else None
    if as_json:
        print_json({"levels": levels, "daemon": running})
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


@command.command("verify")
@_tiers
@as_json
def verify(tiers: tuple[Path, ...], as_json: bool) -> None:
    """Compare all copies with their checksums; exit with 1 if any is damaged."""
    from forebay import _native
    from forebay.cli.output import bytes_text, print_json, progress

    found: dict[str, Any] = {}
    paths = _paths(tiers, _daemon())
    with progress() as report:
        for tier in paths:
            answer = _native.verify_tier(tier, progress=report)
            if answer is not None:
                found[str(tier)] = json.loads(answer)
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


@command.command("clear")
@_tiers
@as_json
def clear(tiers: tuple[Path, ...], as_json: bool) -> None:
    """Delete the copies that no loader and no run uses."""
    from forebay import _native
    from forebay.cli.output import bytes_text, print_json, progress

    paths = _paths(tiers, _daemon())
    with progress() as report:
        freed = _native.clear_tiers(paths, progress=report)
    kept = {
        level["name"]: used
        for level in _levels(tiers, _daemon())
        if (used := [one["path"] for one in (*level["sources"], *level["roots"]) if one["is_used"]])
    }
    if as_json:
        print_json({"freed_bytes": freed, "in_use": kept})
        return
    click.echo(f"{bytes_text(freed)} given back")
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
    if as_json:
        print_json({"daemon": clients is not None, "clients": clients or 0})
    elif daemon is None or clients is None:
        click.echo(_NO_DAEMON)
    elif clients:
        click.echo(f"process {daemon['pid']} goes on: {clients} process(es) use it", err=True)
    else:
        click.echo(f"process {daemon['pid']} ends")
    if clients:
        raise SystemExit(1)


_NO_DAEMON = "no tier daemon of this user runs on this node"


def _daemon() -> dict[str, Any] | None:
    """Return what the running daemon knows."""
    from forebay import _native

    known = _native.tiers_usage()
    return None if known is None else dict(json.loads(known))


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
