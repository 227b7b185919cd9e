"""``forebay top``: what running programs and loaders read from storage tiers."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

import click

from forebay._text import bytes_text
from forebay.cli.commands import as_json
from forebay.cli.numbers import Finite

_HEADER = ("source or tier", "opens", "served", "kept off", "rate", "copies", "taken", "of", "waiting")

_PIECE_BYTES = 64 << 10


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--once", is_flag=True, help="Print the runs once.  [default: if stdout is no terminal]")
@click.option(
    "--interval",
    type=Finite(0.1, 3600),
    default=1.0,
    metavar="S",
    help="Seconds between refreshes.  [default: 1]",
)
@as_json
def command(once: bool, interval: float, as_json: bool) -> None:
    """Show what programs under `forebay run` read from storage tiers, until Ctrl-C.

    Datasets that loaders read through tiers have a row each, with what the tiers hold of them; a
    loader counts what it reads itself (`loader.stats()`).

    Example: forebay top --interval 5
    """
    from forebay.cli.output import print_json, print_table

    if as_json:
        print_json({"runs": _runs(), "loaders": _loaders()})
    elif once or not sys.stdout.isatty():
        runs, loaders = _runs(), _loaders()
        if runs or loaders:
            print_table(_HEADER, _rows(runs or [], {}, 0.0) + _rows_of_loaders(loaders))
        else:
            click.echo(_nothing(runs))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _live(interval)


def _live(interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    before: dict[Any, float] = {}
    looked_at = time.monotonic()
    with Live(console=Console(), auto_refresh=False, screen=True) as live:
        while True:
            runs = _runs()
            now = time.monotonic()
            live.update(_table(runs, _loaders(), before, now - looked_at), refresh=True)
            before, looked_at = _kept_off(runs or []), now
            time.sleep(interval)


def _table(
    runs: list[dict[str, Any]] | None, loaders: list[dict[str, Any]], before: dict[Any, float], seconds: float
) -> Any:
    from rich.table import Table

    if not runs and not loaders:
        return _nothing(runs)
    table = Table(box=None)
    for column, name in enumerate(_HEADER):
        table.add_column(name, justify="right" if column else "left", overflow="ellipsis", no_wrap=True)
    for row in _rows(runs or [], before, seconds) + _rows_of_loaders(loaders):
        table.add_row(*row)
    return table


def _runs() -> list[dict[str, Any]] | None:
    """Return the runs of this user's tier daemon; None without a daemon."""
    from forebay import _native

    found: list[dict[str, Any]] | None = _native.run_usage()
    return found


def _loaders() -> list[dict[str, Any]]:
    """Return what tiers hold of the sources that loaders use now."""
    from forebay import _native

    daemon = json.loads(_native.tiers_usage() or '{"levels": []}')
    found: dict[str, dict[str, Any]] = {}
    for level in daemon["levels"]:
        for source in (one for one in level["sources"] if one["is_used"]):
            entry = found.setdefault(
                source["path"], {"path": source["path"], "bytes": source["bytes"], "tiers": []}
            )
            held = min(source["bytes"], source["pieces"] * _PIECE_BYTES)
            entry["tiers"].append({"name": level["name"], "held_bytes": held})
    return list(found.values())


def _rows_of_loaders(loaders: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each source that loaders use."""
    held = [sum(tier["held_bytes"] for tier in one["tiers"]) for one in loaders]
    return [
        (f"{one['path']} (loader)", "", "", "", "", "", bytes_text(taken), bytes_text(one["bytes"]), "")
        for one, taken in zip(loaders, held, strict=True)
    ]


def _nothing(runs: list[dict[str, Any]] | None) -> str:
    return (
        "no tier daemon of this user runs on this node"
        if runs is None
        else "no program runs, and no loader uses a tier"
    )


def _kept_off(runs: list[dict[str, Any]]) -> dict[Any, float]:
    """Return the bytes that each tier of each run kept off the source."""
    return {(number, level["name"]): level["bytes"] for number, level in _levels(runs)}


def _levels(runs: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    return [(number, level) for number, run in enumerate(runs) for level in run["levels"]]


def _rows(runs: list[dict[str, Any]], before: dict[Any, float], seconds: float) -> list[tuple[str, ...]]:
    """Return a row for each run, and one for each of its tiers, with rates since the last look."""
    rows: list[tuple[str, ...]] = []
    for number, run in enumerate(runs):
        rows.append(
            (
                " ".join(run["sources"]),
                f"{run['opens']:,}",
                f"{run['opens_served']:,}",
                bytes_text(sum(level["bytes"] for level in run["levels"])),
                "",
                f"{run['copied_files']:,}",
                "",
                "",
                f"{run['waiting_files'] + run['copying_files']:,}",
            )
        )
        for level in run["levels"]:
            known = before.get((number, level["name"]))
            is_known = known is not None and seconds > 0
            rate = f"{bytes_text((level['bytes'] - (known or 0)) / seconds)}/s" if is_known else ""
            rows.append(
                (
                    f"  {level['name']}" + ("" if level["state"] == "open" else f" ({level['state']})"),
                    "",
                    f"{level['opens']:,}",
                    bytes_text(level["bytes"]),
                    rate,
                    "",
                    bytes_text(level["taken_bytes"]),
                    bytes_text(level["quota_bytes"]),
                    "",
                )
            )
    return rows
