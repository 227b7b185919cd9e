"""Sequential batches, warm, one process: against plain 4 MiB preads of the same file."""

from __future__ import annotations

from contextlib import closing

from forebay_lab.ranks import page_cache
from studies.core.plain import Plain
from studies.core.row import Outcome, Row, side_by_side
from studies.harness import datasets
from studies.harness.measured_loader import MeasuredLoader
from studies.harness.sections import Scope

BATCH = 256
BLOCK_BYTES = 4 << 20


def measure(scope: Scope) -> Outcome:
    dataset = datasets.small(scope)
    page_cache.warm(dataset.file)
    ours = MeasuredLoader(dataset, "sequential", BATCH)
    threads = ours.readers
    pool_bytes = max(ours.pool_bytes, threads * BLOCK_BYTES)
    plain = Plain(scope, dataset.file, pool_bytes, threads)
    name = f"4 MiB preads, {threads} threads, pool of {pool_bytes >> 20} MiB"
    # `last_batch="drop"` leaves out less than one batch; the file is read whole by the other side.
    share = ours.samples / dataset.samples
    with closing(plain):
        return side_by_side(
            scope, ours, name, lambda: plain.read_file(BLOCK_BYTES), dataset.file.stat().st_size, share
        )


ROWS = (
    Row(
        "sequential-3k", "`sequential`, 256 x 3,073 B, warm, one process", "plain 4 MiB preads of the same file bytes",
        0.9, True, "×", measure,
    ),
)  # fmt: skip
