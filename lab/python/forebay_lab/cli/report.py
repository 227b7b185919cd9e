"""``forebay report``: a page of a result of bench or demo, or of an event log."""

from __future__ import annotations

from pathlib import Path

import click

from forebay.cli.commands import as_json


@click.command()
@click.argument("source", metavar="RESULT|EVENTS", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="PAGE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Page to write.  [default: path of the source with the suffix .html]",
)
@as_json
def command(source: Path, output: Path | None, as_json: bool) -> None:
    """Write one self-contained HTML page from a result or an event log.

    RESULT is the output of `forebay bench --json` or `forebay demo --json`; EVENTS is a file that
    `forebay pfs mount --events` wrote.
    """
    from forebay._core import StorageError
    from forebay.cli.output import print_json
    from forebay_lab import write_page
    from forebay_lab.report import data, page

    output = output or source.with_suffix(".html")
    write_page.check(output)
    result = data.read(source)
    text = page.render(result)
    try:
        write_page.save(text, output)
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
