"""Group order, warm, one process: against a numpy loop over a mapped `.npy` of the batches.

The numpy loop does one copy per sample and nothing else: it finds nothing, decodes nothing, and its
file holds no padding. It is given the very ids that the loader delivered, in the same order.
"""

from __future__ import annotations

import numpy as np

from bench import datasets
from bench.baselines import numpy_loop
from bench.feed import Feed
from bench.harness import Outcome, Row, Settings, in_turn, rate, ratio


def small(settings: Settings) -> Outcome:
    return _measure(settings, datasets.small(settings), 256)


def large(settings: Settings) -> Outcome:
    return _measure(settings, datasets.large(settings), 32)


def _measure(settings: Settings, dataset: datasets.Set, batch: int) -> Outcome:
    datasets.with_npy(dataset)
    datasets.warm(dataset.file)
    datasets.warm(dataset.npy)
    feed = Feed(dataset, "group", batch)
    ids = feed.ids()
    mapped = np.load(dataset.npy, mmap_mode="r").view(np.ndarray)
    into = np.ones((batch, dataset.record_bytes), np.uint8)
    found = in_turn(
        {"forebay": feed.drain, "numpy": lambda: numpy_loop(mapped, ids, into)}, settings.repetitions
    )
    middle, low, high = ratio(found["forebay"], found["numpy"])
    moved = feed.samples * dataset.record_bytes
    profile = feed.profile()
    feed.close()
    parts = (("forebay", rate(moved, found["forebay"])), ("numpy loop", rate(moved, found["numpy"])))
    return Outcome(middle, low, high, parts, profile)


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
