"""What a command with a result does with it: prints it, and writes its page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

__all__ = ["show_result"]


def show_result(result: dict[str, Any], table: ModuleType, *, as_json: bool, report: Path | None) -> None:
    """Print a result, as JSON or by the functions of a module ``table``, and write its page."""
    from forebay.cli.output import COLUMNS, print_json, print_table, print_wrapped

    if as_json:
        print_json(result)
    else:
        for line in table.lines_above(result):
            print_wrapped(line)
        print_table(table.header(result), table.rows(result), COLUMNS)
        for line in table.lines_below(result):
            print_wrapped(line)
    if report is not None:
        from forebay_lab.report import write

        write(result, report)
        if not as_json:
            click.echo(f"The same with pictures: {report}")
