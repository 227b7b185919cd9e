"""From the ranks' time stamps to the numbers of a repetition; docs/metrics.md defines them.

All times come out in model time: real time over the emulator's time scale, which is 1 where there
is no emulator. Time of the processor and counts stay as they are.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Rank", "median", "repetition", "spread"]

MIB = 1 << 20

SCALARS = (
    "wall_seconds",
    "startup_seconds",
    "total_seconds",
    "samples_per_second",
    "rate_mib_s",
    "accelerator_utilisation",
    "locate_seconds",
    "locate_and_read_seconds",
    "messages_per_step",
    "guess_hit_share",
    "read_amplification",
)
MEANS = ("exposed_seconds", "compute_seconds", "communication_seconds", "skew_seconds")
"""Of a rank's wall; a repetition has the mean over the ranks."""
SUMS = (
    "requested_bytes",
    "read_bytes",
    "reads",
    "mmap_bytes",
    "storage_bytes",
    "minor_faults",
    "major_faults",
    "voluntary_switches",
    "involuntary_switches",
    "cpu_seconds",
)
"""Of a rank; a repetition has the sum over the ranks."""


@dataclass(frozen=True, slots=True)
class Rank:
    """What a rank wrote."""

    measured: dict[str, Any]
    arrays: dict[str, npt.NDArray[np.int64]]

    @property
    def steps(self) -> int:
        """Steps taken."""
        return len(self.arrays["got"])


def repetition(ranks: Sequence[Rank], time_scale: float) -> dict[str, Any]:
    """Join the ranks of one run.

    Raises
    ------
    ValueError
        If they took different numbers of steps, or none.
    """
    if len({rank.steps for rank in ranks}) != 1 or ranks[0].steps == 0:
        raise ValueError(
            f"expected the same number of steps on every rank, found {[rank.steps for rank in ranks]}"
        )
    last = np.max([rank.arrays["arrived"] for rank in ranks], axis=0)
    real = 1e9 * time_scale
    rows = [_rank(rank, last, real) for rank in ranks]
    begin = min(rank.arrays["marks"][0] for rank in ranks)
    total = float(max(rank.arrays["marks"][2] for rank in ranks) - begin) / real
    asked = sum(row["requested_bytes"] for row in rows)
    found: dict[str, Any] = {
        "wall_seconds": max(row["wall_seconds"] for row in rows),
        "startup_seconds": max(row["startup_seconds"] for row in rows),
        "total_seconds": total,
        "samples_per_second": float(sum(rank.arrays["samples"].sum() for rank in ranks)) / total,
        "rate_mib_s": asked / MIB / total,
        "accelerator_utilisation": _utilisation(ranks),
    }
    found |= {key: statistics.fmean(row[key] for row in rows) for key in MEANS}
    found |= {key: sum(row[key] for row in rows) for key in SUMS}
    readers = [
        {"rank": rank.measured["rank"], **_in_model_time(reader, time_scale)}
        for rank in ranks
        if (reader := rank.measured["reader"]) is not None
    ]
    found |= _locating(readers)
    found["messages_per_step"] = _messages_per_step(ranks)
    found["guess_hit_share"] = _guess_hit_share(ranks)
    found["by_epoch"] = _by_epoch(ranks, real)
    return found | {"ranks": rows, "readers": readers}


def _by_epoch(ranks: Sequence[Rank], real: float) -> list[dict[str, Any]]:
    """Return time and counters of each epoch; the first includes the start-up.

    What is read ahead for the next epoch counts where it is read.
    """
    edges = [*map(int, ranks[0].arrays["epochs"]), ranks[0].steps]
    counters: list[dict[str, int]] = next(
        (rank.measured["counters"] for rank in ranks if rank.measured.get("counters")), []
    )
    found = []
    begin = min(int(rank.arrays["marks"][0]) for rank in ranks)
    before: dict[str, int] = {}
    levels = _levels(ranks)
    for number, (first, end) in enumerate(itertools.pairwise(edges)):
        if end == first:
            continue
        last = max(int(rank.arrays["together"][end - 1]) for rank in ranks)
        waits = [
            int(
                (
                    rank.arrays["got"][max(first, 1) : end]
                    - rank.arrays["together"][max(first, 1) - 1 : end - 1]
                ).sum()
            )
            for rank in ranks
        ]
        now = counters[number] if number < len(counters) else None
        found.append(
            {
                "epoch": number,
                "seconds": (last - begin) / real,
                "exposed_seconds": statistics.fmean(waits) / real,
                "samples": sum(int(rank.arrays["samples"][first:end].sum()) for rank in ranks),
                "requested_bytes": sum(int(rank.arrays["sizes"][first:end].sum()) for rank in ranks),
                "levels": levels[number] if number < len(levels) else None,
                "pfs": None
                if now is None
                else {key: value - before.get(key, 0) for key, value in now.items()},
            }
        )
        begin, before = last, now or {}
    return found


def _levels(ranks: Sequence[Rank]) -> list[dict[str, int] | None]:
    """Return the bytes of each level for each epoch, of all ranks; None where a rank does not know.

    Ranks of other nodes may have a tier under another path: levels are joined by their places, and
    have the names of the rank that has most.
    """
    found: list[dict[str, int] | None] = []
    for of_ranks in zip(*(rank.measured.get("levels") or [] for rank in ranks), strict=True):
        known: list[dict[str, int]] = [of_rank for of_rank in of_ranks if of_rank is not None]
        if len(known) < len(of_ranks):
            found.append(None)
            continue
        names = max(map(list, known), key=len)
        sums = map(sum, itertools.zip_longest(*(one.values() for one in known), fillvalue=0))
        found.append(dict(zip(names, sums, strict=True)))
    return found


def _in_model_time(reader: dict[str, Any], time_scale: float) -> dict[str, Any]:
    return {key: value / time_scale if key.endswith("_seconds") else value for key, value in reader.items()}


def _locating(readers: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the slowest rank's time for reading samples from storage, without waits for work."""
    if not readers:
        return {"locate_seconds": None, "locate_and_read_seconds": None}
    return {
        "locate_seconds": max(reader.get("locate_seconds", 0.0) for reader in readers),
        "locate_and_read_seconds": max(map(_locate_and_read, readers)),
    }


def _locate_and_read(reader: dict[str, Any]) -> float:
    """Add finding and reading; a rank without readers does both while it gathers."""
    if threads := reader.get("threads"):
        return float(reader["locate_seconds"] + reader["read_seconds"] / threads)
    return float(reader.get("gather_seconds", 0.0))


def _messages_per_step(ranks: Sequence[Rank]) -> float | None:
    sent: list[int | None] = [rank.measured.get("messages") for rank in ranks]
    counted = [one for one in sent if one is not None]
    return sum(counted) / ranks[0].steps if len(counted) == len(sent) else None


def _guess_hit_share(ranks: Sequence[Rank]) -> float | None:
    guesses = [found for rank in ranks if (found := rank.measured.get("guesses"))]
    hits, misses = (sum(one[which] for one in guesses) for which in (0, 1))
    return hits / (hits + misses) if hits + misses else None


def _rank(rank: Rank, last: npt.NDArray[np.int64], real: float) -> dict[str, Any]:
    """Split a rank's time; `last` is when the last rank arrived at each step's meeting."""
    begin, ready, finished = rank.arrays["marks"]
    got, arrived, together = (rank.arrays[key] for key in ("got", "arrived", "together"))
    exposed = got[1:] - together[:-1]
    skew = last - arrived
    usage = rank.measured["usage"]
    return {
        "rank": rank.measured["rank"],
        "node": rank.measured["node"],
        "wall_seconds": float(finished - ready) / real,
        "startup_seconds": float(got[0] - begin) / real,
        "exposed_seconds": float(exposed.sum()) / real,
        "compute_seconds": float(_compute(rank).sum()) / real,
        "communication_seconds": float((together - last).sum()) / real,
        "skew_seconds": float(skew.sum()) / real,
        "requested_bytes": int(rank.arrays["sizes"].sum()),
        **{key: rank.measured[key] for key in ("reads", "read_bytes", "mmap_bytes", "storage_bytes")},
        **usage,
    }


def _compute(rank: Rank) -> npt.NDArray[np.int64]:
    begins = rank.arrays["got"].copy()
    begins[0] = rank.arrays["marks"][1]
    computed: npt.NDArray[np.int64] = rank.arrays["arrived"] - begins
    return computed


def _utilisation(ranks: Sequence[Rank]) -> float | None:
    """Accelerator utilisation as DLIO's `statscounter.py` has it, which MLPerf Storage reports.

    Per epoch and rank: the compute of all steps but the first, over the epoch's time less the wait
    and the compute of the first step. Mean over the ranks, then over the epochs. None where an
    epoch has one step only.
    """
    epochs = [*ranks[0].arrays["epochs"], ranks[0].steps]
    found = []
    for first, end in itertools.pairwise(epochs):
        values = []
        for rank in ranks:
            got, together = rank.arrays["got"], rank.arrays["together"]
            compute = _compute(rank)
            start, wait = rank.arrays["marks"][1], 0
            if first > 0:
                start, wait = together[first - 1], got[first] - together[first - 1]
            time = together[end - 1] - start - wait - compute[first]
            if end - first < 2 or time <= 0:
                return None
            values.append(float(compute[first + 1 : end].sum()) / float(time))
        found.append(statistics.fmean(values))
    return statistics.fmean(found)


def median(repetitions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of every number of a repetition."""
    return {
        key: None
        if any(one.get(key) is None for one in repetitions)
        else statistics.median(one[key] for one in repetitions)
        for key in (*SCALARS, *MEANS, *SUMS)
    }


def spread(repetitions: Sequence[dict[str, Any]], medians: dict[str, Any]) -> dict[str, float]:
    """Return (largest - smallest) / median of every number that has a median other than zero."""
    return {
        key: (max(one[key] for one in repetitions) - min(one[key] for one in repetitions)) / abs(middle)
        for key, middle in medians.items()
        if middle
    }
