"""Every number of the table of rows: its words, its unit, what it means, where it comes from.

A value is taken from the row's `median` where the bench put it there. What a median lacks is made
from the repetitions: seconds are means over the ranks, counts are sums over them, and of the
repetitions the median is taken.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay_lab.report.data import number

if TYPE_CHECKING:
    from forebay_lab.report.data import Row

__all__ = ["COLUMNS", "DEMO", "Column", "others", "spread", "value"]


@dataclass(frozen=True, slots=True)
class Column:
    """One number of a row."""

    key: str
    title: str
    kind: str
    """A kind of `forebay_lab.report.numbers`."""
    group: str
    meaning: str
    better: int = 0
    """1: more is better; -1: less is; 0: neither."""


COLUMNS = (
    Column("wall_seconds", "wall", "seconds", "Speed", "from its first batch to the end, slowest rank", -1),
    Column("total_seconds", "total", "seconds", "Speed", "start-up and wall together, of all ranks", -1),
    Column("samples_per_second", "samples", "samples", "Speed", "samples of all ranks over the total", 1),
    Column("rate_mib_s", "rate", "rate", "Speed", "bytes of these samples over the total", 1),
    Column(
        "accelerator_utilisation", "accelerator utilisation", "share", "Speed",
        "compute over run time, the first step left out, as DLIO and MLPerf Storage have it", 1,
    ),
    Column("startup_seconds", "start-up", "seconds", "Speed", "until the first batch: opening, index, first reads", -1),
    Column("exposed_seconds", "exposed", "seconds", "A rank's time", "waiting for data, mean of the ranks", -1),
    Column("compute_seconds", "compute", "seconds", "A rank's time", "the training step, mean of the ranks"),
    Column(
        "communication_seconds", "communication", "seconds", "A rank's time",
        "from the last rank's arrival until all have the sum, mean of the ranks",
    ),
    Column("skew_seconds", "skew", "seconds", "A rank's time", "waiting for ranks that came later, mean of the ranks"),
    Column("locate_seconds", "locate", "seconds", "A reader's time", "finding records, of the rank that it took longest", -1),
    Column(
        "locate_and_read_seconds", "locate and read", "seconds", "A reader's time",
        "finding and reading records, of the rank that it took longest", -1,
    ),
    Column("messages_per_step", "messages", "ratio", "A reader's time", "between nodes, all nodes together, per step", -1),
    Column("guess_hit_share", "guessed", "share", "A reader's time", "needed pages that had been asked for on a guess", 1),
    Column("requested_bytes", "requested", "bytes", "Data", "bytes of the samples that the ranks got"),
    Column("reads", "reads", "count", "Data", "of the loader's readers; of another program, its read calls"),
    Column("read_bytes", "read", "bytes", "Data", "bytes of these reads, from storage or page cache"),
    Column("mmap_bytes", "copied from a mapping", "bytes", "Data", "bytes that the loader copied from a mapping"),
    Column("storage_bytes", "from block devices", "bytes", "Data", "bytes that the ranks fetched from disks here"),
    Column("server_reads", "requests", "count", "Data", "requests that reached the emulated file system", -1),
    Column("server_bytes", "fetched", "bytes", "Data", "bytes of these requests", -1),
    Column(
        "fetched_requested_ratio", "fetched / requested", "ratio", "Data",
        "1: each byte of the samples came from the servers once", -1,
    ),
    Column(
        "read_amplification", "read amplification", "ratio", "Data",
        "1: each page that holds a sample came from the servers once", -1,
    ),
    Column("minor_faults", "minor faults", "count", "Kernel", "page faults served from memory", -1),
    Column("major_faults", "major faults", "count", "Kernel", "page faults that waited for the storage", -1),
    Column("voluntary_switches", "voluntary switches", "count", "Kernel", "times a thread waited, and let others run", -1),
    Column("involuntary_switches", "involuntary switches", "count", "Kernel", "times a thread lost its processor"),
    Column("cpu_seconds", "processor time", "seconds", "Kernel", "processor time of the ranks: real, never stretched", -1),
)  # fmt: skip
"""All columns of a bench, in the order of the table."""

_TIMES, _FILE_SYSTEM, _KERNEL = "Times", "Counted by the emulated file system", "Counted by the kernel"

DEMO = (
    Column("wall_seconds", "epoch", "seconds", _TIMES, "mean epoch of the mean rank, without start-up", -1),
    Column("exposed_seconds", "exposed", "seconds", _TIMES, "waiting for data, per epoch, mean of the ranks", -1),
    Column("compute_seconds", "compute", "seconds", _TIMES, "gradient and update, per epoch, mean of the ranks"),
    Column("skew_seconds", "skew", "seconds", _TIMES, "until the last rank comes, per epoch, mean of the ranks"),
    Column(
        "communication_seconds", "communication", "seconds", _TIMES,
        "from the last rank's arrival until all have the sum, per epoch, mean of the ranks",
    ),
    Column("training_seconds", "all epochs", "seconds", _TIMES, "mean rank, start-up included", -1),
    Column("startup_seconds", "start-up", "seconds", _TIMES, "slowest rank: opening, index, first batch", -1),
    Column("pfs_reads", "requests", "count", _FILE_SYSTEM, "reads that left the node, page faults of mappings included", -1),
    Column("pfs_read_bytes", "fetched", "bytes", _FILE_SYSTEM, "bytes of these requests; the page cache served the rest", -1),
    Column("pfs_mean_read_bytes", "mean request", "bytes", _FILE_SYSTEM, "after the kernel has split and merged requests", 1),
    Column("pfs_max_in_flight", "requests in flight", "count", _FILE_SYSTEM, "maximum: the depth of the queue"),
    Column(
        "pfs_queue_seconds", "queued", "seconds", _FILE_SYSTEM,
        "model seconds that requests waited for the server and its link, sum of all requests",
    ),
    Column("cpu_seconds", "processor time for data", "seconds", _KERNEL, "all threads: fetching and decoding batches", -1),
    Column(
        "training_thread_faults", "page faults, training thread", "count", _KERNEL,
        "minor and major, while it got batches: each one stopped a step", -1,
    ),
    Column("minor_faults", "minor faults", "count", _KERNEL, "all threads: page faults served from memory", -1),
    Column("major_faults", "major faults", "count", _KERNEL, "all threads: page faults that waited for storage", -1),
    Column("read_calls", "read calls", "count", _KERNEL, "syscr of /proc/self/io; reads through a mapping are not counted", -1),
    Column("read_call_bytes", "read", "bytes", _KERNEL, "rchar of /proc/self/io, from page cache or storage"),
    Column("storage_bytes", "from block devices", "bytes", _KERNEL, "read_bytes of /proc/self/io", -1),
    Column(
        "training_thread_switches", "context switches, training thread", "count", _KERNEL,
        "voluntary and involuntary, while it got batches", -1,
    ),
    Column("switches", "context switches", "count", _KERNEL, "all threads, voluntary and involuntary", -1),
    Column("accuracy", "accuracy", "share", "The model", "on held-out images, after the last epoch", 1),
)  # fmt: skip
"""All columns of a demo, in the order of the table."""

_FROM_PFS = {"server_bytes": "read_bytes", "server_reads": "reads"}


def value(row: Row, column: Column) -> float | None:
    """Return what the table shows for a row, or None where it is not known."""
    if column.key in row.median:
        return number(row.median[column.key])
    found = _by_repetition(row, column)
    return statistics.median(found) if found else None


def spread(row: Row, column: Column) -> float | None:
    """Return (largest - smallest) / median over the repetitions, or None where it is not known."""
    if column.key in row.spread:
        return number(row.spread[column.key])
    found = _by_repetition(row, column)
    middle = statistics.median(found) if found else 0.0
    return (max(found) - min(found)) / middle if middle else None


def others(rows: list[Row]) -> list[Column]:
    """Return columns for medians that the list above does not name, so that none is hidden."""
    known = {column.key for column in COLUMNS}
    keys = {
        key for row in rows for key, one in row.median.items() if key not in known and number(one) is not None
    }
    return [
        Column(key, key.replace("_", " "), _kind(key), "Others", "as the bench gives it; see docs/metrics.md")
        for key in sorted(keys)
    ]


def _kind(key: str) -> str:
    if key.endswith("_seconds"):
        return "seconds"
    if key.endswith("_bytes"):
        return "bytes"
    return "rate" if key.endswith("_mib_s") else "count"


def _by_repetition(row: Row, column: Column) -> list[float]:
    found = (_of(one, column) for one in row.repetitions)
    return [one for one in found if one is not None]


def _of(repetition: dict[str, Any], column: Column) -> float | None:
    """Make the number from what ranks and the file system counted in one repetition."""
    if column.key in repetition:
        return number(repetition[column.key])
    if column.key == "fetched_requested_ratio":
        fetched, requested = _nodes(repetition, "read_bytes"), _ranks(repetition, "requested_bytes")
        whole = math.fsum(requested)
        return fetched / whole if fetched is not None and whole else None
    if column.key in _FROM_PFS:
        return _nodes(repetition, _FROM_PFS[column.key])
    ranks = _ranks(repetition, column.key)
    if not ranks:
        return None
    mean = column.kind == "seconds" and column.key != "cpu_seconds"
    return statistics.fmean(ranks) if mean else math.fsum(ranks)


def _ranks(repetition: dict[str, Any], key: str) -> list[float]:
    ranks = repetition.get("ranks") or []
    return [one for rank in ranks if isinstance(rank, dict) and (one := number(rank.get(key))) is not None]


def _nodes(repetition: dict[str, Any], key: str) -> float | None:
    pfs = repetition.get("pfs")
    if not isinstance(pfs, dict) or not isinstance(pfs.get("nodes"), list):
        return None
    return sum((number(node.get(key)) or 0.0 for node in pfs["nodes"]), 0.0)
