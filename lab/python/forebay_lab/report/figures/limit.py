"""Against the limit: the rate of each row beside what the storage gives at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_lab.report import numbers
from forebay_lab.report.data import number
from forebay_lab.report.figures.base import Drawing, Missing
from forebay_lab.report.svg import Picture, fit, legend

if TYPE_CHECKING:
    from forebay_lab.report.data import Result, Row

__all__ = ["draw", "limits"]

_FAR = 8.0
"""A limit is drawn up to this many times the longest bar."""

_LABEL_ROOM = 170
"""Limits whose lines are closer than this get one label; the legend has both."""


def limits(result: Result) -> list[tuple[str, float, str]]:
    """Return (name, rate [MiB/s], meaning) of each limit that is known."""
    known = (
        (
            "measured",
            result.part("limit").get("rate_mib_s"),
            "the best rate that forebay limit measured in the same run",
        ),
        ("model", result.part("pfs").get("limit_mib_s"), "what the modelled file system gives at most"),
    )
    return [(name, rate, meaning) for name, value, meaning in known if (rate := number(value))]


def draw(result: Result) -> Drawing | Missing:
    """Draw one bar per row, and a line per limit."""
    rows = [(row, rate) for row in result.drawn if (rate := number(row.median.get("rate_mib_s"))) is not None]
    lines = limits(result)
    if not rows or not lines:
        return Missing("No limit of the storage was measured." if rows else "No row has a rate.")
    left, width, height, gap, top = 250, 560, 24, 14, 26
    reference = lines[0][1]
    longest = max([rate for _, rate in rows] + [high for row, _ in rows for high in _range(row)]) or reference
    # A limit far away, as that of the page cache, would leave nothing of the bars.
    most = max([longest, *(rate for _, rate, _ in lines if rate <= _FAR * longest)])
    scale = width / most
    unit = numbers.choose("rate", [most])
    picture = Picture(
        940, top + len(rows) * (height + gap), "Rate of each row against the limit of the storage"
    )
    for at, (row, rate) in enumerate(rows):
        y = top + at * (height + gap)
        middle = y + height / 2
        picture.text(0, middle + 5, fit(row.name, left - 12), "", full=row.name)
        share = f"{numbers.percent(rate / reference, 1)} of the limit"
        picture.bar(left, y, rate * scale, height, "var(--rate)", f"{row.name}: {unit.text(rate)}, {share}")
        low, high = _range(row) or (rate, rate)
        if high > low:
            tip = f"{row.name}: {unit.text(low)} to {unit.text(high)} over {len(row.repetitions)} repetitions"
            picture.line(left + low * scale, middle, left + high * scale, middle, "whisker", tip)
        label, room = f"{unit.text(rate)} · {numbers.percent(rate / reference)}", 130
        end = left + max(rate, high) * scale
        if end + room > left + width and rate * scale > room + 20:
            inside = left + min(rate, low) * scale - 10
            picture.text(inside, middle + 4.5, label, "inside", "end")
        else:
            picture.text(end + 10, middle + 4.5, label, "haloed")
    bottom = top + len(rows) * (height + gap) - gap + 4
    entries = []
    labelled: list[float] = []
    for at, (name, rate, meaning) in enumerate(lines):
        entries.append((f"var(--limit{at})", f"{name} limit, {unit.text(rate)}", meaning))
        if rate > _FAR * longest:
            continue
        x = left + rate * scale
        picture.line(x, 18, x, bottom, f"limit{at}", f"{meaning}: {unit.text(rate)}")
        if all(abs(x - other) > _LABEL_ROOM for other in labelled):
            anchor = "end" if x > left + width - 60 else "middle"
            picture.text(x, 12, f"{name} {unit.text(rate)}", "tick", anchor)
            labelled.append(x)
    far = [f"the {name} limit, {unit.text(rate)}" for name, rate, _ in lines if rate > _FAR * longest]
    lead = (
        f"Median rate at which the ranks got sample bytes, and its share of the {lines[0][0]} limit: {lines[0][2]}. "
        "Start-up is part of it; the thin line spans all repetitions. A run that computes more than it reads stays below the "
        "limit for that reason; bytes that come from memory, where they were read before, can take it above."
    )
    if far:
        lead += f" Too far away for the picture: {', '.join(far)}."
    return Drawing(lead, picture.render() + legend(entries))


def _range(row: Row) -> tuple[float, ...]:
    rates = [rate for one in row.repetitions if (rate := number(one.get("rate_mib_s"))) is not None]
    return (min(rates), max(rates)) if rates else ()
