"""``forebay limit``: what a storage can do."""

from __future__ import annotations

from typing import Any

import click

from forebay.cli.commands import as_json
from forebay.cli.numbers import Finite, Whole

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
    help="Access kind; repeat for several.  [default: all]",
)
@click.option(
    "--block",
    "blocks",
    multiple=True,
    metavar="SIZE",
    callback=_blocks,
    help=f"Block size; repeat for several.  [default: {', '.join(BLOCKS)}]",
)
@click.option("--seconds", default=0.5, show_default=True, type=Finite(0.01), help="Seconds per measurement.")
@click.option(
    "--threads",
    default=1,
    show_default=True,
    type=Whole(1, 64),
    help="Threads that read in parallel, 1 to 64.",
)
@click.option("--cold", is_flag=True, help="Drop the file from the page cache first, and read no byte twice.")
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
    """Measure the read rate of the page cache, or of a storage with --cold, in MiB/s.

    PATH is a file, or a directory, of which the largest file is read, also of those below it. What
    is cached comes from the page cache; the kind `direct` bypasses it, and --cold drops the file
    from the page cache first. The table is by access kind and block size.
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
    if cold:
        click.echo(f"{path}: dropped from the page cache first, no byte read twice")
    else:
        click.echo(f"{path}: from the page cache, as far as it has the file; `direct` from the storage")
    print_table(("MiB/s", *kinds), rows)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}"
