"""Whether reading keeps up with computing, in a sentence for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_lab.report import pace
from forebay_lab.report.data import number
from forebay_lab.report.figures.base import Drawing, Missing
from forebay_lab.report.svg import escape

if TYPE_CHECKING:
    from forebay_lab.report.data import Result

__all__ = ["draw"]

_LEAD = (
    "Reading is hidden where it takes less time than computing and runs ahead of it. Waiting is that of the rank that waited "
    "longest, reading that of the rank that it took longest, start-up included; communication counts as computing."
)


def draw(result: Result) -> Drawing | Missing:
    """Write a sentence for each row that tells where its time went."""
    if not number(result.values.get("compute_seconds")):
        return Missing(
            "The bench ran without compute (--compute): there is nothing that reading could hide behind."
        )
    paces = [found for row in result.drawn if (found := pace.of(result, row)) is not None]
    if not paces:
        return Missing("No row tells where the time of its ranks went.")
    items = "".join(f"<li><b>{escape(one.name)}</b>: {escape(one.words())}</li>" for one in paces)
    lead = _LEAD
    if _is_cut(result):
        lead += (
            " Epochs were cut (--steps): reading counts what was read ahead for steps that did not come, too."
        )
    return Drawing(lead, f"<ul>{items}</ul>")


def _is_cut(result: Result) -> bool:
    """Return whether epochs ended before all samples were delivered."""
    steps, whole = (number(result.values.get(key)) for key in ("steps", "global_batch"))
    samples = number(result.part("dataset").get("samples"))
    return steps is not None and whole is not None and samples is not None and steps * whole < samples
