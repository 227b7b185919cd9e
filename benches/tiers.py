"""Measure the figures of docs/results/tiers.md.

Usage: ``python benches/tiers.py [--tiny] [--save] [SECTION ...]``

Storage tiers in the loader, on an emulated network file system with a tier on an emulated local
drive. Source bytes are those that the emulator counts. Commands of `forebay` are printed as they
run; a section ends within about five minutes on two cores. Data are made once and kept in
``$FOREBAY_BENCH_DIR`` (default ``./bench-data``). All sections need FUSE. ``--tiny`` shows that
everything runs; its numbers mean nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from sections import Row, run_sections
from tiering.budget import budget
from tiering.fitting import first_epoch, fits
from tiering.nodes import nodes, sharing
from tiering.partial import first_touch, half
from tiering.study import DIRECTORY, IDLE_S, Study

SECTIONS: dict[str, Callable[[Study], list[Row]]] = {
    "fits": fits,
    "first-epoch": first_epoch,
    "half": half,
    "first-touch": first_touch,
    "nodes": nodes,
    "sharing": sharing,
    "budget": budget,
}


def prepare(tiny: bool) -> Study:
    """Let sidecars go when the data goes, and share no daemon with other jobs."""
    cache = DIRECTORY / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o700)
    os.environ.setdefault("FOREBAY_CACHE_DIR", str(cache.resolve()))
    os.environ.setdefault("FOREBAY_RUNTIME_DIR", tempfile.mkdtemp(prefix="forebay-study-"))
    os.environ["FOREBAY_TIERS_IDLE"] = IDLE_S
    return Study(tiny)


if __name__ == "__main__":
    run_sections(__doc__, "tiers", SECTIONS, {}, prepare)
