"""Random batches, warm, one process: against py-lmdb, a C loop over a mapping, and plain preads."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from forebay_lab.ranks import page_cache
from studies.core.plain import Plain, PyLmdb
from studies.core.row import Outcome, Row, side_by_side
from studies.harness import datasets
from studies.harness.measured_loader import MeasuredLoader
from studies.harness.sections import Scope

BATCH = 256
LARGE_BATCH = 32


def against_pylmdb(scope: Scope) -> Outcome:
    dataset = datasets.small(scope)
    page_cache.warm(dataset.file)
    ours, plain = MeasuredLoader(dataset, "shuffle", BATCH), PyLmdb(dataset, BATCH)
    keys = [[b"%08d" % i for i in ids] for ids in ours.ids()]
    with closing(plain):
        return side_by_side(
            scope, ours, "py-lmdb", lambda: plain.random(keys), ours.samples * dataset.record_bytes
        )


def against_copy(scope: Scope) -> Outcome:
    return _against_plain(scope, datasets.small(scope), BATCH, "copy_records", "C loop over a mapping")


def against_preads(scope: Scope) -> Outcome:
    return _against_plain(scope, datasets.large(scope), LARGE_BATCH, "read_records", "plain preads")


def _against_plain(scope: Scope, dataset: datasets.Set, batch: int, loop: str, name: str) -> Outcome:
    page_cache.warm(dataset.file)
    ours = MeasuredLoader(dataset, "shuffle", batch)
    offsets = ours.offsets()[np.concatenate(ours.ids())]
    plain = Plain(scope, dataset.file, ours.pool_bytes, ours.readers)
    call = getattr(plain, loop)
    full_name = f"{name}, {ours.readers} threads, pool of {ours.pool_bytes >> 20} MiB"
    with closing(plain):
        return side_by_side(
            scope, ours, full_name, lambda: call(offsets, dataset.record_bytes, batch),
            ours.samples * dataset.record_bytes,
        )  # fmt: skip


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
