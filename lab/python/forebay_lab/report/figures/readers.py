"""What the readers do: locating samples, reading, decoding, gathering, nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_lab.report import numbers
from forebay_lab.report.data import number
from forebay_lab.report.figures.base import Drawing, Missing
from forebay_lab.report.svg import Picture, fit, legend

if TYPE_CHECKING:
    from forebay_lab.report.data import Result

__all__ = ["PARTS", "draw"]

PARTS = (
    ("locate_seconds", "locate", "finding the bytes of the samples"),
    ("read_seconds", "read", "inside read requests"),
    ("decode_seconds", "decode", "decoding units, such as compressed chunks"),
    ("gather_seconds", "gather", "filling batches"),
    ("reader_idle_seconds", "idle", "waiting for work or for memory"),
)


def draw(result: Result) -> Drawing | Missing:
    """Draw one bar of shares per row: the time of its readers and gather threads together."""
    rows = []
    for row in result.drawn:
        totals = {key: sum(number(one.get(key)) or 0.0 for one in row.readers) for key, _, _ in PARTS}
        if sum(totals.values()) > 0:
            rows.append((row, totals))
    if not rows:
        return Missing("No row has times of readers: baselines read on the training thread.")
    left, width, height, gap = 250, 560, 28, 12
    picture = Picture(940, len(rows) * (height + gap), "Shares of the readers' time, one bar per row")
    for at, (row, totals) in enumerate(rows):
        y, x = at * (height + gap), float(left)
        middle = y + height / 2
        whole = sum(totals.values())
        picture.text(0, middle + 5, fit(row.name, left - 12), "", full=row.name)
        for key, name, _ in PARTS:
            share = totals[key] / whole
            tip = f"{row.name}: {name} {numbers.text('seconds', totals[key])}, {numbers.percent(share, 1)}"
            picture.bar(x, y, width * share, height, f"var(--{name})", tip)
            if width * share > 44:
                style = "inside" if name != "idle" else "tick"
                picture.text(x + width * share / 2, middle + 4.5, numbers.percent(share), style, "middle")
            x += width * share
        many = f"{len(row.readers)} reader" + "s" * (len(row.readers) > 1)
        picture.text(x + 8, middle + 5, many, "soft")
    without = [row.name for row in result.drawn if row not in [one for one, _ in rows]]
    note = f" Without readers of their own: {', '.join(without)}." if without else ""
    lead = f"Shares of the time of all readers and gather threads of a row.{note}"
    return Drawing(lead, picture.render() + legend((f"var(--{name})", name, tip) for _, name, tip in PARTS))
