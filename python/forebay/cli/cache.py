"""``forebay cache``: what the storage tiers hold."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click

from forebay.cli.commands import as_json

# Sources of a tier that `ls` lists.
_LISTED = 20

_tiers = click.argument("tiers", nargs=-1, metavar="[TIER]...", type=click.Path(path_type=Path))


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@as_json
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Show, check or delete what the storage tiers hold; list it without a command.

    TIER is a directory as in `tiers=`. Without one, the commands take those of the running tier
    daemon, and those of FOREBAY_TIERS and the configuration files.
    """
    if context.invoked_subcommand is None:
        context.invoke(ls, tiers=(), as_json=as_json)


@command.command("ls")
@_tiers
@as_json
def ls(tiers: tuple[Path, ...], as_json: bool) -> None:
    """List the copies of each tier by source."""
    from forebay.cli.output import bytes_text, print_json, print_pairs, print_table

    levels, daemon = _levels(tiers)
    if as_json:
        print_json({"levels": levels, "daemon": daemon})
        return
    if not levels:
        click.echo("no tier holds anything of this user")
    for number, level in enumerate(levels):
        if number:
            click.echo()
        quota = bytes_text(level["quota_bytes"]) if level["quota_bytes"] else "not known without a daemon"
        print_pairs(
            (
                ("tier", level["name"]),
                ("directory", level["path"]),
                ("kind", "memory" if level["is_memory"] else "disk"),
                ("state", level["state"]),
                ("taken", f"{bytes_text(level['taken_bytes'])} in {level['slabs']} slabs"),
                ("quota", quota),
            )
        )
        if level["sources"]:
            print_table(
                ("source", "size", "held", "last used", "in use"),
                [
                    (
                        source["path"],
                        bytes_text(source["bytes"]),
                        f"{min(1.0, source['pieces'] * 65536 / max(source['bytes'], 1)):.0%}",
                        time.strftime("%Y-%m-%d %H:%M", time.localtime(source["used_unix_s"])),
                        "yes" if source["is_used"] else "no",
                    )
                    for source in level["sources"][:_LISTED]
                ],
            )
        if (more := len(level["sources"]) - _LISTED) > 0:
            click.echo(f"and {more} more sources (--json lists all)")


@command.command("verify")
@_tiers
@as_json
def verify(tiers: tuple[Path, ...], as_json: bool) -> None:
    """Compare all copies with their checksums; exit with 1 if any is damaged."""
    from forebay import _native
    from forebay.cli.output import bytes_text, print_json, progress

    found: dict[str, Any] = {}
    with progress() as report:
        for tier in _paths(tiers):
            answer = _native.verify_tier(tier, progress=report)
            if answer is not None:
                found[str(tier)] = json.loads(answer)
    if as_json:
        print_json({"tiers": found})
    else:
        for name, verified in found.items():
            click.echo(
                f"{name}: {verified['pieces']} pieces, {bytes_text(verified['bytes'])}, "
                f"{len(verified['damaged'])} damaged"
            )
            for piece in verified["damaged"]:
                click.echo(
                    f"{piece['slab']}: at byte {piece['offset']}: {piece['problem']} (of {piece['source']})"
                )
        if not found:
            click.echo("no tier holds anything of this user")
    if any(verified["damaged"] for verified in found.values()):
        raise SystemExit(1)


@command.command("clear")
@_tiers
@as_json
def clear(tiers: tuple[Path, ...], as_json: bool) -> None:
    """Delete the copies that no loader uses.

    With a running daemon its tiers are cleared, else those that are named.
    """
    from forebay import _native
    from forebay.cli.output import bytes_text, print_json
    from forebay.options import Tier

    sizes = {str(tier.path): tier for tier in _configured()}
    asked = [sizes.get(str(path)) or Tier(path=path, size=1 << 60) for path in _paths(tiers)]
    freed = _native.clear_tiers(json.dumps([tier.facts() for tier in asked]))
    if as_json:
        print_json({"freed_bytes": freed})
    else:
        click.echo(f"{bytes_text(freed)} given back")


@command.command("stop")
@as_json
def stop(as_json: bool) -> None:
    """End the tier daemon, unless a loader uses it."""
    from forebay import _native
    from forebay.cli.output import print_json

    was_there = _native.stop_tiers()
    if as_json:
        print_json({"daemon": was_there})
    elif not was_there:
        click.echo("no tier daemon of this user runs on this node")


def _configured() -> tuple[Any, ...]:
    from forebay.options import resolve

    return tuple(resolve({"tiers": None}, os.environ)["tiers"])


def _daemon() -> dict[str, Any] | None:
    from forebay import _native

    known = _native.tiers_usage()
    return None if known is None else dict(json.loads(known))


def _paths(tiers: tuple[Path, ...]) -> list[Path]:
    """Return the tiers that are named, else those of the daemon and of the configuration."""
    if tiers:
        return [path.absolute() for path in tiers]
    known = [Path(level["name"]) for level in (_daemon() or {"levels": []})["levels"]]
    known += [Path(os.path.abspath(tier.path)) for tier in _configured()]  # noqa: PTH100
    return list(dict.fromkeys(known))


def _levels(tiers: tuple[Path, ...]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return what each tier holds, and the daemon's process and clients."""
    from forebay import _native

    known = _daemon()
    live = {level["name"]: level for level in known["levels"]} if known else {}
    levels = []
    for path in _paths(tiers):
        level = live.get(str(path))
        if level is None and (stored := _native.stored_tier(path)) is not None:
            level = json.loads(stored)
        if level is not None:
            levels.append(level)
    daemon = {"pid": known["pid"], "clients": known["clients"]} if known else None
    return levels, daemon
