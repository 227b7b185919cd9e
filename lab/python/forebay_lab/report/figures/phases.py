"""The wall time of a rank by phase: waiting for data, computing, communicating, skew.

Three figures: one stacked bar per row (mean of its ranks), all on one scale, to compare rows; the
same for each epoch of the demo, whose first one is cold; and one bar per rank, to see whether some
wait for others. Start-up is drawn after the wall, which does not include it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_lab.report import numbers
from forebay_lab.report.data import dicts, number
from forebay_lab.report.figures.base import Drawing, Missing, grid, panel
from forebay_lab.report.svg import Picture, Plot, fit, legend

if TYPE_CHECKING:
    from forebay_lab.report.data import Result, Row

__all__ = ["PHASES", "STARTUP", "draw_epochs", "draw_ranks", "draw_rows", "mean_phases"]

PHASES = (
    ("exposed_seconds", "exposed", "waiting for data"),
    ("compute_seconds", "compute", "the training step"),
    ("communication_seconds", "communication", "from the last rank's arrival until all have the sum"),
    ("skew_seconds", "skew", "waiting for ranks that came later"),
)
STARTUP = ("startup_seconds", "start-up", "until the first batch was there; not part of the wall time")

_RANKS_SHOWN = 64
"""Bars of a panel at most; evenly chosen ranks, so that both ends are among them."""

_COMMON_SCALE = 4.0
"""Largest ratio of longest to shortest panel on one scale, where short ones are legible."""


def mean_phases(row: Row) -> dict[str, float]:
    """Return the mean over the ranks of each phase, for the repetition shown."""
    ranks = row.ranks
    return {
        key: sum(number(rank.get(key)) or 0.0 for rank in ranks) / len(ranks)
        for key, _, _ in (*PHASES, STARTUP)
    } if ranks else {}  # fmt: skip


def _legend() -> str:
    return legend((f"var(--{name})", name, meaning) for _, name, meaning in (*PHASES, STARTUP))


def _stack(
    picture: Picture,
    values: dict[str, float],
    x: float,
    y: float,
    height: float,
    scale: float,
    unit: numbers.Unit,
    what: str,
) -> float:
    """Draw the phases in sequence, with values where they fit; return where the bar ends."""
    for key, name, _ in (*PHASES, STARTUP):
        long = values[key] * scale
        if long <= 0:
            continue
        style = "startup" if key == STARTUP[0] else ""
        tip = f"{what}: {name} {numbers.text('seconds', values[key])}"
        picture.bar(x, y, long, height, f"var(--{name})", tip, style)
        label = unit.digits(values[key])
        if height >= 20 and long > 8 * len(label) + 8:
            picture.text(
                x + long / 2, y + height / 2 + 4.5, label, "inside" if not style else "tick", "middle"
            )
        x += long
    return x


def draw_rows(result: Result) -> Drawing | Missing:
    """Draw one bar per row."""
    rows = [(row.name, mean_phases(row)) for row in result.drawn if row.ranks]
    lead = (
        "Wall time of the mean rank, in the repetition whose total time is the median. The number behind a bar is the wall: "
        "exposed, compute, communication and skew together; start-up, in grey, comes on top."
    )
    return _draw_bars(rows, lead)


def draw_epochs(result: Result) -> Drawing | Missing:
    """Draw one bar per row and epoch."""
    bars = []
    for row in result.drawn:
        startup = mean_phases(row).get(STARTUP[0], 0.0)
        for at, times in enumerate(dicts(row.shown.get("by_epoch"))):
            values = {key: number(times.get(key)) or 0.0 for key, _, _ in PHASES}
            values[STARTUP[0]] = 0.0 if at else startup
            bars.append((f"{row.name}, epoch {at + 1}", values))
    lead = (
        "Wall time of each epoch, mean of the ranks; the first epoch begins with an empty page cache. The number behind a bar "
        "is the wall; start-up, in grey, comes on top."
    )
    return _draw_bars(bars, lead)


def _draw_bars(rows: list[tuple[str, dict[str, float]]], lead: str) -> Drawing | Missing:
    if not rows:
        return Missing("No row has times of its ranks.")
    left, width, height, gap = 250, 590, 28, 12
    whole = max(sum(values.values()) for _, values in rows) or 1.0
    unit = numbers.choose("seconds", [whole])
    picture = Picture(940, len(rows) * (height + gap), "Stacked bars of the mean rank's wall time")
    for at, (name, values) in enumerate(rows):
        y = at * (height + gap)
        picture.text(0, y + height / 2 + 5, fit(name, left - 12), "", full=name)
        end = _stack(picture, values, left, y, height, width / whole, unit, name)
        wall = sum(values[key] for key, _, _ in PHASES)
        picture.text(end + 8, y + height / 2 + 5, unit.text(wall), "soft")
    return Drawing(lead, picture.render() + _legend())


def draw_ranks(result: Result) -> Drawing | Missing:
    """Draw one bar per rank, a panel per row."""
    rows = [row for row in result.drawn if row.ranks]
    if not rows:
        return Missing("No row has times of its ranks.")
    longest = {row.name: max((_whole(rank) for rank in row.ranks), default=0.0) for row in rows}
    most = max(longest.values())
    common = most <= _COMMON_SCALE * min(longest.values())
    panels = []
    for row in rows:
        ranks = row.ranks
        chosen = sorted(
            {round(at * (len(ranks) - 1) / max(1, _RANKS_SHOWN - 1)) for at in range(_RANKS_SHOWN)}
        )
        shown = ranks if len(ranks) <= _RANKS_SHOWN else [ranks[at] for at in chosen]
        note = f"{len(shown)} of {len(ranks)} ranks" if len(shown) < len(ranks) else ""
        panels.append(panel(row.name, note, _panel(row.name, shown, most if common else longest[row.name])))
    scale = "All panels have the same scale." if common else "Each panel has its own scale."
    lead = f"One bar per rank, in the repetition shown above; the strip beside it changes its shade with the node. {scale}"
    return Drawing(lead, grid(panels) + _legend())


def _whole(rank: dict[str, Any]) -> float:
    return sum(number(rank.get(key)) or 0.0 for key, _, _ in (*PHASES, STARTUP))


def _panel(name: str, ranks: list[dict[str, Any]], most: float) -> str:
    each = 22.0 if len(ranks) <= 4 else 13.0 if len(ranks) <= 16 else 7.0
    plot = Plot(f"Times of the ranks of {name}", height=len(ranks) * each + 46, top=6, bottom=40)
    unit = numbers.choose("seconds", [most])
    plot.horizontal(most, unit, "time")
    plot.y_most = len(ranks)
    nodes = sorted({int(number(rank.get("node")) or 0) for rank in ranks})
    strips = {node: ("var(--soft)", "var(--line)")[at % 2] for at, node in enumerate(nodes)}
    label_every = 1 if each >= 13 else 2 if len(ranks) <= 32 else 4
    for at, rank in enumerate(ranks):
        y, height = plot.top + at * each, each * 0.78
        number_of_rank = int(number(rank.get("rank")) or 0)
        node = int(number(rank.get("node")) or 0)
        values = {key: number(rank.get(key)) or 0.0 for key, _, _ in (*PHASES, STARTUP)}
        plot.bar(plot.left - 5, y, 3, height, strips[node], f"node {node}")
        if at % label_every == 0:
            plot.text(plot.left - 10, y + height / 2 + 4, number_of_rank, "tick", "end")
        what = f"rank {number_of_rank} on node {node}"
        _stack(plot, values, plot.left, y, height, plot.inner_width / plot.x_most, unit, what)
    plot.upright("rank")
    return plot.render()
