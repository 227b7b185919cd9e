"""Tables of a report: all rows of a bench, all nodes and files of an event log."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from forebay_lab.report import columns, numbers
from forebay_lab.report.data import dicts, number
from forebay_lab.report.svg import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forebay_lab.report.data import Result, Row

__all__ = ["epochs_table", "files_table", "nodes_table", "plain", "rows_table"]

_FILES_SHOWN = 20


def rows_table(result: Result) -> str:
    """Return the table of medians: a line per number, with its meaning, and a column per row."""
    rows = result.drawn
    head = "".join(f'<th scope="col">{_name(row)}</th>' for row in rows)
    body, group = [], ""
    shown = columns.DEMO if result.kind == "demo" else (*columns.COLUMNS, *columns.others(rows))
    for column in shown:
        values = [columns.value(row, column) for row in rows]
        known = [one for one in values if one is not None]
        if not known:
            continue
        if column.group != group:
            group = column.group
            body.append(
                f'<tr class="group"><th colspan="{len(rows) + 1}" scope="rowgroup">{escape(group)}</th></tr>'
            )
        unit = numbers.choose(column.kind, known)
        best = (max if column.better > 0 else min)(known) if column.better and len(set(known)) > 1 else None
        cells = "".join(
            _cell(row, column, one, unit, one is not None and one == best)
            for row, one in zip(rows, values, strict=True)
        )
        name = f"{column.title} [{unit.name}]" if unit.name else column.title
        body.append(
            f'<tr><th scope="row" title="{escape(column.key)}">{escape(name)}<small>{escape(column.meaning)}</small></th>'
            f"{cells}</tr>"
        )
    return f'<div class="scroll"><table><thead><tr><td></td>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _name(row: Row) -> str:
    # A break is allowed behind the parts of a name, so that long ones do not widen the table.
    name = escape(row.name).replace("@", "<wbr>@").replace("-", "-<wbr>")
    return f'{name} <small class="bad">replies late</small>' if row.late else name


def _cell(row: Row, column: columns.Column, value: float | None, unit: numbers.Unit, best: bool) -> str:
    if value is None:
        return "<td>–</td>"
    spread = columns.spread(row, column)
    small = (
        f"<small>{numbers.percent(spread, 1)}</small>"
        if spread and spread >= 0.0005
        else "<small>&nbsp;</small>"
    )
    return (
        f'<td data-row="{escape(row.name)}" data-key="{escape(column.key)}" data-value="{value!r}"'
        f"{' class=best' if best else ''}>{unit.digits(value)}{small}</td>"
    )


def epochs_table(rows: Iterable[Row]) -> str:
    """Make the table of the epochs of each row of a bench, of the repetition that pictures show."""
    lines: list[tuple[str | tuple[float, str], ...]] = []
    for row in rows:
        for at, epoch in enumerate(dicts(row.shown.get("by_epoch"))):
            counted = epoch.get("pfs")
            pfs = counted if isinstance(counted, dict) else {}
            cells = [
                (math.nan, "–") if value is None else (value, numbers.text(kind, value))
                for kind, value in (
                    ("seconds", number(epoch.get("seconds"))),
                    ("seconds", number(epoch.get("exposed_seconds"))),
                    ("bytes", number(epoch.get("requested_bytes"))),
                    ("count", number(pfs.get("reads"))),
                    ("bytes", number(pfs.get("read_bytes"))),
                )
            ]
            lines.append((f"{row.name}, epoch {at}", *cells))
    head = (
        ("", ""),
        ("time", "from the end of the epoch before; the first one has the start-up"),
        ("exposed", "waiting for batches, mean of the ranks"),
        ("requested", "bytes of the samples that the ranks got"),
        ("requests", "that reached the emulated file system meanwhile, reads ahead included"),
        ("fetched", "bytes of these requests"),
    )
    return plain(head, lines)


def nodes_table(result: Result) -> str:
    """Make the table of the nodes of an event log."""
    lines = []
    for name, node in result.nodes.items():
        latencies = sorted(node.latencies_s)
        middle, high = (
            latencies[min(len(latencies) - 1, int(len(latencies) * share))] for share in (0.5, 0.99)
        )
        lines.append(
            (
                f"node {name}",
                (node.reads, f"{node.reads:,}"),
                (node.read_bytes, numbers.text("bytes", node.read_bytes)),
                (node.read_bytes / node.reads, numbers.text("bytes", node.read_bytes / node.reads)),
                (node.sequential_reads / node.reads, numbers.percent(node.sequential_reads / node.reads, 1)),
                (middle, numbers.text("seconds", middle)),
                (high, numbers.text("seconds", high)),
            )
        )
    head = (
        ("", ""),
        ("requests", "requests of this node that reached the file system"),
        ("bytes", "what they asked for"),
        ("mean size", "bytes over requests"),
        (
            "sequential",
            "share of requests that begin where the node's last one of that file ended, or at its start",
        ),
        ("latency, half", "half of the requests took at most this long, by the model"),
        ("latency, 99 %", "99 % of the requests took at most this long, by the model"),
    )
    return plain(head, lines)


def files_table(result: Result) -> str:
    """Make the table of the most read files of an event log."""
    files = sorted(result.files.items(), key=lambda one: -one[1][1])
    lines = [
        (name, (reads, f"{reads:,}"), (size, numbers.text("bytes", size)))
        for name, (reads, size) in files[:_FILES_SHOWN]
    ]
    head = (("", ""), ("requests", "requests for this file, of all nodes"), ("bytes", "what they asked for"))
    more = len(files) - _FILES_SHOWN
    note = f'<p class="soft small">and {more:,} more files</p>' if more > 0 else ""
    return plain(head, lines) + note


def plain(head: Sequence[tuple[str, str]], lines: Iterable[tuple[str | tuple[float, str], ...]]) -> str:
    """Return a table of titles with meanings, and of lines: a name, then values as text."""
    titles = "".join(
        f'<th scope="col">{escape(title)}<small>{escape(meaning)}</small></th>' if title else "<td></td>"
        for title, meaning in head
    )
    body = []
    for first, *cells in lines:
        values = "".join(
            f'<td data-value="{number(one[0])!r}">{escape(one[1])}</td>'
            for one in cells
            if isinstance(one, tuple)
        )
        body.append(f'<tr><th scope="row">{escape(first)}</th>{values}</tr>')
    return (
        f'<div class="scroll"><table class="explained"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
