"""Random batches, warm, one process: against py-lmdb, a C loop over a mapping, and plain preads."""

from __future__ import annotations

import statistics

import numpy as np

from forebay_lab.bench.turns import in_turn
from forebay_lab.ranks import page_cache
from studies.core.plain import Plain, PyLmdb
from studies.core.row import WARM_UPS, Outcome, Row, rate, ratio
from studies.harness import datasets
from studies.harness.feed import Feed
from studies.harness.sections import Scope

BATCH = 256
LARGE_BATCH = 32


def against_pylmdb(scope: Scope) -> Outcome:
    dataset = datasets.small(scope)
    page_cache.warm(dataset.file)
    feed, plain = Feed(dataset, "shuffle", BATCH), PyLmdb(dataset, BATCH)
    keys = [[b"%08d" % i for i in ids] for ids in feed.ids()]
    found = in_turn(
        {"forebay": feed.drain, "py-lmdb": lambda: plain.random(keys)}, scope.repetitions, WARM_UPS
    )
    middle, low, high = ratio(found["forebay"], found["py-lmdb"])
    parts = tuple(
        (name, f"{feed.samples / statistics.median(seconds) / 1e3:,.0f} k samples/s")
        for name, seconds in found.items()
    )
    profile = feed.profile()
    plain.close()
    feed.close()
    return Outcome(middle, low, high, parts, profile)


def against_copy(scope: Scope) -> Outcome:
    return _against_plain(scope, datasets.small(scope), BATCH, "copy_records", "C loop over a mapping")


def against_preads(scope: Scope) -> Outcome:
    return _against_plain(scope, datasets.large(scope), LARGE_BATCH, "read_records", "plain preads")


def _against_plain(scope: Scope, dataset: datasets.Set, batch: int, loop: str, name: str) -> Outcome:
    page_cache.warm(dataset.file)
    feed = Feed(dataset, "shuffle", batch)
    offsets = feed.offsets()[np.concatenate(feed.ids())]
    plain = Plain(scope, dataset.file, feed.pool_bytes, feed.readers)
    call = getattr(plain, loop)
    found = in_turn(
        {"forebay": feed.drain, name: lambda: call(offsets, dataset.record_bytes, batch)},
        scope.repetitions,
        WARM_UPS,
    )
    middle, low, high = ratio(found["forebay"], found[name])
    moved = feed.samples * dataset.record_bytes
    parts = (
        ("forebay", rate(moved, found["forebay"])),
        (f"{name}, {feed.readers} threads, pool of {feed.pool_bytes >> 20} MiB", rate(moved, found[name])),
    )
    profile = feed.profile()
    plain.close()
    feed.close()
    return Outcome(middle, low, high, parts, profile)


ROWS = (
    Row(
        "random-3k-pylmdb", "random batches of 256 x 3,073 B, warm, one process", "py-lmdb `get` into one array",
        4.0, True, "×", against_pylmdb,
    ),
    Row(
        "random-3k-copy", "random batches of 256 x 3,073 B, warm, one process", "a C loop copying them from a mapping",
        0.8, True, "×", against_copy,
    ),
    Row(
        "shuffle-110k", "`shuffle`, 32 x 110,000 B, warm, one process", "plain preads of the same records",
        0.9, True, "×", against_preads,
    ),
)  # fmt: skip
