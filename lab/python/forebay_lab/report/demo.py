"""The words of a demo's page: headline, cards, facts, method.

All of them follow from the JSON object of `forebay demo --json`. The demo prints the same words
below its table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_lab.report import numbers
from forebay_lab.report.data import number
from forebay_lab.report.svg import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from forebay_lab.report.data import Result, Row

__all__ = ["TITLE", "cards", "caveat", "facts", "late", "lateness", "lead", "method", "storage", "verdict"]

TITLE = "One training job, three ways to feed it"

_LATE = (
    "More than 5 % of the time of requests was lateness of the emulated file system, so the times are not valid. "
    "Run the demo again on an idle machine."
)

_DISK = (
    "Times on a local disk, cached by this machine and perhaps by its host, say little about shared storage, and ranks that "
    "outnumber cores wait for each other. Compare the counters; the times are printed for completeness."
)
_DISK_FAULTS = (
    "On a parallel file system each major fault is a small request. A local disk with a large read-ahead window does not show "
    "that cost."
)
_EMULATED_FAULTS = (
    "Here all ranks share one node: a page that one rank has fetched is there for the others. The second epoch comes from the "
    "node's page cache if that is large enough. `forebay bench --nodes` gives each rank a node of its own. Requests are "
    "counted after the kernel has cut reads to its read-ahead window, 128 KiB here: large reads and a mapping that is read in "
    "order then make about as many requests."
)
_METHOD = (
    "The 1,797 digits of scikit-learn are split into training and held-out images, class by class. Only then are the training "
    "images enlarged to 3×32×32, shifted, coloured and made noisy, drawn at random, and written as Caffe Datum records with "
    "py-lmdb, one transaction per 1,000. Each run starts its own MPI processes with the same seed.",
    "py-lmdb, skipping, is the pattern of data-parallel Caffe: each rank walks one cursor over all records, keeps its share of "
    "each step and skips the rest. Records are read through LMDB's mapping, on the training thread, as it touches their pages. "
    "(Caffe moves that walk to another thread; the walk is the same.)",
    "Forebay, sequential, delivers the same batches: its readers fetch each page once for all ranks, in large reads, ahead of "
    "time. Forebay, group, reads contiguous groups and shuffles samples inside windows of groups: another order, so another "
    "loss curve.",
    "A page fault stops a thread because a page is not mapped: a minor fault if the page is in memory, a major fault if the "
    "thread waits for storage. With py-lmdb the training thread takes the faults. Forebay's threads take theirs in parallel "
    "with the training, most of them once, when a process first touches the buffers.",
)


def storage(values: Mapping[str, Any]) -> str:
    """Name what the ranks read from."""
    pfs = values.get("pfs")
    if pfs is None:
        return f"storage: the local disk, not an emulated file system: {values.get('pfs_reason')}"
    scale = pfs["time_scale"]
    limit, latency_s = pfs["limit_mib_s"] / scale, pfs["spec"]["latency_us"] * scale / 1e6
    return (
        f"storage: the emulated file system {pfs['spec'].get('name')}, {scale:g} times slower: "
        f"{numbers.text('rate', limit)}, {numbers.text('seconds', latency_s)} per request"
    )


def caveat(values: Mapping[str, Any]) -> str:
    """Return how far the times can be trusted."""
    pfs = values.get("pfs")
    if pfs is None:
        return _DISK
    return (
        f"Times are real seconds on an emulated file system that is {pfs['time_scale']:g} times slower than "
        f"{pfs['spec'].get('name')}, so that a small machine can emulate it. Computing, copying and page faults are not slowed "
        "down, so they look cheaper in relation to storage than they are. Ranks that outnumber cores wait for each other, and "
        "the emulator runs on the same cores. There, computing takes longer beside Forebay's threads: they read and decode "
        "while a rank computes, on the same cores, what py-lmdb reads and decodes before the step, as exposed. With as many "
        "cores as ranks it takes no longer."
    )


def lateness(rows: Iterable[Row]) -> str | None:
    """State what share of the time of requests was lost by late replies, if they are emulated."""
    found = [(row.name, number(row.median.get("pfs_lateness_share"))) for row in rows]
    shares = ", ".join(f"{numbers.percent(share, 1)} ({name})" for name, share in found if share is not None)
    return f"share of the time of requests that was lateness of the emulator: {shares}" if shares else None


def late(rows: Iterable[Row]) -> list[str]:
    """Return a warning if replies were late."""
    return [_LATE] if any(row.late for row in rows) else []


def verdict(values: Mapping[str, Any]) -> str:
    """Compare the losses of the first two runs, which read in the same order."""
    first, second = (run["losses"] for run in values["runs"][:2])
    step = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    if step is None and len(first) == len(second):
        return f"identical, bit for bit, in all {len(first)} steps"
    step = min(len(first), len(second)) if step is None else step
    found = (repr(losses[step]) if step < len(losses) else "none" for losses in (first, second))
    return f"DIFFERENT from step {step} on: {' and '.join(found)}"


def lead(result: Result) -> str:
    """Return the sentence below the headline."""
    values = result.values
    return (
        f"A small model learns digits on {number(values.get('ranks')) or 0:.0f} MPI ranks from a Caffe-style LMDB of "
        f"{number(values.get('samples')) or 0:,.0f} samples ({numbers.text('bytes', number(values.get('file_bytes')) or 0)}): "
        "with py-lmdb as Caffe reads, with Forebay in the same order, and with Forebay's group order."
    )


def cards(result: Result) -> Iterator[tuple[str, str, str]]:
    """Yield value, tone and text of each card."""
    base, same, group = result.rows[0], result.rows[1], result.rows[-1]
    identical = bool(result.values["losses_identical"])
    yield (
        "identical" if identical else "different",
        "good" if identical else "bad",
        f"losses of {base.name} and {same.name} in the same order: {verdict(result.values)}",
    )
    for key, kind, text in (
        ("training_seconds", "seconds", "time of start-up and all epochs, the first one cold"),
        ("exposed_seconds", "seconds", "waiting for data, per epoch"),
        ("training_thread_faults", "count", "page faults that stopped a training step for data"),
    ):
        ours, theirs = (number(row.median.get(key)) for row in (same, base))
        if ours and theirs:
            yield (
                f"{theirs / ours:.1f} ×",
                "",
                f"{text}, {base.name} against {same.name}: {numbers.text(kind, theirs)} and {numbers.text(kind, ours)}",
            )
    ours, theirs = (number(row.median.get("accuracy")) for row in (group, same))
    if ours is not None and theirs is not None:
        yield (
            numbers.percent(ours, 1),
            "",
            f"accuracy on held-out images: {group.name}; {numbers.percent(theirs, 1)}: {same.name}",
        )


def facts(result: Result) -> Iterator[tuple[str, str]]:
    """Yield name and text of each fact below the tables."""
    values = result.values
    machine = result.part("machine")
    if machine:
        yield (
            "Machine",
            f"{machine.get('kernel')}, {machine.get('cores')} cores for {values.get('ranks')} ranks",
        )
    yield "Storage", storage(values).removeprefix("storage: ")
    if (share := lateness(result.rows)) is not None:
        yield "Lateness", share
    yield (
        "Model",
        f"two layers, numpy, SGD with momentum, gradients summed by MPI; batches of {values.get('batch_size')} per rank, "
        f"{values.get('epochs')} epochs",
    )
    pfs = values.get("pfs")
    yield (
        "Repeat with",
        f"forebay demo {'--no-pfs' if pfs is None else '--pfs ' + str(pfs['spec'].get('name'))}",
    )


def method(result: Result) -> str:
    """Return the section that describes the job, with the last loader's ``explain()``."""
    more = _DISK_FAULTS if result.values.get("pfs") is None else _EMULATED_FAULTS
    text = "".join(f'<p class="lead">{escape(one)}</p>' for one in (*_METHOD, more))
    found = result.rows[-1].shown.get("facts")
    explain = found.get("explain") if isinstance(found, dict) else None
    return text + (f"<h3>What Forebay chose</h3><pre>{escape(explain)}</pre>" if explain else "")
