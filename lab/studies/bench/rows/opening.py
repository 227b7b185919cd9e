"""Open 200,000 samples from the sidecar: `open`, `len`, and the last sample's location."""

from __future__ import annotations

import statistics

from bench import datasets
from bench.harness import Outcome, Row, Settings, quartiles, timed


def measure(settings: Settings) -> Outcome:
    import forebay

    dataset = datasets.small(settings)

    def opening() -> None:
        if len(forebay.open(dataset.path, schema="raw")) != dataset.samples:
            raise RuntimeError("the data set has another number of samples")

    def finding() -> None:
        source = forebay.open(dataset.path, schema="raw")
        source.extents(len(source) - 1)

    opening()  # The sidecar is there from now on.
    times = [1e3 * timed(opening) for _ in range(3 * settings.repetitions)]
    located = [1e3 * timed(finding) for _ in range(3 * settings.repetitions)]
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
