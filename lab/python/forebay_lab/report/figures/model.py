"""Model against measurement: the simulated wall time of each row over the measured one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay_lab.report import numbers
from forebay_lab.report.axes import Axis
from forebay_lab.report.data import number
from forebay_lab.report.figures.base import Drawing, Missing
from forebay_lab.report.svg import Plot, legend, node_colour

if TYPE_CHECKING:
    from forebay_lab.report.data import Result, Row

__all__ = ["Pair", "draw", "pairs"]


@dataclass(frozen=True, slots=True)
class Pair:
    """Wall times of a row [s]: median, least and most."""

    name: str
    measured: tuple[float, float, float]
    simulated: tuple[float, float, float]


def pairs(result: Result) -> list[Pair]:
    """Return the rows that were both measured and simulated."""
    found = []
    for row, values in zip(result.rows, result.values["rows"], strict=True):
        simulated = values.get("simulated")
        measured_times, simulated_times = _measured(row), _simulated(simulated)
        if measured_times and simulated_times:
            found.append(Pair(row.name, measured_times, simulated_times))
    return found


def _measured(row: Row) -> tuple[float, float, float] | None:
    times = [time for one in row.repetitions if (time := number(one.get("wall_seconds")))]
    middle = number(row.median.get("wall_seconds"))
    return (middle, min(times), max(times)) if middle and middle > 0 and times and min(times) > 0 else None


def _simulated(simulated: Any) -> tuple[float, float, float] | None:
    if not isinstance(simulated, dict):
        return None
    median, ranges = simulated.get("median"), simulated.get("range")
    middle = number(median.get("wall_seconds")) if isinstance(median, dict) else None
    bounds = ranges.get("wall_seconds") if isinstance(ranges, dict) else None
    least, most = map(number, bounds) if isinstance(bounds, list) and len(bounds) == 2 else (middle, middle)
    if middle and least and most and min(middle, least, most) > 0:
        return middle, least, most
    return None


def draw(result: Result) -> Drawing | Missing:
    """Draw a point for each row with a bar for both ranges, and the line where both are equal."""
    found = pairs(result)
    if not found:
        return Missing("No row was simulated beside its measurement: ask for it with --simulated.")
    times = [time for pair in found for time in (*pair.measured, *pair.simulated)]
    axis = Axis.over(times, log=True)
    plot = Plot("Simulated over measured wall time", width=460, height=440, left=70)
    for value in axis.ticks():
        at, tick = axis.share(value), numbers.text("seconds", value)
        plot.line(plot.x(at), plot.top, plot.x(at), plot.base)
        plot.line(plot.left, plot.y(at), plot.left + plot.inner_width, plot.y(at))
        plot.text(plot.x(at), plot.base + 15, tick, "tick", "middle")
        plot.text(plot.left - 6, plot.y(at) + 4, tick, "tick", "end")
    plot.text(plot.left + plot.inner_width / 2, plot.height - 5, "measured", "axis", "middle")
    plot.upright("simulated")
    ends = f"M{plot.x(0):.1f} {plot.y(0):.1f} L{plot.x(1):.1f} {plot.y(1):.1f}"
    plot.path(ends, "var(--soft)", "curve dashed", "equal")
    for at, pair in enumerate(found):
        _point(plot, pair, axis, node_colour(at))
    lead = (
        "Wall time of each row in the model over the measured one, both axes logarithmic: the medians of the runs, "
        "and bars from the fastest to the slowest. On the dashed line both are equal."
    )
    entries = [(node_colour(at), pair.name, _tip(pair)) for at, pair in enumerate(found)]
    return Drawing(lead, plot.render() + legend([*entries, ("var(--soft)", "equal", "")]))


def _point(plot: Plot, pair: Pair, axis: Axis, colour: str) -> None:
    x, left, right = (plot.x(axis.share(time)) for time in pair.measured)
    y, bottom, top = (plot.y(axis.share(time)) for time in pair.simulated)
    tip = _tip(pair)
    plot.bar(left, y - 1, right - left, 2, colour, tip)
    plot.bar(x - 1, top, 2, bottom - top, colour, tip)
    plot.bar(x - 3.5, y - 3.5, 7, 7, colour, tip)


def _tip(pair: Pair) -> str:
    measured, simulated = (
        f"{middle}, {least} to {most}"
        for middle, least, most in (
            tuple(numbers.text("seconds", time) for time in times)
            for times in (pair.measured, pair.simulated)
        )
    )
    return f"{pair.name}: measured {measured}; simulated {simulated}"
