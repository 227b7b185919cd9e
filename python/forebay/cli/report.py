"""``forebay report``: a page of what a bench measured, or an emulated file system was asked for."""

from __future__ import annotations

from pathlib import Path

import click

from forebay.cli.commands import as_json


@click.command()
@click.argument("source", metavar="BENCH|EVENTS", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="PAGE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the page is written. Default: beside the source, with the ending .html.",
)
@as_json
def command(source: Path, output: Path | None, as_json: bool) -> None:
    """Make one HTML page, which needs nothing but itself, from what `forebay bench --json` printed, or from an event log.

    EVENTS is what `forebay pfs mount --events` wrote.
    """
    from forebay._core import StorageError
    from forebay.cli.output import print_json
    from forebay.tools import write_page as _page
    from forebay.tools.report import data, page

    output = output or source.with_suffix(".html")
    _page.check(output)
    result = data.read(source)
    text = page.render(result)
    try:
        _page.save(text, output)
    except OSError as error:
        raise StorageError(
            f"report: writing {output}: {error.strerror or error}", errno=error.errno, filename=output
        ) from error
    for warning in result.warnings:
        click.echo(f"forebay: warning: {warning}", err=True)
    if as_json:
        facts = {"kind": result.kind, "rows": len(result.rows), "warnings": result.warnings}
        print_json({"source": str(source), "output": str(output), **facts})
    else:
        click.echo(f"wrote {output}")
