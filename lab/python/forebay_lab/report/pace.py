"""Whether reading keeps up with computing, by how much it does not, and what would close the gap.

All numbers come from the repetition that the figures show. Computing is the time in which a rank
needs no data, with the communication of its step. Waiting is the exposed time of the rank that
waited longest. Reading is the time that each reader took to locate, read and decode, with start-up,
on the slowest rank. The advice is the first of these that the measurements support:

1. The storage is at its limit: only a storage tier, or fewer bytes, help. `tier_outlook` says how
   much a tier would save.
2. Reading is faster than computing, yet ranks wait: prefetch further ahead.
3. Each rank copies its samples from a mapping: use readers.
4. Requests are small, and each pays the latency: use fewer, larger requests.
5. Readers are never idle: use more of them.
6. Otherwise readers wait for memory or for their turn: prefetch further ahead.

A program that reports no readers of its own gets its waiting time, and no advice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_lab.report import numbers, tier_outlook
from forebay_lab.report.data import number
from forebay_lab.report.figures.limit import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_lab.report.data import Result, Row
    from forebay_lab.report.tier_outlook import TierOutlook

__all__ = ["Pace", "behind", "of"]

MIB = 1 << 20

EXPOSED_SHARE = 0.01
"""Largest exposed share of the computing time at which reading keeps up: the noise of a run of a
few hundred steps."""
AT_LIMIT = 0.8
"""Share of the limit above which no change of the requests gains much."""
LARGE_REQUEST_BYTES = MIB
"""The engine's largest ordinary read: above it nothing is gained, below 64 KiB the rate halves."""
IDLE_SHARE = 0.1
"""Readers idle for less than this share of the run are busy; each epoch's end idles some."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What was measured of one row; None is what it does not tell."""

    name: str
    order: str
    computing_s: float
    waited_s: float
    reading_s: float | None
    readers: int
    """Threads of all ranks; none where every rank copies from a mapping."""
    idle_share: float | None
    request_bytes: float | None
    rate_mib_s: float | None
    """Bytes that were fetched over the whole run."""
    limit_mib_s: float | None
    tier: TierOutlook | None = None
    """What a storage tier would save; None where that is not known, or the row had tiers."""

    @property
    def keeps_up(self) -> bool:
        """Whether next to nothing was waited for data."""
        return self.waited_s <= EXPOSED_SHARE * self.computing_s

    @property
    def ratio(self) -> float | None:
        """Reading time over computing time; above 1, the factor by which reading is too slow."""
        return None if self.reading_s is None else self.reading_s / self.computing_s

    @property
    def limit_share(self) -> float | None:
        """How much of what the storage gives at most was fetched."""
        if self.rate_mib_s is None or self.limit_mib_s is None:
            return None
        return self.rate_mib_s / self.limit_mib_s

    @property
    def remedy(self) -> str:
        """What would help, in one word: nothing, `tier`, `ahead`, `larger`, `readers`."""
        if self.keeps_up or self.ratio is None:
            return ""
        if self.limit_share is not None and self.limit_share >= AT_LIMIT:
            return "tier"
        if self.ratio <= 1:
            return "ahead"
        if not self.readers:
            return "readers"
        if self.request_bytes is not None and self.request_bytes < LARGE_REQUEST_BYTES:
            return "larger"
        return "readers" if self.idle_share is not None and self.idle_share < IDLE_SHARE else "ahead"

    def words(self) -> str:
        """Return the pace as sentences."""
        share = numbers.percent(self.waited_s / self.computing_s)
        waited = f"{numbers.text('seconds', self.waited_s)} ({share} of the time that computing takes)"
        if self.ratio is None:
            return f"waits {waited} for data; it does not tell how it reads."
        takes = f"reading takes {self.ratio:.2f} of the time that computing takes"
        if self.keeps_up:
            return f"keeps up: {takes}, and {waited} is waited for data."
        if self.ratio <= 1:
            behind = f"{takes}, so it could hide behind it, and yet {waited} is waited for data."
        else:
            behind = f"{takes}, and {waited} is waited for data: {self.ratio:.2f} times as much per second would be needed."
        return f"{behind} {self._advice()}"

    def _advice(self) -> str:
        remedy, limit = self.remedy, self._limit()
        if remedy == "tier":
            return (
                f"The storage is at its limit, {limit}: a tier before it or fewer bytes would close the gap."
                f"{self._tier()}"
            )
        idle = (
            ""
            if self.idle_share is None
            else f"; the readers are idle {numbers.percent(self.idle_share)} of the time"
        )
        if remedy == "ahead":
            return f"Reading does not run far enough ahead{idle}: more memory or buffers would close the gap."
        if remedy == "larger":
            size = self.request_bytes or 1.0
            times = math.ceil(LARGE_REQUEST_BYTES / size)
            way = "Larger groups" if self.order.startswith("group") else "The order group, or coalescing,"
            found = (
                f"Requests are small, {numbers.text('bytes', size)} in the mean, {limit}. {way} would help: "
                f"{times:,} times as large, a request has {numbers.text('bytes', size * times)}."
            )
        elif not self.readers:
            found = f'Every rank copies its samples by itself, {limit}: readers (readers=, access="pread") would help.'
        else:
            wanted = math.ceil(self.readers * (self.ratio or 1.0))
            found = (
                f"The readers are idle {numbers.percent(self.idle_share or 0.0)} of the time, and the storage is far from its "
                f"limit, {limit}: more readers would help, {wanted} instead of {self.readers}."
            )
        if self.limit_share and self.ratio and self.ratio * self.limit_share > 1:
            found += f" The limit allows {1 / self.limit_share:.2f} times as much; the rest takes a tier or fewer bytes."
            found += self._tier()
        return found

    def _tier(self) -> str:
        return "" if self.tier is None else f" {self.tier.words()}"

    def _limit(self) -> str:
        if self.limit_share is None or self.rate_mib_s is None or self.limit_mib_s is None:
            return "and the limit of the storage is not known"
        rate, limit = (numbers.text("rate", one) for one in (self.rate_mib_s, self.limit_mib_s))
        return f"{rate} of {limit} ({numbers.percent(self.limit_share)})"


def of(result: Result, row: Row) -> Pace | None:
    """Return the pace of a row, or None where it did not compute or reports no times."""
    known = [
        (waited, computed + (number(rank.get("communication_seconds")) or 0.0))
        for rank in row.ranks
        if (waited := number(rank.get("exposed_seconds"))) is not None
        and (computed := number(rank.get("compute_seconds")))
    ]
    if not known or not number(result.values.get("compute_seconds")):
        return None
    waited, computing = max(known)
    total = number(row.shown.get("total_seconds"))
    threads = int(sum(number(one.get("threads")) or 0 for one in row.readers))
    idle = sum(number(one.get("reader_idle_seconds")) or 0.0 for one in row.readers)
    reads, read = (number(row.shown.get(key)) for key in ("reads", "read_bytes"))
    fetched = _fetched(row)
    rate_mib_s = fetched / MIB / total if fetched is not None and total else None
    return Pace(
        name=row.name,
        order=row.name.partition("@")[2],
        computing_s=computing,
        waited_s=waited,
        reading_s=_reading(row),
        readers=threads,
        idle_share=min(idle / (threads * total), 1.0) if threads and total else None,
        request_bytes=read / reads if threads and read and reads else None,
        rate_mib_s=rate_mib_s,
        # On one node both are the same thing; on several the measured one is that of one of them.
        limit_mib_s=max((rate for _, rate, _ in limits(result)), default=None),
        tier=tier_outlook.of(result, row, rate_mib_s=rate_mib_s, computing_s=computing),
    )


def behind(result: Result) -> Iterator[Pace]:
    """Return the engine's rows whose reading does not keep up."""
    for row in result.drawn:
        pace = of(result, row)
        if pace is not None and pace.remedy:
            yield pace


def _reading(row: Row) -> float | None:
    """Return what bringing samples took a reader, unpacking what is coded included."""
    reading = number(row.shown.get("locate_and_read_seconds"))
    if reading is None or not row.readers:
        return None
    unpacking = (
        (number(one.get("decode_seconds")) or 0.0) / threads
        for one in row.readers
        if (threads := number(one.get("threads")))
    )
    return reading + max(unpacking, default=0.0)


def _fetched(row: Row) -> float | None:
    """Return the bytes that the storage was asked for, as near to it as they were counted."""
    nodes = row.pfs.get("nodes")
    if isinstance(nodes, list):
        return sum(number(node.get("read_bytes")) or 0.0 for node in nodes if isinstance(node, dict))
    counted = [number(row.shown.get(key)) for key in ("read_bytes", "mmap_bytes")]
    return None if None in counted else sum(one or 0.0 for one in counted)
