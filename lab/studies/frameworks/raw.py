"""Raw records on one or four ranks: loaders take turns, with warm and cold page cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from studies.frameworks.contest import compare, prepared
from studies.frameworks.registry import RAW
from studies.harness.sections import MIB, Row, Scope

__all__ = ["SECTIONS"]

SIZES = {"3k": (3 * 1024, 32_768, 256), "110k": (110 * 1024, 2048, 32)}
"""Name → bytes of a record, samples, samples of a rank's batch."""
RANKS = (1, 4)
STATES = ("warm", "cold")
TINY = 8
"""A tiny dataset has that part of the samples."""
GIB = 1 << 30


def raw(scope: Scope, *, size: str, ranks: int) -> list[Row]:
    """Records of one size, with warm and cold page cache; the loaders take turns."""
    record_bytes, samples, batch = SIZES[size]
    samples //= TINY if scope.tiny else 1
    folder = prepared(f"raw-{size}-{samples}", lambda path: _write(path, samples, record_bytes))
    facts = {"kind": "raw", "samples": samples, "record_bytes": record_bytes, "batch": batch}
    found = compare(RAW, folder, facts, ranks, STATES, tiny=scope.tiny)
    for row in found:
        for state in STATES:
            if f"{state}_samples_s" in row:
                row[f"{state}_mib_s"] = row[f"{state}_samples_s"] * record_bytes / MIB
                row[f"{state}_cpu_s_gib"] = row[f"{state}_cpu_us_sample"] / 1e6 / record_bytes * GIB
    return found


SECTIONS = {f"raw-{size}-{ranks}": partial(raw, size=size, ranks=ranks) for size in SIZES for ranks in RANKS}
"""Of a page, by name; ."""


def _write(folder: Path, samples: int, record_bytes: int) -> None:
    records = np.random.default_rng(18).integers(0, 256, (samples, record_bytes), np.uint8)
    records[:, :8] = np.arange(samples, dtype="<u8").view(np.uint8).reshape(samples, 8)
    np.save(folder / "records.npy", records)
