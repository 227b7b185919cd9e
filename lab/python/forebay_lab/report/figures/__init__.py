"""The figures of a report.

To add one: write a module with a function from `Result` to `Drawing` or `Missing`, and put a
`Figure` into the list below. Figures share nothing but the result, and know nothing of the page.
"""

from __future__ import annotations

from forebay_lab.report.figures import (
    levels,
    limit,
    losses,
    model,
    offsets,
    pace,
    phases,
    phases_by_ranks,
    readers,
    scaling,
    servers,
    shuffle,
    sizes,
)
from forebay_lab.report.figures.base import Drawing, Figure, Missing

__all__ = ["FIGURES", "Drawing", "Figure", "Missing"]

_MEASURED_OR_SIMULATED = ("bench", "simulated")

FIGURES: tuple[Figure, ...] = (
    Figure("scaling", "Scaling", scaling.draw, ("simulated",)),
    Figure("phases-by-ranks", "Where the time goes, by ranks", phases_by_ranks.draw, ("simulated",)),
    Figure("model", "Model against measurement", model.draw, ("bench",)),
    Figure("limit", "Against the limit", limit.draw, ("bench",)),
    Figure("phases", "Where the time goes", phases.draw_rows, _MEASURED_OR_SIMULATED),
    Figure("epochs", "Where the time of each epoch goes", phases.draw_epochs, ("demo",)),
    Figure("ranks", "Where the time goes, rank by rank", phases.draw_ranks, ("bench", "demo", "simulated")),
    Figure("losses", "Losses", losses.draw, ("demo",)),
    Figure("levels", "Bytes by level and epoch", levels.draw, ("bench",)),
    Figure("readers", "What the readers do", readers.draw, ("bench",)),
    Figure("pace", "Does reading keep up with computing", pace.draw, _MEASURED_OR_SIMULATED),
    Figure("shuffle", "How well the orders shuffle", shuffle.draw, ("bench",)),
    Figure("offsets", "File offset over time", offsets.draw),
    Figure("sizes", "Request sizes", sizes.draw, ("bench", "demo", "events")),
    Figure("servers", "Load of each server", servers.draw, _MEASURED_OR_SIMULATED),
)
"""All figures, in the order of the page."""
