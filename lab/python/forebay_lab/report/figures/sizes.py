"""Request sizes: how many requests, and how many bytes, came in which size."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from forebay_lab.report import numbers
from forebay_lab.report.figures.base import Drawing, Missing, grid, panel
from forebay_lab.report.svg import Plot, legend

if TYPE_CHECKING:
    from forebay_lab.report.data import Result, Row

__all__ = ["draw", "shares"]


def shares(sizes: dict[int, int]) -> dict[int, tuple[float, float]]:
    """Return, for each power of two, the shares of requests and of bytes up to its double."""
    requests: Counter[int] = Counter()
    bytes_: Counter[int] = Counter()
    for size, count in sizes.items():
        power = max(size, 1).bit_length() - 1
        requests[power] += count
        bytes_[power] += count * size
    all_requests, all_bytes = requests.total() or 1, bytes_.total() or 1
    return {power: (requests[power] / all_requests, bytes_[power] / all_bytes) for power in sorted(requests)}


def draw(result: Result) -> Drawing | Missing:
    """Draw one histogram per row, all over the same sizes."""
    rows = [row for row in result.rows if sum(row.sizes.values())]
    if not rows:
        return Missing(
            "There are no counters of requests: the dataset was not on an emulated file system (forebay pfs), "
            "or nothing was read from it."
        )
    powers = [power for row in rows for power in shares(row.sizes)]
    low, high = min(powers), max(powers)
    wide = len(rows) == 1
    panels = [
        panel(row.name if result.kind != "events" else "", _note(row), _panel(row, low, high, wide))
        for row in rows
    ]
    lead = (
        "Sizes of the requests that reached the file system. Bars on the left count requests, bars on the right the bytes that "
        "they asked for. A bar holds the sizes from its label up to twice that."
    )
    entries = (
        ("var(--requests)", "share of requests", "of all requests of the row"),
        ("var(--bytes)", "share of bytes", "of all bytes of the row"),
    )
    return Drawing(lead, grid(panels, "single" if wide else "") + legend(entries))


def _note(row: Row) -> str:
    count = sum(row.sizes.values())
    size = sum(size * times for size, times in row.sizes.items())
    mean = numbers.text("bytes", size / count)
    return f"{count:,} requests, {numbers.text('bytes', size)}, mean {mean}"


def _panel(row: Row, low: int, high: int, wide: bool) -> str:
    plot = Plot(f"Request sizes of {row.name}", width=940 if wide else 460, height=220)
    plot.vertical(1.0, numbers.Unit("%", 0.01), "share")
    each = plot.inner_width / (high - low + 1)
    width = min(each * 0.42, 26)
    # A label takes about 50 units.
    label_every = max(1, -(-50 // int(each)))
    found = shares(row.sizes)
    for power in range(low, high + 1):
        middle = plot.left + (power - low + 0.5) * each
        label = numbers.text("bytes", 2.0**power)
        if (power - low) % label_every == 0:
            plot.text(middle, plot.base + 15, label, "tick", "middle")
        requests, size = found.get(power, (0.0, 0.0))
        for share, x, colour, what in (
            (requests, middle - width, "var(--requests)", "requests"),
            (size, middle, "var(--bytes)", "bytes"),
        ):
            if share > 0:
                y = min(plot.y(share), plot.base - 1)
                upper = numbers.text("bytes", 2.0 ** (power + 1))
                plot.bar(
                    x,
                    y,
                    width,
                    plot.base - y,
                    colour,
                    f"{label} to {upper}: {numbers.percent(share, 2)} of the {what}",
                )
    plot.text(plot.left + plot.inner_width / 2, plot.height - 5, "request size", "axis", "middle")
    return plot.render()
