"""Shuffle quality of the orders: the engine's numbers for each row, and the bound they imply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_lab.report import numbers
from forebay_lab.report.data import number
from forebay_lab.report.figures.base import Drawing, Missing
from forebay_lab.report.table import plain

if TYPE_CHECKING:
    from forebay_lab.report.data import Result, Row

__all__ = ["draw"]

_HEAD = (
    ("", ""),
    ("order entropy", "1: as a full shuffle; 0: a fixed order"),
    ("same-group pairs", "chance that two samples of a global batch come from the same group"),
    ("in a full shuffle", "the same chance there"),
    ("epochs < N/n", "samples over groups: for fewer epochs convergence is proven unharmed (Meng et al.)"),
    ("this bench", "whether it holds for the epochs that ran; a training has more"),
)


def draw(result: Result) -> Drawing | Missing:
    """Make a table with a line for each row that tells its quality."""
    told = [row for row in result.drawn if row.shuffle_quality]
    if not told:
        return Missing("No row tells how well its order shuffles: only the engine's rows know.")
    samples = number(result.part("dataset").get("samples"))
    lead = "How much less than a full shuffle each order shuffles; docs/orders.md has the formulas."
    if silent := [row.name for row in result.drawn if not row.shuffle_quality]:
        lead += f" Not known of other programs: {', '.join(silent)}."
    if failed := [text for row in told if (text := _failure(row))]:
        lead += f" Too many epochs for their groups: {'; '.join(failed)}."
    return Drawing(lead, plain(_HEAD, [_line(row, samples) for row in told]))


def _line(row: Row, samples: float | None) -> tuple[str | tuple[float, str], ...]:
    quality = row.shuffle_quality
    numbers_of = [
        _cell(quality.get(key))
        for key in ("order_entropy", "same_group_pairs", "full_shuffle_same_group_pairs")
    ]
    groups, epochs = number(quality.get("groups")), number(quality.get("epochs"))
    if not groups or not samples:
        return (row.name, *numbers_of, (0.0, "no bound"), (0.0, "–"))
    bound = f"{samples:,.0f} / {groups:,.0f} = {samples / groups:,.1f}"
    verdict = "–"
    if epochs is not None:
        verdict = f"{epochs:,.0f}: {'holds' if quality.get('within_bound') else 'fails'}"
    return (row.name, *numbers_of, (samples / groups, bound), (epochs or 0.0, verdict))


def _cell(value: object) -> tuple[float, str]:
    found = number(value)
    return (0.0, "–") if found is None else (found, numbers.digits(found))


def _failure(row: Row) -> str:
    """Return the groups that satisfy the bound, where it fails."""
    if row.shuffle_quality.get("within_bound") is not False:
        return ""
    better = row.shuffle_quality.get("suggested_group")
    if not isinstance(better, dict):
        return f"{row.name}, whose dataset is too small for groups that would do; the order shuffle would"
    samples, window = (number(better.get(key)) or 0 for key in ("samples", "window"))
    return f"{row.name}, where groups of {samples:,.0f} samples in windows of {window:,.0f} would do"
