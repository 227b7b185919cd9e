"""Group order from a cold, throttled disk, in turn with `forebay limit` on the same file.

Both run in children that join a control group with a limit on the disk's read rate. Before every
repetition the file is dropped from the page cache, and what the child caused to be fetched is
compared with the file's size: a run that found pages in the cache is an error, not a figure. The
loader is made anew each time, its making is not timed (its index comes from the sidecar), its first
batch is.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay_lab.bench.turns import in_turn
from forebay_lab.ranks import page_cache
from forebay_lab.ranks.rusage import transfers
from studies.core import throttle
from studies.core.row import WARM_UPS, Outcome, Row, ratio
from studies.harness import datasets
from studies.harness.measured_loader import MeasuredLoader
from studies.harness.sections import Scope

RATE_BYTES_S = 200_000_000
LIMIT_SECONDS = 60.0
"""More than one read of the file takes: with `cold` the limit reads the file once and ends."""
LIMIT_BLOCK_BYTES = 4 << 20


def small(scope: Scope) -> Outcome:
    return _measure(scope, datasets.small(scope), 256)


def large(scope: Scope) -> Outcome:
    return _measure(scope, datasets.large(scope), 32)


def _measure(scope: Scope, dataset: datasets.Set, batch: int) -> Outcome:
    import forebay

    len(forebay.open(dataset.path, schema="raw"))  # The sidecar is there from now on.
    with throttle.group(dataset.file, RATE_BYTES_S) as group:
        # Seconds per byte, so that a larger ratio is better for us as in the other rows.
        found = in_turn(
            {
                "forebay": lambda: 1 / _child(_drain, group, dataset, batch),
                "limit": lambda: 1 / _child(_limit, group, dataset),
            },
            scope.repetitions,
            WARM_UPS,
        )
    middle, low, high = ratio(found["forebay"], found["limit"])
    parts = tuple(
        (name, f"{1 / statistics.median(values) / 1e6:,.1f} MB/s of pages") for name, values in found.items()
    )
    return Outcome(middle, low, high, parts, (("throttle", f"{RATE_BYTES_S / 1e6:.0f} MB/s"),))


def _drain(dataset: datasets.Set, batch: int) -> float:
    """Bytes of pages per second of one epoch."""
    ours = MeasuredLoader(dataset, "group", batch)
    before = transfers().storage_bytes
    seconds = ours.drain()
    fetched = transfers().storage_bytes - before
    share = ours.samples / dataset.samples
    ours.close()
    if fetched < 0.9 * share * dataset.page_bytes:
        raise RuntimeError(
            f"the file was not cold: expected {dataset.page_bytes} bytes fetched, found {fetched}"
        )
    return share * dataset.page_bytes / seconds


def _limit(dataset: datasets.Set) -> float:
    """Bytes per second that `forebay limit` finds for one sequential read of the file."""
    from forebay import _native

    found = _native.limit(
        str(dataset.file),
        block_bytes=LIMIT_BLOCK_BYTES,
        seconds=LIMIT_SECONDS,
        kind="sequential",
        cold=True,
    )
    return float(found["read_bytes"] / found["seconds"])


def _child(action: Callable[..., float], group: Path, dataset: datasets.Set, *arguments: Any) -> float:
    """What `action` returns in a new process inside the group, with the file cold."""
    page_cache.drop(dataset.file)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_inside, args=(sender, action, group, dataset, *arguments))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the measuring process ended with exit code {process.exitcode}") from None
    process.join()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return float(answer)


def _inside(sender: Any, action: Callable[..., float], group: Path, *arguments: Any) -> None:
    throttle.join(group)
    try:
        sender.send(action(*arguments))
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}")


ROWS = (
    Row(
        "group-cold-3k", "group order, 256 x 3,073 B, cold, throttled disk", "`forebay limit` sequential",
        0.95, True, "×", small,
    ),
    Row(
        "group-cold-110k", "group order, 32 x 110,000 B, cold, throttled disk", "`forebay limit` sequential",
        0.95, True, "×", large,
    ),
)  # fmt: skip
