"""File offset over time: the figure of the study on access patterns.

Each request is a stroke from its first to its last byte at the time it reached the file system, in
the colour of its node. Several files stand one above the other, in the order of their names.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from forebay_lab.report import numbers
from forebay_lab.report.figures.base import Drawing, Missing, grid, panel
from forebay_lab.report.svg import Plot, node_colour, node_legend

if TYPE_CHECKING:
    from forebay_lab.report.data import Event, Result, Row

__all__ = ["draw"]

_SMALL = 0.01
"""The figure omits files below this share of the largest: under three units of its height."""


def draw(result: Result) -> Drawing | Missing:
    """Draw one panel per row."""
    rows = [row for row in result.rows if row.events]
    if not rows:
        return Missing(
            "There are no events: the dataset was not on an emulated file system (forebay pfs), or nothing was read from it."
        )
    ends: dict[str, int] = {}
    for row in rows:
        for event in row.events:
            ends[event.file] = max(ends.get(event.file, 0), event.offset + event.length)
    largest = max(ends.values())
    small = sorted(file for file in ends if ends[file] < _SMALL * largest)
    starts: dict[str, int] = {}
    whole = 0
    for file in sorted(ends.keys() - set(small)):
        starts[file] = whole
        whole += ends[file]
    wide = len(rows) == 1
    panels = [panel(_title(row, result), _note(row), _panel(row, starts, whole, wide)) for row in rows]
    nodes = {event.node for row in rows for event in row.events}
    several = ""
    if len(starts) > 1:
        several = f" {len(starts):,} files stand one above the other, in the order of their names."
    if small:
        more = f" and {len(small) - 3:,} more" if len(small) > 3 else ""
        several += f" Too small to be seen: {', '.join(small[:3])}{more}."
    without = [row.name for row in result.drawn if not row.events]
    missing = f" Nothing reached the file system in: {', '.join(without)}." * bool(without)
    lead = (
        "Each stroke is a request as it reached the file system, from its first byte to its last, in the colour of its node. "
        f"A line that rises without gaps is read in order; strokes all over are seeks. Time begins at the first request."
        f"{several}{missing}"
    )
    return Drawing(lead, grid(panels, "single" if wide else "") + node_legend(nodes))


def _title(row: Row, result: Result) -> str:
    return row.name if result.kind != "events" else ""


def _note(row: Row) -> str:
    if len(row.events) < row.event_count:
        return f"{len(row.events):,} of {row.event_count:,} requests, evenly chosen"
    return f"{len(row.events):,} requests"


def _panel(row: Row, starts: dict[str, int], whole: int, wide: bool) -> str:
    drawn = [event for event in row.events if event.file in starts]
    first = min(event.time_s for event in row.events)
    last = max(event.time_s for event in row.events)
    plot = Plot(
        f"File offset over time of {row.name}",
        width=940 if wide else 460,
        height=380 if wide else 250,
        left=60,
    )
    plot.horizontal(last - first, numbers.choose("seconds", [last - first]), "time")
    plot.vertical(
        whole, numbers.choose("bytes", [whole]), "file offset" if len(starts) == 1 else "offset in all files"
    )
    strokes: defaultdict[int, list[str]] = defaultdict(list)
    for event in drawn:
        strokes[event.node].append(_stroke(plot, event, first, starts))
    for node in sorted(strokes):
        tip = f"node {node}: {len(strokes[node]):,} requests shown"
        plot.path("".join(strokes[node]), node_colour(node), "stroke", tip)
    return plot.render()


def _stroke(plot: Plot, event: Event, first: float, starts: dict[str, int]) -> str:
    low = starts[event.file] + event.offset
    x, y = plot.x(event.time_s - first), plot.y(low)
    return f"M{x:.1f} {y:.1f}v{plot.y(low + event.length) - y:.1f}"
