"""Scaling: samples per second over the number of ranks, on logarithmic axes, with their ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_lab.report import numbers
from forebay_lab.report.axes import Axis
from forebay_lab.report.data import dicts, number
from forebay_lab.report.figures.base import Drawing, Missing
from forebay_lab.report.svg import Plot, legend, node_colour

if TYPE_CHECKING:
    from forebay_lab.report.data import Result

__all__ = ["curves", "draw"]


def curves(result: Result) -> dict[str, list[tuple[float, float, float, float]]]:
    """Return by row: (ranks, median, least and most samples per second) of each number of ranks."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for point in dicts(result.values.get("points")):
        ranks = number(point.get("ranks"))
        for row in dicts(point.get("rows")):
            middle = _of(row, "median").get("samples_per_second")
            bounds = _of(row, "range").get("samples_per_second") or [middle, middle]
            values = [number(one) for one in (middle, *bounds)]
            if ranks and all(values):
                found.setdefault(str(row.get("name")), []).append((ranks, *map(float, values)))  # type: ignore[arg-type]
    return found


def _of(row: dict[str, Any], key: str) -> dict[str, Any]:
    part = row.get(key)
    return part if isinstance(part, dict) else {}


def draw(result: Result) -> Drawing | Missing:
    """Draw one curve per row, and the line of ideal scaling from the best row's first point."""
    found = curves(result)
    if not found:
        return Missing("No row was simulated at any number of ranks.")
    ranks = sorted({point[0] for points in found.values() for point in points})
    if len(ranks) < 2:
        return Missing("There is one number of ranks: ask for several with --ranks.")
    least = min(point[2] for points in found.values() for point in points)
    most = max(point[3] for points in found.values() for point in points)
    plot = Plot("Samples per second over ranks", width=940, height=340, left=70)
    across, up = Axis(ranks[0], ranks[-1], log=True), Axis.over([least, most], log=True)
    for count in ranks:
        at = plot.x(across.share(count))
        plot.line(at, plot.top, at, plot.base)
        plot.text(at, plot.base + 15, f"{count:,.0f}", "tick", "middle")
    for value in up.ticks():
        at = plot.y(up.share(value))
        plot.line(plot.left, at, plot.left + plot.inner_width, at)
        plot.text(plot.left - 6, at + 4, numbers.digits(value), "tick", "end")
    plot.text(plot.left + plot.inner_width / 2, plot.height - 5, "ranks", "axis", "middle")
    plot.upright("samples/s")
    best = max(found.values(), key=lambda points: points[0][1] / points[0][0])[0]
    ideal = [(count, best[1] * count / best[0]) for count in ranks]
    plot.path(
        _path(plot, [(count, min(rate, most)) for count, rate in ideal], across, up),
        "var(--soft)",
        "curve dashed",
        "ideal",
    )
    for at, (name, points) in enumerate(found.items()):
        colour = node_colour(at)
        plot.path(
            _path(plot, [(count, middle) for count, middle, _, _ in points], across, up),
            colour,
            "curve",
            name,
        )
        for count, middle, slowest, fastest in points:
            x, bottom, top = (
                plot.x(across.share(count)),
                plot.y(up.share(slowest)),
                plot.y(up.share(fastest)),
            )
            rate, slow, fast = (numbers.text("samples", one) for one in (middle, slowest, fastest))
            tip = f"{name}, {count:,.0f} ranks: {rate}, {slow} to {fast}"
            plot.bar(x - 2, top, 4, max(bottom - top, 2), colour, tip)
    lead = (
        "Samples of all ranks per second, start-up included: the median of the runs, and bars from the slowest to the fastest. "
        "Dashed: the best row of the fewest ranks, if it scaled ideally."
    )
    entries = [(node_colour(at), name, "") for at, name in enumerate(found)]
    return Drawing(lead, plot.render() + legend([*entries, ("var(--soft)", "ideal", "")]))


def _path(plot: Plot, points: list[tuple[float, float]], across: Axis, up: Axis) -> str:
    places = (f"{plot.x(across.share(count)):.1f} {plot.y(up.share(rate)):.1f}" for count, rate in points)
    return "M" + " L".join(places)
