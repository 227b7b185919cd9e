"""Pictures as SVG text: shapes with tooltips, axes, legends.

Colours are CSS variables, so that pictures follow the reader's choice of light or dark.
`pictures.css` beside this module defines them, for the page and for files of one picture. Sizes are
those of the view box: the browser scales a picture to the room it has. Every text is escaped here
and nowhere else.
"""

from __future__ import annotations

import functools
import html
import importlib.resources
from typing import TYPE_CHECKING

from forebay_lab.report.numbers import Unit, tick, ticks

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "GLYPH",
    "NODE_COLOURS",
    "Picture",
    "Plot",
    "escape",
    "fit",
    "legend",
    "node_colour",
    "node_legend",
    "styles",
]

GLYPH = 0.56
"""Mean width of a letter in units of the font size: what system fonts come to, a little above."""

NODE_COLOURS = 16
"""Colours of nodes in the page's style; more nodes share them."""


def escape(text: object) -> str:
    """Make any text safe inside HTML, also in attributes."""
    return html.escape(str(text), quote=True)


def fit(text: str, room: float, size: float = 13) -> str:
    """Shorten a text to the room it has; the middle goes, where names differ least."""
    most = max(4, int(room / (size * GLYPH)))
    if len(text) <= most:
        return text
    front = (most - 1) * 3 // 5
    return f"{text[:front]}…{text[len(text) - (most - 1 - front) :]}"


@functools.cache
def styles() -> str:
    """Return the style sheet of pictures."""
    return importlib.resources.files("forebay_lab.report").joinpath("pictures.css").read_text("utf-8")


class Picture:
    """An SVG under construction."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height, self._label = width, height, label
        self._parts: list[str] = []

    def text(
        self, x: float, y: float, text: object, style: str = "", anchor: str = "start", full: str = ""
    ) -> None:
        """Write at a place; `style` is a class of the page, `full` a tooltip."""
        tip = f"<title>{escape(full)}</title>" if full else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(text)}{tip}</text>'
        )

    def bar(
        self, x: float, y: float, width: float, height: float, colour: str, tip: str = "", style: str = ""
    ) -> None:
        """Draw a rectangle with a tooltip."""
        inside = f"<title>{escape(tip)}</title>" if tip else ""
        self._parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" height="{max(height, 0):.2f}" '
            f'fill="{colour}" class="{style}">{inside}</rect>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str = "grid", tip: str = "") -> None:
        """Draw a line with a tooltip."""
        inside = f"<title>{escape(tip)}</title>" if tip else ""
        self._parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}">{inside}</line>'
        )

    def path(self, steps: str, colour: str, style: str, tip: str = "") -> None:
        """Draw a path."""
        inside = f"<title>{escape(tip)}</title>" if tip else ""
        self._parts.append(f'<path d="{steps}" stroke="{colour}" class="{style}">{inside}</path>')

    def render(self) -> str:
        """Return the element."""
        label = escape(self._label)
        return (
            f'<svg viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" aria-label="{label}">'
            f"{''.join(self._parts)}</svg>"
        )

    def render_file(self) -> str:
        """Return an SVG document with its styles, on a card, light or dark as the reader chose."""
        wide, high, label = f"{self.width:.0f}", f"{self.height:.0f}", escape(self._label)
        font = "svg { font-family:system-ui,sans-serif; font-variant-numeric:tabular-nums }"
        parts = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
            f'viewBox="0 0 {wide} {high}" role="img" aria-label="{label}">\n'
            f"<title>{label}</title>\n<style>\n{styles()}{font}\n</style>\n"
            f'<rect width="{wide}" height="{high}" rx="8" fill="var(--card)" class=""/>\n'
            f"{parts}\n</svg>\n"
        )


class Plot(Picture):
    """A picture with a rectangle in it that has two axes from 0 on."""

    def __init__(
        self, label: str, *, width: float = 460, height: float = 240, left: float = 56, top: float = 10,
        right: float = 14, bottom: float = 40,
    ) -> None:  # fmt: skip
        super().__init__(width, height, label)
        self.left, self.top = left, top
        self.inner_width, self.inner_height = width - left - right, height - top - bottom
        self.x_most = self.y_most = 1.0

    def x(self, value: float) -> float:
        """Place on the horizontal axis."""
        return self.left + self.inner_width * value / self.x_most

    def y(self, value: float) -> float:
        """Place on the vertical axis, which goes up."""
        return self.top + self.inner_height * (1 - value / self.y_most)

    @property
    def base(self) -> float:
        """Where the horizontal axis lies."""
        return self.top + self.inner_height

    def horizontal(self, most: float, unit: Unit, title: str) -> None:
        """Add the horizontal axis: its largest value, ticks and title."""
        self.x_most = most or 1.0
        for value in ticks(self.x_most / unit.factor):
            at = self.x(value * unit.factor)
            self.line(at, self.top, at, self.base)
            self.text(at, self.base + 15, tick(value), "tick", "middle")
        self.text(self.left + self.inner_width / 2, self.height - 5, _titled(title, unit), "axis", "middle")

    def vertical(self, most: float, unit: Unit, title: str) -> None:
        """Add the vertical axis: its largest value, ticks, and the rotated title beside it."""
        self.y_most = most or 1.0
        for value in ticks(self.y_most / unit.factor, 5):
            at = self.y(value * unit.factor)
            self.line(self.left, at, self.left + self.inner_width, at)
            self.text(self.left - 6, at + 4, tick(value), "tick", "end")
        self.upright(_titled(title, unit))

    def upright(self, title: str) -> None:
        """Write the title of the vertical axis, upright beside it."""
        middle = self.top + self.inner_height / 2
        self._parts.append(
            f'<text x="11" y="{middle:.1f}" class="axis" text-anchor="middle" '
            f'transform="rotate(-90 11 {middle:.1f})">{escape(title)}</text>'
        )


def _titled(title: str, unit: Unit) -> str:
    return f"{title} [{unit.name}]" if unit.name else title


def legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """Make a legend of (colour, name, explanation); the explanation is a tooltip."""
    items = "".join(
        f'<span title="{escape(tip)}"><i style="background:{colour}"></i>{escape(name)}</span>'
        for colour, name, tip in entries
    )
    return f'<div class="legend">{items}</div>'


def node_colour(node: int) -> str:
    """Return the colour of a node."""
    return f"var(--node{node % NODE_COLOURS})"


def node_legend(nodes: Iterable[int]) -> str:
    """Add the legend of nodes; where nodes share a colour, the first of them stands for it."""
    listed = sorted(nodes)
    entries = [(node_colour(node), f"node {node}", "") for node in listed[:NODE_COLOURS]]
    more = ""
    if len(listed) > NODE_COLOURS:
        more = (
            f'<p class="soft small">{len(listed)} nodes share {NODE_COLOURS} colours: node n has that of node '
            f"n modulo {NODE_COLOURS}.</p>"
        )
    return legend(entries) + more
