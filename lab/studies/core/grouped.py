"""Group order, warm, one process: against a numpy loop over a mapped `.npy` of the batches.

The numpy loop does one copy per sample and nothing else: it finds nothing, decodes nothing, and its
file holds no padding. It is given the very ids that the loader delivered, in the same order.
"""

from __future__ import annotations

import numpy as np

from forebay_lab.ranks import page_cache
from studies.core.plain import numpy_loop
from studies.core.row import Outcome, Row, side_by_side
from studies.harness import datasets
from studies.harness.measured_loader import MeasuredLoader
from studies.harness.sections import Scope


def small(scope: Scope) -> Outcome:
    return _measure(scope, datasets.small(scope), 256)


def large(scope: Scope) -> Outcome:
    return _measure(scope, datasets.large(scope), 32)


def _measure(scope: Scope, dataset: datasets.Set, batch: int) -> Outcome:
    datasets.with_npy(dataset)
    page_cache.warm(dataset.file)
    page_cache.warm(dataset.npy)
    ours = MeasuredLoader(dataset, "group", batch)
    ids = ours.ids()
    mapped = np.load(dataset.npy, mmap_mode="r").view(np.ndarray)
    into = np.ones((batch, dataset.record_bytes), np.uint8)
    return side_by_side(
        scope, ours, "numpy loop", lambda: numpy_loop(mapped, ids, into), ours.samples * dataset.record_bytes
    )


ROWS = (
    Row(
        "group-3k", "group order, 256 x 3,073 B, warm, one process", "a numpy loop over a mapped `.npy` of the same bytes",
        1.0, True, "×", small,
    ),
    Row(
        "group-110k", "group order, 32 x 110,000 B, warm, one process", "a numpy loop over a mapped `.npy` of the same bytes",
        1.0, True, "×", large,
    ),
)  # fmt: skip
