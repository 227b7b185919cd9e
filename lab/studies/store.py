"""Measure the figures of docs/results/store.md.

Usage: ``python lab/studies/store.py [--tiny] [--save] [SECTION ...]``

Nodes are emulated, and so are their file system and the local drives of their tiers. Source bytes
are those that the emulator counts. Data are made once and kept in ``$FOREBAY_BENCH_DIR`` (default
``./bench-data``). All sections need FUSE and MPI. ``--tiny`` shows that everything runs; its
numbers mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from sections import Row, run_sections
from storing.adapters import tensorflow
from storing.local_tiers import local_tiers
from storing.serving import compute, memory
from storing.shares import remote, sizes
from storing.storage import iterations, storage
from storing.streaming import opportunistic
from storing.training import training
from storing.transfers import fairness, gets, transfers
from tiering.study import Study, prepare

SECTIONS: dict[str, Callable[[Study], list[Row]]] = {
    "local-tiers": local_tiers,
    "transfers": transfers,
    "gets": gets,
    "fairness": fairness,
    "storage": storage,
    "iterations": iterations,
    "sizes": sizes,
    "bytes": remote,
    "opportunistic": opportunistic,
    "memory": memory,
    "compute": compute,
    "training": training,
    "tensorflow": tensorflow,
}


if __name__ == "__main__":
    run_sections(__doc__, "store", SECTIONS, {}, prepare)
