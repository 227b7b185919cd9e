"""Open 200,000 samples from the sidecar: `open`, `len`, and the last sample's location."""

from __future__ import annotations

import statistics

from forebay_lab.bench.turns import quartiles, timed
from studies.core.row import Outcome, Row
from studies.harness import datasets
from studies.harness.sections import Scope


def measure(scope: Scope) -> Outcome:
    import forebay

    dataset = datasets.small(scope)

    def opening() -> None:
        if len(forebay.open(dataset.path, schema="raw")) != dataset.samples:
            raise RuntimeError("the dataset has another number of samples")

    def finding() -> None:
        source = forebay.open(dataset.path, schema="raw")
        source.extents(len(source) - 1)

    opening()  # The sidecar is there from now on.
    times = [1e3 * timed(opening) for _ in range(3 * scope.repetitions)]
    located = [1e3 * timed(finding) for _ in range(3 * scope.repetitions)]
    middle, low, high = quartiles(times)
    parts = (("with the place of the last sample", f"{statistics.median(located):.2f} ms"),)
    return Outcome(middle, low, high, parts)


ROWS = (
    Row(
        "open-sidecar",
        "opening 200,000 samples from a sidecar",
        "nothing: an absolute time",
        20.0,
        False,
        "ms",
        measure,
    ),
)
