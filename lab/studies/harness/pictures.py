"""Pictures of results as SVG: lines over two axes, and stacked bars, with published values marked.

`draw` makes one from a layout of ``docs/results/data/PAGE.json`` and the rows that it means. Equal
input gives equal bytes. A layout has a `title` and one of these:

``lines``
    `x` and `y`, fields of numbers; `by`, the template of a line's name; `x_title` and `y_title`,
    with their units. May have `low` and `high`, fields of a range; `published`, the field of a
    paper's value, which gets a diamond; `log`, which of "x" and "y" are logarithmic; `dashed`,
    names of dashed lines. A row without `y` has no point.
``stacks``
    A horizontal bar for each row: `label`, its template; `parts`, the field of each part by name;
    `x_title`. May have `group`, the template of a heading above bars; `published`, as above, of the
    whole bar; `shares`, true where each bar is drawn as shares of its sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay_lab.report import numbers
from forebay_lab.report.axes import Axis
from forebay_lab.report.svg import GLYPH, Picture, Plot, fit, node_colour
from studies.harness.rows import Row, filled

__all__ = ["draw"]

_WIDTH, _TOP, _BOTTOM = 760.0, 34.0, 44.0
_PLOT_HEIGHT = 300.0
_LEGEND_LINE = 22.0
_FONT = 13.0
_TICKS_OF_VALUES = 10
"""Most values of `x` that get a tick each; with more, round numbers get them."""
_TICK_ROOM = 36.0
_LABEL_WIDTH = 210.0
_BAR, _GAP, _HEADING = 16.0, 6.0, 24.0
_PUBLISHED = "published"

# Colour, name, and what marks it: "line", "dashed", "box" or "diamond".
Entry = tuple[str, str, str]


def draw(layout: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Return the SVG document of a layout.

    Raises
    ------
    ValueError
        No row has a value, or one has no place on its axis; the message names the picture.
    """
    title = layout["title"]
    try:
        picture = (
            _lines(title, layout["lines"], rows)
            if "lines" in layout
            else _stacks(title, layout["stacks"], rows)
        )
    except ValueError as error:
        raise ValueError(f"picture {title!r}: {error}") from error
    return picture.render_file()


def _lines(title: str, layout: Mapping[str, Any], rows: Sequence[Row]) -> Picture:
    shown = [row for row in rows if row.get(layout["x"]) is not None]
    of_y = [layout[key] for key in ("y", "low", "high", "published") if key in layout]
    heights = [row[field] for row in shown for field in of_y if row.get(field) is not None]
    if not heights:
        raise ValueError("expected rows with values, found none")
    log = layout.get("log", ())
    across = Axis.over((row[layout["x"]] for row in shown), log="x" in log)
    up = Axis.over(heights, log="y" in log)
    series: dict[str, list[Row]] = {}
    for row in shown:
        series.setdefault(filled(layout["by"], row), []).append(row)
    dashed = layout.get("dashed", ())
    entries: list[Entry] = [
        (node_colour(at), name, "dashed" if name in dashed else "line") for at, name in enumerate(series)
    ]
    if any(row.get(layout.get("published")) is not None for row in shown):
        entries.append(("var(--ink)", _PUBLISHED, "diamond"))
    plot = Plot(
        title, width=_WIDTH, height=_PLOT_HEIGHT + _TOP + _BOTTOM + _legend_height(entries),
        left=70, right=24, top=_TOP, bottom=_BOTTOM + _legend_height(entries),
    )  # fmt: skip
    _frame(plot, title, across, up, sorted({row[layout["x"]] for row in shown}), layout)
    for (colour, name, style), points in zip(entries, series.values(), strict=False):
        _line(
            plot,
            layout,
            (across, up),
            sorted(points, key=lambda row: float(row[layout["x"]])),
            colour,
            name,
            style,
        )
    _legend(plot, entries, plot.base + _BOTTOM)
    return plot


def _frame(
    plot: Plot, title: str, across: Axis, up: Axis, values: Sequence[float], layout: Mapping[str, Any]
) -> None:
    plot.text(16, 21, fit(title, _WIDTH - 32), "", full=title)
    last = -_TICK_ROOM
    for value in values if len(values) <= _TICKS_OF_VALUES else across.ticks():
        at = plot.x(across.share(value))
        plot.line(at, plot.top, at, plot.base)
        if at - last >= _TICK_ROOM:
            plot.text(at, plot.base + 15, numbers.digits(value), "tick", "middle")
            last = at
    for value in up.ticks():
        at = plot.y(up.share(value))
        plot.line(plot.left, at, plot.left + plot.inner_width, at)
        plot.text(plot.left - 6, at + 4, numbers.tick(value), "tick", "end")
    plot.text(plot.left + plot.inner_width / 2, plot.base + 34, layout["x_title"], "axis", "middle")
    plot.upright(layout["y_title"])


def _line(
    plot: Plot, layout: Mapping[str, Any], axes: tuple[Axis, Axis], points: Sequence[Row], colour: str,
    name: str, style: str,
) -> None:  # fmt: skip
    def place(row: Row, field: str) -> tuple[float, float]:
        return plot.x(axes[0].share(row[layout["x"]])), plot.y(axes[1].share(row[field]))

    drawn = [row for row in points if row.get(layout["y"]) is not None]
    if drawn:
        steps = " L".join("{:.1f} {:.1f}".format(*place(row, layout["y"])) for row in drawn)
        plot.path(f"M{steps}", colour, "curve dashed" if style == "dashed" else "curve", name)
    for row in drawn if style == "line" else ():
        x, y = place(row, layout["y"])
        if "low" in layout and row.get(layout["low"]) is not None:
            bottom, top = place(row, layout["low"])[1], place(row, layout["high"])[1]
            plot.bar(x - 1, top, 2, bottom - top, colour)
        tip = f"{name}, {numbers.digits(row[layout['x']])}: {numbers.digits(row[layout['y']])}"
        plot.bar(x - 2.5, y - 2.5, 5, 5, colour, tip)
    for row in points:
        if row.get(layout.get("published")) is not None:
            tip = f"{name}, {numbers.digits(row[layout['x']])}, published: {numbers.digits(row[layout['published']])}"
            _diamond(plot, *place(row, layout["published"]), colour, tip)


def _stacks(title: str, layout: Mapping[str, Any], rows: Sequence[Row]) -> Picture:
    bars = [(row, _parts(layout, row)) for row in rows]
    published = layout.get("published")
    whole = [sum(parts.values()) for _, parts in bars if parts]
    if not whole:
        raise ValueError("expected rows with all parts, found none")
    marks = [row[published] for row in rows if row.get(published) is not None]
    across = Axis.over([1.0] if layout.get("shares") else [*whole, *marks])
    entries: list[Entry] = [(node_colour(at), name, "box") for at, name in enumerate(layout["parts"])]
    if marks:
        entries.append(("var(--ink)", _PUBLISHED, "diamond"))
    headings = [filled(layout["group"], row) if "group" in layout else "" for row in rows]
    count = sum(heading != before for heading, before in zip(headings, ["", *headings], strict=False))
    inner = len(bars) * (_BAR + _GAP) + count * _HEADING
    plot = Plot(
        title, width=_WIDTH, height=inner + _TOP + _BOTTOM + _legend_height(entries), left=_LABEL_WIDTH,
        right=24, top=_TOP, bottom=_BOTTOM + _legend_height(entries),
    )  # fmt: skip
    plot.text(16, 21, fit(title, _WIDTH - 32), "", full=title)
    for value in across.ticks():
        at = plot.x(across.share(value))
        plot.line(at, plot.top, at, plot.base)
        label = f"{100 * value:.0f} %" if layout.get("shares") else numbers.tick(value)
        plot.text(at, plot.base + 15, label, "tick", "middle")
    plot.text(plot.left + plot.inner_width / 2, plot.base + 34, layout["x_title"], "axis", "middle")
    y, before = plot.top, ""
    for (row, parts), heading in zip(bars, headings, strict=True):
        if heading != before:
            plot.text(16, y + 17, heading, "soft")
            y, before = y + _HEADING, heading
        label = filled(layout["label"], row)
        plot.text(plot.left - 8, y + 13, fit(label, _LABEL_WIDTH - 24), "", "end", full=label)
        _bar(plot, across, label, parts, y, bool(layout.get("shares")))
        if row.get(published) is not None:
            tip = f"{label}, published: {numbers.digits(row[published])}"
            _diamond(plot, plot.x(across.share(row[published])), y + _BAR / 2, "var(--ink)", tip)
        y += _BAR + _GAP
    _legend(plot, entries, plot.base + _BOTTOM)
    return plot


def _parts(layout: Mapping[str, Any], row: Row) -> dict[str, float]:
    """Return the parts of a bar by name; none if the row lacks one of them."""
    found = {name: row.get(field) for name, field in layout["parts"].items()}
    if any(value is None for value in found.values()):
        return {}
    whole = sum(found.values()) if layout.get("shares") else 1.0
    return {name: value / (whole or 1.0) for name, value in found.items()}


def _bar(plot: Plot, across: Axis, label: str, parts: Mapping[str, float], y: float, shares: bool) -> None:
    at = 0.0
    for number, (name, value) in enumerate(parts.items()):
        left, right = plot.x(across.share(at)), plot.x(across.share(at + value))
        text = numbers.percent(value) if shares else numbers.digits(value)
        plot.bar(left, y, right - left, _BAR, node_colour(number), f"{label}: {name} {text}")
        at += value
    if not parts:
        plot.text(plot.left + 4, y + 13, "–", "soft")


def _diamond(picture: Picture, x: float, y: float, colour: str, tip: str = "") -> None:
    steps = f"M{x:.1f} {y - 6:.1f} L{x + 6:.1f} {y:.1f} L{x:.1f} {y + 6:.1f} L{x - 6:.1f} {y:.1f} Z"
    picture.path(steps, colour, "curve", tip)


def _places(entries: Sequence[Entry]) -> list[tuple[float, int]]:
    """Return where each entry of a legend begins: x, and its line."""
    found, x, line = [], 16.0, 0
    for _, name, _ in entries:
        wide = 26 + len(name) * _FONT * GLYPH + 18
        if x > 16 and x + wide > _WIDTH - 16:
            x, line = 16.0, line + 1
        found.append((x, line))
        x += wide
    return found


def _legend_height(entries: Sequence[Entry]) -> float:
    return (_places(entries)[-1][1] + 1) * _LEGEND_LINE + 8


def _legend(picture: Picture, entries: Sequence[Entry], top: float) -> None:
    for (colour, name, mark), (x, line) in zip(entries, _places(entries), strict=True):
        middle = top + (line + 0.5) * _LEGEND_LINE
        if mark == "box":
            picture.bar(x + 4, middle - 6, 12, 12, colour)
        elif mark == "diamond":
            _diamond(picture, x + 10, middle, colour)
        else:
            style = "curve dashed" if mark == "dashed" else "curve"
            picture.path(f"M{x:.1f} {middle:.1f} L{x + 20:.1f} {middle:.1f}", colour, style)
        picture.text(x + 26, middle + 4.5, name, "soft")
