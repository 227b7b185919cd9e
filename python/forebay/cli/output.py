"""What commands print: one JSON object or plain text on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from forebay._text import bytes_text

__all__ = ["COLUMNS", "bytes_text", "print_json", "print_pairs", "print_table", "print_wrapped", "progress"]

# How long something runs before a bar appears [s].
PATIENCE_S = 2.0
# A terminal that no one has widened.
COLUMNS = 80


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(value))


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line, the values aligned."""
    rows = [(name, str(value)) for name, value in pairs]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        click.echo(f"{name:{width}}  {value}".rstrip())


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]], columns: int | None = None) -> None:
    """Print columns of equal width, the first to the left, the others to the right.

    What has no place in so many ``columns`` of a terminal follows below, with the first column
    again.
    """
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    parts: list[list[int]] = [[]]
    used = widths[0]
    for column in range(1, len(header)):
        if columns is not None and parts[-1] and used + 2 + widths[column] > columns:
            parts.append([])
            used = widths[0]
        parts[-1].append(column)
        used += 2 + widths[column]
    for number, part in enumerate(parts):
        if number:
            click.echo()
        for row in cells:
            if number and not any(row[column] for column in part):
                continue
            line = [row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in part)]
            click.echo("  ".join(line).rstrip())


def print_wrapped(text: str, columns: int = COLUMNS) -> None:
    """Print a line, broken between words, or several lines as they are."""
    is_one = "\n" not in text
    wrapped = textwrap.fill(
        text, columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    click.echo(wrapped if is_one else text)


def _silent(_what: str, _done: int, _total: int) -> None:
    """Report nothing."""


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show how far something is: a bar on stderr, after two seconds, on a terminal only.

    Yields a function of (what, done, all); ``all`` may be 0 where it is not known.
    """
    if not sys.stderr.isatty():
        yield _silent
        return
    start = time.monotonic()
    bar: Any = None
    tasks: dict[str, Any] = {}

    def report(what: str, done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            if time.monotonic() - start < PATIENCE_S:
                return
            # rich takes longer to import than most commands run.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
            )
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            bar.start()
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=None)
        # Without an end to compare with, the number itself says how far it is.
        description = what if total else f"{what}: {done:,}"
        bar.update(tasks[what], description=description, completed=done, total=total or None)

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()
