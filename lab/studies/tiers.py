"""Measure the figures of docs/results/tiers.md.

Usage: ``python lab/studies/tiers.py [--tiny] [--save] [SECTION ...]``

Storage tiers in the loader, on an emulated network file system with a tier on an emulated local
drive. Source bytes are those that the emulator counts. Commands of `forebay` are printed as they
run; a section ends within about five minutes on two cores. Data are made once and kept in
``$FOREBAY_BENCH_DIR`` (default ``./bench-data``). All sections need FUSE. ``--tiny`` shows that
everything runs; its numbers mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from sections import Row, run_sections
from tiering.budget import budget
from tiering.fitting import first_epoch, fits
from tiering.nodes import nodes, sharing
from tiering.partial import first_touch, half
from tiering.study import Study, prepare

SECTIONS: dict[str, Callable[[Study], list[Row]]] = {
    "fits": fits,
    "first-epoch": first_epoch,
    "half": half,
    "first-touch": first_touch,
    "nodes": nodes,
    "sharing": sharing,
    "budget": budget,
}


if __name__ == "__main__":
    run_sections(__doc__, "tiers", SECTIONS, {}, prepare)
