"""Loss over step: one curve per run of the demo, on a logarithmic axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from forebay_lab.report import numbers
from forebay_lab.report.figures.base import Drawing, Missing
from forebay_lab.report.svg import Plot, legend, node_colour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay_lab.report.data import Result

__all__ = ["draw", "smoothed"]

_POINTS = 240
"""Points of a curve, as many as a screen can show."""

_MIN_LOSS = 1e-6
"""Smaller losses are drawn here: the logarithm of 0 has no place."""

_STYLES = ("wide", "dashed", "")
"""Equal curves stay visible: the second one is dashed, above a wide first one."""


def smoothed(losses: Sequence[float]) -> list[tuple[float, float]]:
    """Return (step, moving mean) of evenly chosen steps."""
    window = max(1, len(losses) // 100)
    count = len(losses) - window + 1
    starts = sorted({round(at * (count - 1) / max(1, _POINTS - 1)) for at in range(_POINTS)})
    return [(at + window / 2, math.fsum(losses[at : at + window]) / window) for at in starts]


def draw(result: Result) -> Drawing | Missing:
    """Draw one curve per row."""
    curves = [(row.name, smoothed(row.shown["losses"])) for row in result.drawn if row.shown.get("losses")]
    if not curves:
        return Missing("No run has losses.")
    logarithms = [math.log10(max(loss, _MIN_LOSS)) for _, curve in curves for _, loss in curve]
    low = min(logarithms)
    plot = Plot("Loss over step", width=940, height=300)
    plot.horizontal(max(step for _, curve in curves for step, _ in curve), numbers.Unit(""), "step")
    plot.y_most = max(max(logarithms) - low, 1e-6)
    for power in range(math.floor(low), math.ceil(max(logarithms)) + 1):
        for digit in (1, 3):
            at = math.log10(digit) + power - low
            if 0 <= at <= plot.y_most:
                plot.line(plot.left, plot.y(at), plot.left + plot.inner_width, plot.y(at))
                plot.text(plot.left - 6, plot.y(at) + 4, f"{digit * 10.0**power:g}", "tick", "end")
    plot.upright("loss")
    for run, (name, curve) in enumerate(curves):
        points = (
            f"{plot.x(step):.1f} {plot.y(math.log10(max(loss, _MIN_LOSS)) - low):.1f}" for step, loss in curve
        )
        style = f"curve {_STYLES[min(run, len(_STYLES) - 1)]}".rstrip()
        plot.path("M" + " L".join(points), node_colour(run), style, name)
    lead = "Mean of all ranks at each step, smoothed. Runs that read in the same order have the same curve."
    return Drawing(
        lead, plot.render() + legend((node_colour(run), name, "") for run, (name, _) in enumerate(curves))
    )
