"""Whether a simulated row agrees with the measured one: pure functions of both."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from studies.harness.sections import Row

WALL, BYTES, SEEKS = 0.10, 0.02, 0.20
"""Largest errors, as shares of what was measured."""
WIDE = 0.25
"""A range that goes further from its median proves nothing."""
PAGE_FAULTS = ("lmdb", "lmm", "lmm-dm", "pylmdb")
"""Rows whose reads are page faults of a mapping; all others read."""
BARS = {"reading": 0.90, "page faults": 0.75}
"""Shares of rows whose wall time has to agree."""
TAU = 0.9
"""Kendall's tau between the orders of rows, by shape."""


@dataclass(frozen=True, slots=True)
class Range:
    """The median of some runs, and their least and most."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Range:
        return cls(statistics.median(values), min(values), max(values))

    @property
    def is_wide(self) -> bool:
        return max(self.most - self.middle, self.middle - self.least) > WIDE * self.middle

    def overlaps(self, other: Range) -> bool:
        return self.least <= other.most and other.least <= self.most


def kind(strategy: str) -> str:
    """Return how a row gets its bytes."""
    name = strategy.partition(":")[0]
    return "page faults" if name in PAGE_FAULTS or name.startswith("pylmdb") else "reading"


def error(measured: Range, simulated: Range) -> float:
    """Return how far the model is off, as a share of what was measured."""
    if measured.middle:
        return simulated.middle / measured.middle - 1
    return 0.0 if not simulated.middle else float("inf")


def agrees(measured: Range, simulated: Range, most: float) -> bool:
    """Return whether the medians are near, or the ranges overlap and are narrow."""
    if abs(error(measured, simulated)) <= most:
        return True
    return measured.overlaps(simulated) and not (measured.is_wide or simulated.is_wide)


def judged(row: dict[str, Any]) -> Row:
    """Return both sides of a row of a result that was simulated, and whether they agree."""
    simulated, runs = row["simulated"], row["repetitions"]
    wall = _both(runs, simulated, "wall_seconds", lambda one: one["wall_seconds"])
    size = _both(runs, simulated, "storage_bytes", lambda one: _sum(one, "nodes", "read_bytes"))
    seeks = _both(runs, simulated, "seeks", lambda one: _sum(one, "servers", "seeks"))
    found: Row = {"name": row["name"], "kind": kind(row["strategy"])}
    found |= _fields("wall_seconds", *wall) | {"wall_met": _yes(agrees(*wall, WALL))}
    found |= {
        "startup_seconds": row["median"]["startup_seconds"],
        "sim_startup_seconds": simulated["median"]["startup_seconds"],
    }
    found |= _fields("read_bytes", *size) | {"read_bytes_met": _yes(abs(error(*size)) <= BYTES)}
    found |= _fields("seeks", *seeks) | {"seeks_met": _yes(agrees(*seeks, SEEKS))}
    if any(one["missed_deadlines"] for one in runs):
        found["missed_deadlines"] = True
    return found


def _sum(run: dict[str, Any], part: str, key: str) -> float:
    return float(sum(one[key] for one in run["pfs"][part]))


def _both(runs: Any, simulated: Any, key: str, of: Any) -> tuple[Range, Range]:
    least, most = simulated["range"][key]
    middle = simulated["median"].get(key, simulated.get(key))
    return Range.of([of(one) for one in runs]), Range(middle, least, most)


def _fields(name: str, measured: Range, simulated: Range) -> Row:
    found = {}
    for prefix, one in (("", measured), ("sim_", simulated)):
        found |= {
            f"{prefix}{name}": one.middle,
            f"{prefix}{name}_low": one.least,
            f"{prefix}{name}_high": one.most,
        }
    return found | {f"{name}_error": error(measured, simulated)}


def _yes(met: bool) -> str:
    return "yes" if met else "no"


def tau(rows: Iterable[Row]) -> tuple[float | None, int]:
    """Return Kendall's tau over pairs whose measured wall times do not overlap, and their count."""
    agreeing = pairs = 0
    for one, other in itertools.combinations(rows, 2):
        first, second = (
            Range(row["wall_seconds"], row["wall_seconds_low"], row["wall_seconds_high"])
            for row in (one, other)
        )
        if first.overlaps(second):
            continue
        pairs += 1
        difference = one["sim_wall_seconds"] - other["sim_wall_seconds"]
        agreeing += (difference > 0) == (first.middle > second.middle) and difference != 0
    return (2 * agreeing / pairs - 1 if pairs else None), pairs


def bars(rows: Sequence[Row]) -> list[Row]:
    """Return the share of rows that agree, for each bar."""
    found = []
    for name, least in BARS.items():
        of_kind = [row for row in rows if row["kind"] == name]
        found.append(_bar(f"wall time, {name}", of_kind, "wall_met", least))
    found.append(_bar("bytes", rows, "read_bytes_met", 1.0))
    found.append(_bar("seeks", rows, "seeks_met", 1.0))
    return found


def _bar(name: str, rows: Sequence[Row], key: str, least: float) -> Row:
    met = sum(row[key] == "yes" for row in rows)
    share = met / len(rows) if rows else None
    return {
        "name": name,
        "rows": len(rows),
        "rows_met": met,
        "share": share,
        "bar": least,
        "met": None if share is None else _yes(share >= least),
    }


def misses(rows: Iterable[Row]) -> list[Row]:
    """Return a row for each number that does not agree."""
    return [
        {
            "name": row["name"],
            "shape": row["shape"],
            "what": what,
            "measured": row[key],
            "simulated": row[f"sim_{key}"],
            "error": row[f"{key}_error"],
        }
        for row in rows
        for what, key, met in (
            ("wall s", "wall_seconds", "wall_met"),
            ("bytes", "read_bytes", "read_bytes_met"),
            ("seeks", "seeks", "seeks_met"),
        )
        if row[met] == "no"
    ]
