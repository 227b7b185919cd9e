"""Bytes by level and epoch: what the source, the storage tiers and the page cache delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_lab.report import numbers
from forebay_lab.report.data import dicts, number
from forebay_lab.report.figures.base import Drawing, Missing
from forebay_lab.report.svg import Picture, fit, legend, node_colour

if TYPE_CHECKING:
    from forebay_lab.report.data import Result, Row

__all__ = ["draw", "epochs"]

SOURCE, PAGE_CACHE = "source", "page_cache"

_COLOURS = {SOURCE: "var(--exposed)", PAGE_CACHE: "var(--start-up)"}
"""Of the levels that every loader has; tiers have the colours of nodes."""

_FIRST_TIER_COLOUR = 2
"""The colours before it look like that of the source."""

_LEAD = (
    "Bytes that each level delivered, of all ranks, in the repetition whose total time is the median; the number behind a "
    "bar is what came from the source. What was read ahead counts for the epoch that needed it. Bytes from the source may have "
    "been in its page cache."
)


def epochs(row: Row) -> list[tuple[int, dict[str, float]]]:
    """Return (epoch, level → bytes) of the repetition shown: the source first, then the tiers."""
    found = []
    for at, epoch in enumerate(dicts(row.shown.get("by_epoch"))):
        given = epoch.get("levels")
        if not isinstance(given, dict):
            continue
        known = {str(name): size for name, value in given.items() if (size := number(value)) is not None}
        tiers = [name for name in known if name not in _COLOURS]
        names = [name for name in (SOURCE, *tiers, PAGE_CACHE) if name in known]
        if not known:
            continue
        which = number(epoch.get("epoch"))
        found.append((at if which is None else int(which), {name: known[name] for name in names}))
    return found


def draw(result: Result) -> Drawing | Missing:
    """Draw one stacked bar per row and epoch."""
    rows = {row.name: epochs(row) for row in result.drawn}
    bars = [(f"{name}, epoch {number}", sizes) for name, known in rows.items() for number, sizes in known]
    if not bars:
        return Missing("No row has bytes by level: only loaders of Forebay report them, for each epoch.")
    names = list(dict.fromkeys(name for _, sizes in bars for name in sizes))
    tiers = [name for name in names if name not in _COLOURS]
    colours = _COLOURS | {name: node_colour(_FIRST_TIER_COLOUR + at) for at, name in enumerate(tiers)}
    left, width, height, gap = 250, 590, 28, 12
    most = max(sum(sizes.values()) for _, sizes in bars) or 1.0
    unit = numbers.choose("bytes", [most])
    picture = Picture(
        940, len(bars) * (height + gap), "Stacked bars of bytes by level, one per row and epoch"
    )
    for at, (label, sizes) in enumerate(bars):
        y, x = at * (height + gap), float(left)
        picture.text(0, y + height / 2 + 5, fit(label, left - 12), "", full=label)
        for name, size in sizes.items():
            long = size / most * width
            picture.bar(x, y, long, height, colours[name], f"{label}: {unit.text(size)} from {_called(name)}")
            x += long
        picture.text(x + 8, y + height / 2 + 5, unit.text(sizes.get(SOURCE, 0.0)), "soft")
    without = [name for name, known in rows.items() if not known]
    note = f" Without bytes by level: {', '.join(without)}." if without else ""
    shown = [name for name in names if any(sizes.get(name) for _, sizes in bars)] or names
    meanings = {SOURCE: "the dataset's own files", PAGE_CACHE: "resident pages, copied from a mapping"}
    entries = ((colours[name], _called(name), meanings.get(name, "a storage tier")) for name in shown)
    return Drawing(_LEAD + note, picture.render() + legend(entries))


def _called(level: str) -> str:
    return {SOURCE: "the source", PAGE_CACHE: "the page cache"}.get(level, level)
