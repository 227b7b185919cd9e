"""Load of each server of an emulated file system: bytes, and the time it worked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_lab.report import numbers
from forebay_lab.report.data import number
from forebay_lab.report.figures.base import Drawing, Missing, grid, panel
from forebay_lab.report.svg import Plot

if TYPE_CHECKING:
    from forebay_lab.report.data import Result, Row

__all__ = ["draw"]


def draw(result: Result) -> Drawing | Missing:
    """Draw one panel per row; all have the same scale."""
    rows = [(row, servers) for row in result.drawn if (servers := _servers(row))]
    if not rows:
        return Missing(
            "There are no counters of servers: the dataset was not on an emulated file system (forebay pfs)."
        )
    most = max(_bytes(server) for _, servers in rows for server in servers)
    panels = [panel(row.name, _note(row, servers), _panel(row, servers, most)) for row, servers in rows]
    lead = (
        "Bytes that each server moved in the repetition shown; the line is their mean. The note gives the share of the time in "
        "which servers worked, and how far the most loaded one is above the mean. All panels have the same scale."
    )
    return Drawing(lead, grid(panels))


def _servers(row: Row) -> list[dict[str, Any]]:
    found = row.pfs.get("servers")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _bytes(server: dict[str, Any]) -> float:
    return (number(server.get("read_bytes")) or 0.0) + (number(server.get("written_bytes")) or 0.0)


def _note(row: Row, servers: list[dict[str, Any]]) -> str:
    sizes = [_bytes(server) for server in servers]
    mean = sum(sizes) / len(sizes)
    parts = [f"{numbers.text('bytes', sum(sizes))} from {len(servers)} servers"]
    seconds = number(row.pfs.get("model_seconds")) or number(row.shown.get("wall_seconds"))
    if seconds:
        busy = sum(number(server.get("busy_seconds")) or 0.0 for server in servers) / len(servers) / seconds
        parts.append(f"busy {numbers.percent(busy)} of the time")
    if mean:
        parts.append(f"most loaded {max(sizes) / mean:.2f} × mean")
    seeks = sum(number(server.get("seeks")) or 0.0 for server in servers)
    if seeks:
        parts.append(f"{numbers.digits(seeks)} seeks")
    return ", ".join(parts)


def _panel(row: Row, servers: list[dict[str, Any]], most: float) -> str:
    plot = Plot(f"Bytes of each server in {row.name}", height=190)
    plot.vertical(most, numbers.choose("bytes", [most]), "moved")
    each = plot.inner_width / len(servers)
    # A label of three digits takes about 26 units.
    label_every = max(1, int(-(-26 // each)))
    for at, server in enumerate(servers):
        size = _bytes(server)
        middle = plot.left + (at + 0.5) * each
        width = min(each * 0.75, 44)
        name = int(number(server.get("server")) or 0)
        busy, queue = (number(server.get(key)) or 0.0 for key in ("busy_seconds", "queue_seconds"))
        tip = (
            f"server {name}: {numbers.text('bytes', size)}, busy {numbers.text('seconds', busy)}, "
            f"requests waited {numbers.text('seconds', queue)} in all"
        )
        y = plot.y(size)
        plot.bar(middle - width / 2, y, width, plot.base - y, "var(--server)", tip)
        if at % label_every == 0:
            plot.text(middle, plot.base + 15, name, "tick", "middle")
    mean = sum(map(_bytes, servers)) / len(servers)
    plot.line(
        plot.left,
        plot.y(mean),
        plot.left + plot.inner_width,
        plot.y(mean),
        "mean",
        f"mean {numbers.text('bytes', mean)}",
    )
    plot.text(plot.left + plot.inner_width / 2, plot.height - 5, "server", "axis", "middle")
    return plot.render()
