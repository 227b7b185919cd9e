"""Sequential batches, warm, one process: against plain 4 MiB preads of the same file."""

from __future__ import annotations

from forebay_lab.bench.turns import in_turn
from forebay_lab.ranks import page_cache
from studies.core.plain import Plain
from studies.core.row import WARM_UPS, Outcome, Row, rate, ratio
from studies.harness import datasets
from studies.harness.feed import Feed
from studies.harness.sections import Scope

BATCH = 256
BLOCK_BYTES = 4 << 20


def measure(scope: Scope) -> Outcome:
    dataset = datasets.small(scope)
    page_cache.warm(dataset.file)
    feed = Feed(dataset, "sequential", BATCH)
    threads = feed.readers
    pool_bytes = max(feed.pool_bytes, threads * BLOCK_BYTES)
    plain = Plain(scope, dataset.file, pool_bytes, threads)
    found = in_turn(
        {"forebay": feed.drain, "preads": lambda: plain.read_file(BLOCK_BYTES)}, scope.repetitions, WARM_UPS
    )
    # `last_batch="drop"` leaves out less than one batch; the file is read whole by the other side.
    share = feed.samples / dataset.samples
    middle, low, high = (share * value for value in ratio(found["forebay"], found["preads"]))
    file_bytes = dataset.file.stat().st_size
    parts = (
        ("forebay", rate(file_bytes * share, found["forebay"])),
        (
            f"4 MiB preads, {threads} threads, pool of {pool_bytes >> 20} MiB",
            rate(file_bytes, found["preads"]),
        ),
    )
    profile = feed.profile()
    plain.close()
    feed.close()
    return Outcome(middle, low, high, parts, profile)


ROWS = (
    Row(
        "sequential-3k", "`sequential`, 256 x 3,073 B, warm, one process", "plain 4 MiB preads of the same file bytes",
        0.9, True, "×", measure,
    ),
)  # fmt: skip
