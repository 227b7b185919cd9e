"""``forebay limit``: what a storage can do."""

from __future__ import annotations

from typing import Any

import click

from forebay.cli.commands import as_json
from forebay.cli.numbers import Finite

KINDS = ("sequential", "random", "direct", "mmap")
BLOCKS = ("4KiB", "64KiB", "1MiB", "4MiB")


def _blocks(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> list[int]:
    from forebay._core import OptionError
    from forebay.options import parse_bytes

    try:
        return [parse_bytes("--block", text) for text in texts or BLOCKS]
    except OptionError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("path", type=click.Path())
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(KINDS),
    help="What to measure; several times for several. All.",
)
@click.option(
    "--block",
    "blocks",
    multiple=True,
    metavar="SIZE",
    callback=_blocks,
    help=f"Block size; several times for several. {', '.join(BLOCKS)}.",
)
@click.option("--seconds", default=0.5, show_default=True, type=Finite(0.01), help="Time per figure.")
@click.option(
    "--threads", default=1, show_default=True, type=click.IntRange(1, 64), help="Threads that read at once."
)
@click.option("--cold", is_flag=True, help="Empty the page cache of the file first, and read nothing twice.")
@as_json
def command(
    path: str,
    kinds: tuple[str, ...],
    blocks: list[int],
    seconds: float,
    threads: int,
    cold: bool,
    as_json: bool,
) -> None:
    """Measure how fast the file at PATH can be read: MiB/s by kind of access and block size.

    PATH is only read: a file, or a directory whose largest file is taken. Bytes that are in the
    page cache come from there, unless `direct` goes past it or --cold empties it first.
    """
    from forebay import _native
    from forebay.cli.output import bytes_text, print_json, print_table, progress

    kinds = kinds or KINDS
    figures: list[dict[str, Any]] = []
    with progress() as report:
        for block in blocks:
            for kind in kinds:
                report("measuring", len(figures), len(blocks) * len(kinds))
                figures.append(
                    _native.limit(
                        path, block_bytes=block, seconds=seconds, kind=kind, threads=threads, cold=cold
                    )
                )
    if as_json:
        print_json({"path": path, "figures": figures})
        return
    rates = {(figure["kind"], figure["block_bytes"]): figure["rate_mib_s"] for figure in figures}
    rows = [(bytes_text(block), *(_rate(rates.get((kind, block))) for kind in kinds)) for block in blocks]
    print_table(("MiB/s", *kinds), rows)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}"
