"""`next(loader)` when the batch is ready: two fields, one process."""

from __future__ import annotations

import statistics
import time

from forebay_lab.bench.turns import quartiles
from forebay_lab.ranks import page_cache
from studies.core.row import Outcome, Row
from studies.harness import datasets
from studies.harness.measured_loader import MeasuredLoader
from studies.harness.sections import Scope

BATCH = 256
READY_S = 0.004
"""Least time that the engine gets to have the next batch ready: several times what one takes."""
QUIET_S = 0.001
"""The engine's threads have used no processor time for so long: they have nothing more to do."""
LONGEST_S = 0.1


def measure(scope: Scope) -> Outcome:
    dataset = datasets.labelled(scope)
    page_cache.warm(dataset.file)
    ours = MeasuredLoader(dataset, "sequential", BATCH, schema="auto")
    clock = time.perf_counter_ns
    medians, everything = [], []
    for _ in range(scope.repetitions):
        found = []
        batches = iter(ours.loader)
        next(batches)
        for _ in range(len(ours.loader) - 1):
            _until_ready()
            before = clock()
            batch = next(batches)
            found.append((clock() - before) / 1e3)
            assert set(batch) == {"image", "label"}
            del batch
        for _ in batches:
            pass
        medians.append(statistics.median(found))
        everything += found
    ours.close()
    middle, low, high = quartiles(medians)
    everything.sort()
    tail = everything[int(0.99 * (len(everything) - 1))]
    return Outcome(
        middle, low, high, (("99th percentile", f"{tail:.1f} µs"), ("calls", f"{len(everything):,}"))
    )


def _until_ready() -> None:
    """Busy-wait, as a training loop does: a sleep would add wake-up latency to the loader's."""
    start = quiet_since = time.perf_counter()
    others = time.process_time() - time.thread_time()
    while (now := time.perf_counter()) - start < LONGEST_S:
        if (used := time.process_time() - time.thread_time()) - others > 20e-6:
            others, quiet_since = used, now
        elif now - start > READY_S and now - quiet_since > QUIET_S:
            return


ROWS = (
    Row(
        "next-ready",
        "`next(loader)` when data is ready, two fields",
        "nothing: an absolute time",
        10.0,
        False,
        "µs",
        measure,
    ),
)
