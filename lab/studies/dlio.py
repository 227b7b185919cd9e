"""Measure the figures of docs/results/dlio.md, in the environment of the framework tests.

Usage: ``.venv-frameworks/bin/python lab/studies/dlio.py [--tiny] [--save] [WORKLOAD ...]``

For each workload, DLIO generates the data, which is kept for later runs. Each data loader then
trains with 1, 2, 4, 8 and 16 accelerators, until it no longer passes. Before that, DLIO's own data
loaders train on two with other numbers of workers, and the best one is taken. ``--tiny`` shows that
everything runs; its numbers mean nothing.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from accelerators.training import FOREBAY, generate, mounted, train
from accelerators.workloads import WORKLOADS, Emulated
from forebay_lab import pfs
from forebay_lab.ranks import launch
from sections import Row, keep_indexes, run_sections

ACCELERATORS = (1, 2, 4, 8, 16)
TINY_ACCELERATORS = (2,)


def utilisation(tiny: bool, workload: Emulated) -> list[Row]:
    """Accelerator utilisation on emulated lustre-ssd, as DLIO reports it."""
    folder = generate(workload, tiny)
    print(
        f"step of {workload.batch} samples, {workload.step_s:.3f} s; relative to compute time, the file system "
        f"is {workload.relative_slowness:.1f} times slower than the preset",
        flush=True,
    )
    with mounted(folder) as (server, point):
        rows = []
        for loader in (*workload.stock, FOREBAY):
            rows += _row_of(workload, server, point, loader, tiny)
        return rows


def _row_of(workload: Emulated, server: pfs.Server, point: Path, loader: str, tiny: bool) -> list[Row]:
    """Train with one loader on more and more accelerators."""
    measure = partial(train, workload, server, point, loader=loader, tiny=tiny)
    published, *others = workload.threads
    tried = []
    if loader != FOREBAY and not tiny:
        tried = [measure(threads=threads, ranks=2) for threads in (published, *others)]
    threads = max(tried, key=lambda row: row["utilisation"])["threads"] if tried else published
    rows: list[Row] = []
    for ranks in TINY_ACCELERATORS if tiny else ACCELERATORS:
        again = next(
            (row for row in tried if (row["threads"], row["accelerators"]) == (threads, ranks)), None
        )
        row = again or measure(threads=threads, ranks=ranks)
        rows.append(row)
        print(
            f"{loader}, {ranks} accelerators: {row['utilisation']:.1%} ({row['passes']}), cores {row['busy'] or 0:.0%} busy",
            flush=True,
        )
        if row["passes"] == "no" and not tiny:
            break
    return rows


def prepare(tiny: bool) -> bool:
    """Keep indexes with the data."""
    keep_indexes()
    return tiny


SECTIONS = {name: partial(utilisation, workload=workload) for name, workload in WORKLOADS.items()}

if __name__ == "__main__":
    with launch.terminations_as_interrupts():
        run_sections(__doc__, "dlio", SECTIONS, {}, prepare)
