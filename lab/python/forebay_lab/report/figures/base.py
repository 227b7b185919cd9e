"""What a figure is, and the grid that figures with a panel per row share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_lab.report.svg import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay_lab.report.data import Result

__all__ = ["Drawing", "Figure", "Missing", "grid", "panel"]


@dataclass(frozen=True, slots=True)
class Drawing:
    """What a figure came to."""

    lead: str
    """What is seen, and how to read it: plain text."""
    html: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is nothing to see: plain text."""

    why: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One entry of the registry."""

    id: str
    title: str
    draw: Callable[[Result], Drawing | Missing]
    kinds: tuple[str, ...] = ("bench", "events")
    """Results that it is for."""


def panel(title: str, note: str, picture: str) -> str:
    """Make one panel: title, a soft line below it, the picture."""
    soft = f'<span class="soft">{escape(note)}</span>' if note else ""
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div class="panel">{head}{soft}{picture}</div>'


def grid(panels: Iterable[str], style: str = "") -> str:
    """Put panels side by side, as many as fit."""
    return f'<div class="grid-of-panels {style}">{"".join(panels)}</div>'
