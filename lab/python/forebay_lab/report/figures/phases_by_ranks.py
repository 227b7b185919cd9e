"""Where the time goes by ranks: the parts of a step, for each row and number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_lab.report import numbers
from forebay_lab.report.data import dicts, number
from forebay_lab.report.figures.base import Drawing, Missing, grid, panel
from forebay_lab.report.figures.phases import PHASES
from forebay_lab.report.svg import Plot, legend

if TYPE_CHECKING:
    from forebay_lab.report.data import Result

__all__ = ["draw"]

Stack = dict[str, float]


def _stacks(result: Result) -> dict[str, list[tuple[int, Stack]]]:
    """Return by row: ranks, and the seconds of each part of a step."""
    found: dict[str, list[tuple[int, Stack]]] = {}
    for point in dicts(result.values.get("points")):
        for row in dicts(point.get("rows")):
            middle = row.get("median")
            if isinstance(middle, dict):
                steps = number(row.get("steps")) or 1.0
                parts = {key: (number(middle.get(key)) or 0.0) / steps for key, _, _ in PHASES}
                found.setdefault(str(row.get("name")), []).append(
                    (int(number(point.get("ranks")) or 0), parts)
                )
    return found


def draw(result: Result) -> Drawing | Missing:
    """Draw a panel per row, with a stack for each number of ranks."""
    found = _stacks(result)
    if not found:
        return Missing("No row was simulated at any number of ranks.")
    panels = [panel(name, "", _panel(name, stacks)) for name, stacks in found.items()]
    lead = "Time of a step of the mean rank, by parts, start-up left out. Each panel has its own scale."
    return Drawing(
        lead, grid(panels) + legend((f"var(--{name})", name, meaning) for _, name, meaning in PHASES)
    )


def _panel(name: str, stacks: list[tuple[int, Stack]]) -> str:
    plot = Plot(f"Time of a step of {name} by ranks", height=230)
    most = max(sum(parts.values()) for _, parts in stacks) or 1.0
    unit = numbers.choose("seconds", [most])
    plot.vertical(most, unit, "step")
    each = plot.inner_width / len(stacks)
    for at, (ranks, parts) in enumerate(stacks):
        width, y = min(each * 0.6, 60.0), 0.0
        x = plot.left + (at + 0.5) * each - width / 2
        for key, part, _ in PHASES:
            value = parts[key]
            top = plot.y(y + value)
            tip = f"{name}, {ranks:,} ranks: {part} {numbers.text('seconds', value)}"
            plot.bar(x, top, width, plot.y(y) - top, f"var(--{part})", tip)
            y += value
        plot.text(x + width / 2, plot.base + 15, f"{ranks:,}", "tick", "middle")
    plot.text(plot.left + plot.inner_width / 2, plot.height - 5, "ranks", "axis", "middle")
    return plot.render()
