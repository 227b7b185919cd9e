"""Measure the figures of docs/results/run.md.

Usage: ``python lab/studies/run.py [--tiny] [--save] [SECTION ...]``

Unmodified programs under ``forebay run``, on an emulated file system with a tier on an emulated
local drive. What reaches the source is what the emulator counts. Data are made once and kept in
``$FOREBAY_BENCH_DIR`` (default ``./bench-data``). All sections but `start` and `stage` need FUSE.
``--tiny`` shows that everything runs; its numbers mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from sections import Row, run_sections
from tiering.study import Study
from tiers import prepare
from unchanged.partial import partial
from unchanged.processes import processes
from unchanged.readers import readers
from unchanged.starting import stage, start

SECTIONS: dict[str, Callable[[Study], list[Row]]] = {
    "readers": readers,
    "partial": partial,
    "processes": processes,
    "start": start,
    "stage": stage,
}


if __name__ == "__main__":
    run_sections(__doc__, "run", SECTIONS, {}, prepare)
