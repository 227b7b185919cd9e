"""FEFS (docs/papers.md): ranks that walk through one LMDB file, in the model's virtual time.

MPI-Caffe has 16 ranks, one on each node. In a step a rank touches its 128 records of 49 pages in
the mapping, *skipping* (records r, r + 16, r + 32 …) or *contiguous* (a region of its own), then
computes, and all ranks meet. Orders of the loader deal whole batches to ranks, so these walks are
scenarios of their own. The paper prints no numbers beside its figures: what its text says of them
is published.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from forebay_lab import _native
from forebay_lab.bench import workload
from forebay_lab.pfs.start import Wanted
from studies.harness.sections import MIB, Result, Row, Scope

SKIPPING, CONTIGUOUS = "skipping", "contiguous"

PUBLISHED_RATIO = (5.5, "5 to 6")
"""Skipping over contiguous on SSDs: abstract, section 8, figure 8."""
PUBLISHED_DISKS = (10.0, "over 10")
"""Skipping on disks over "the other values": section 6.1."""
PUBLISHED_LOCAL = (None, "above 1")
"""Drives of the nodes over FEFS, contiguous: figure 8, section 6.1."""
PUBLISHED_OF_OWNLOCK = {"shared": "slightly more", "ownlock": "1", "local": "much less"}
"""Figure 2, section 4.2."""
PUBLISHED_BEST_STRIPE = {SKIPPING: MIB, CONTIGUOUS: 64 * MIB}
"""Figures 3 and 6."""
PUBLISHED_CACHED = {SKIPPING: "no", CONTIGUOUS: "yes"}
"""Whether the second epoch comes from the caches of the nodes: figure 9, section 6.1."""
TRAINED_STEPS, TRAINED_EPOCHS = 1000, 1.5
"""Section 3."""

PAGE = 4096
RECORD_BYTES = 49 * PAGE
RANKS = 16
RECORDS_PER_STEP = 128
STEPS = 8
"""Enough that the simultaneous start is a small part."""
WORKLOAD = workload.load("fefs")
COMPUTE_S = {variant.name: variant.step_seconds or 0.0 for variant in WORKLOAD.variants}
"""Of a step, by network: the paper names none."""

REQUEST_US = 100.0
"""Fitted to figure 3, where it makes 1 MiB the best stripe; presets have none."""
LOCK_S = 0.1
"""Of a node's first access to an object, for figure 2: a thousand round trips."""
CACHE_GIB = 48
"""Fitted to figure 9: above the 15 GiB of a region, below the 54 GiB that skipping fetches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walkers:
    """The ranks of the paper."""

    pattern: str
    samples: int = WORKLOAD.samples
    steps: int = STEPS
    compute_s: float = COMPUTE_S["alexnet"]
    client: Any = "lustre"
    """Read-ahead of the nodes."""

    def records(self, rank: int) -> Iterator[int]:
        """Yield the records of a rank, in order, for ever."""
        region = self.samples // RANKS
        number = 0
        while True:
            if self.pattern == SKIPPING:
                yield (number * RANKS + rank) % self.samples
            else:
                yield rank * region + number % region
            number += 1

    def actions(self, rank: int) -> list[Any]:
        """Return what a rank does, as the native module takes it."""
        actions: list[Any] = []
        records = self.records(rank)
        for _ in range(self.steps):
            for _ in range(RECORDS_PER_STEP):
                place = {"offset": next(records) * RECORD_BYTES, "length": RECORD_BYTES}
                actions.append({"touch": {**place, "how": "mmap"}})
            actions += [{"think_ns": round(self.compute_s * 1e9)}, "barrier"]
        return actions

    def run(self, spec: Result) -> Result:
        """Simulate them on a file system.

        Returns
        -------
        Result
            What the native module says of the ranks, and `step_ends`, when each step ended [s].
        """
        ranks = [{"node": rank, "actions": self.actions(rank)} for rank in range(RANKS)]
        # A program for each step that reads nothing, and ends with the step.
        clocks = [{"node": 0, "actions": ["barrier"] * (step + 1)} for step in range(self.steps)]
        scenario = {
            "rules": self.client,
            "files": [self.samples * RECORD_BYTES],
            "streams": [*ranks, *clocks],
        }
        found: Result = json.loads(_native.pfs_predict(json.dumps(spec), json.dumps(scenario)))
        ends = [one["end_ns"] / 1e9 for one in found["streams"][RANKS:]]
        return {**found, "streams": found["streams"][:RANKS], "step_ends": ends}

    def row(self, spec: Result, name: str) -> Row:
        """Return the time of a step, and what the ranks fetched."""
        found = self.run(spec)
        asked, read, reads = (
            sum(one[key] for one in found["streams"]) for key in ("requested_bytes", "read_bytes", "reads")
        )
        ends = found["step_ends"]
        step_s = ends[-1] / self.steps
        half = self.steps // 2
        later_s = (ends[-1] - ends[half - 1]) / (self.steps - half)
        return {
            "name": name,
            "pattern": self.pattern,
            "step_ms": 1e3 * step_s,
            "compute_ms": 1e3 * self.compute_s,
            "reading_ms": 1e3 * (step_s - self.compute_s),
            "early_step_ms": 1e3 * ends[half - 1] / half,
            "later_step_ms": 1e3 * later_s,
            "later_reading_ms": 1e3 * (later_s - self.compute_s),
            "training_s": ends[-1] + (TRAINED_STEPS - self.steps) * later_s,
            "fetched_ratio": read / asked,
            "requests_per_record": reads * RECORD_BYTES / asked,
        }


def walkers(scope: Scope, pattern: str, **fields: Any) -> Walkers:
    """Return the ranks of the paper; those of a tiny run take two steps."""
    found = Walkers(pattern=pattern, **fields)
    return replace(found, steps=min(found.steps, 2)) if scope.tiny else found


def file_system(preset: str, **fields: Any) -> Result:
    """Return a preset with other numbers."""
    return Wanted(preset=preset, overrides=fields).resolve()


def local() -> tuple[Result, Any]:
    """Return a drive in each node with a copy of the file, and the read-ahead of the kernel.

    All drives are one server that is never busy; the link of a node is its drive.
    """
    drive = file_system("local-nvme")
    rate = drive["target_bytes_per_second"]
    spec = file_system("local-nvme", target_bytes_per_second=1e15, link_bytes_per_second=rate)
    return spec, {"linux": {"read_ahead_bytes": drive["read_ahead_bytes"]}}


def locks(scope: Scope) -> list[Row]:
    """FEFS, figure 2: a shared lock file, one of its own for each rank, a copy on each node."""
    drive, of_drive = local()
    setups = {
        "shared": (file_system("fefs", lock_us=LOCK_S * 1e6), "lustre"),
        "ownlock": (file_system("fefs"), "lustre"),
        "local": (drive, of_drive),
    }
    rows = [
        walkers(scope, SKIPPING, steps=2 * STEPS, client=client).row(spec, name)
        for name, (spec, client) in setups.items()
    ]
    own = next(row for row in rows if row["name"] == "ownlock")["training_s"]
    return [
        {**row, "of_ownlock": row["training_s"] / own, "published": PUBLISHED_OF_OWNLOCK[row["name"]]}
        for row in rows
    ]


def stripes(scope: Scope) -> list[Row]:
    """FEFS, figures 3 and 6: time of a step by stripe size, without and with work per request."""
    rows = []
    for pattern in (SKIPPING, CONTIGUOUS):
        for request_us in (0.0, REQUEST_US):
            found = []
            for kib in scope.pick((64, 256, 1024, 4096, 16_384, 65_536), (64, 1024)):
                spec = file_system("fefs", stripe_bytes=kib * 1024, request_us=request_us)
                row = walkers(scope, pattern).row(spec, f"{pattern}, {request_us:g} µs per request")
                found.append({**row, "request_us": request_us, "stripe_kib": kib})
            best = min(found, key=lambda row: row["step_ms"])
            published = PUBLISHED_BEST_STRIPE[pattern]
            rows += [
                {
                    **row,
                    "of_best": row["step_ms"] / best["step_ms"],
                    "best_stripe_kib": best["stripe_kib"],
                    "published_stripe_kib": published // 1024,
                }
                for row in found
            ]
    return rows


def final(scope: Scope) -> list[Row]:
    """FEFS, figure 8: skipping and contiguous on SSDs, on disks, and on drives of the nodes."""
    drive, of_drive = local()
    places = {
        "FEFS, SSD": (file_system("fefs"), "lustre"),
        "local SSD": (drive, of_drive),
        "FEFS, disks": (file_system("fefs-hdd"), "lustre"),
    }
    rows: list[Row] = []
    for network, compute_s in COMPUTE_S.items():
        times = {}
        for place, (spec, client) in places.items():
            for pattern in (SKIPPING, CONTIGUOUS):
                ranks = walkers(scope, pattern, client=client, compute_s=compute_s)
                row = ranks.row(spec, f"{place}, {pattern}")
                rows.append({**row, "kind": "time", "place": place, "network": network})
                times[place, pattern] = row["step_ms"]
        on_ssd = [time for (place, _), time in times.items() if place != "FEFS, disks"]
        base = times["FEFS, SSD", CONTIGUOUS]
        factors = {
            "skipping / contiguous, FEFS, SSD": (times["FEFS, SSD", SKIPPING] / base, PUBLISHED_RATIO),
            "skipping, disks / slowest on SSDs": (
                times["FEFS, disks", SKIPPING] / max(on_ssd),
                PUBLISHED_DISKS,
            ),
            "contiguous, local SSD / FEFS, SSD": (times["local SSD", CONTIGUOUS] / base, PUBLISHED_LOCAL),
        }
        rows += [
            {
                "name": name,
                "kind": "factor",
                "network": network,
                "factor": factor,
                "published": text,
                "ratio": factor / published if published else None,
            }
            for name, (factor, (published, text)) in factors.items()
        ]
    return rows


def steps(scope: Scope) -> list[Row]:
    """FEFS, figure 9: time of each step over 1.5 epochs, by what the nodes cache."""
    # A part of the file, and the same part of the cache.
    epoch_steps = scope.pick(20, 4)
    samples = epoch_steps * RANKS * RECORDS_PER_STEP + WORKLOAD.samples % RANKS
    rows = []
    for cache_gib in (file_system("fefs")["cache_bytes"] >> 30, CACHE_GIB):
        cache_bytes = int((cache_gib << 30) * samples / WORKLOAD.samples)
        spec = file_system("fefs", cache_bytes=cache_bytes)
        for pattern in (SKIPPING, CONTIGUOUS):
            count = int(TRAINED_EPOCHS * epoch_steps)
            ends = Walkers(pattern=pattern, samples=samples, steps=count).run(spec)["step_ends"]
            rows += [
                {
                    "name": f"{pattern}, cache of {cache_gib} GiB",
                    "pattern": pattern,
                    "cache_gib": cache_gib,
                    "step": step,
                    "epoch": (step + 0.5) / epoch_steps,
                    "step_ms": 1e3 * (end - begin),
                    "published_cached": PUBLISHED_CACHED[pattern],
                }
                for step, (begin, end) in enumerate(zip([0.0, *ends[:-1]], ends, strict=True))
            ]
    return rows


SECTIONS = {"fefs-locks": locks, "fefs-stripes": stripes, "fefs-final": final, "fefs-steps": steps}
