"""The sections: one for each workload."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from forebay_lab import pfs
from studies.dlio.training import FOREBAY, generate, mounted, train
from studies.dlio.workloads import WORKLOADS, Emulated
from studies.harness.sections import Row, Scope, Study

ACCELERATORS = (1, 2, 4, 8, 16)
TINY_ACCELERATORS = (2,)


def utilisation(scope: Scope, workload: Emulated) -> list[Row]:
    """Accelerator utilisation on emulated lustre-ssd, as DLIO reports it."""
    folder = generate(workload, scope.tiny)
    print(
        f"step of {workload.batch} samples, {workload.step_s:.3f} s; relative to compute time, the file system "
        f"is {workload.relative_slowness:.1f} times slower than the preset",
        flush=True,
    )
    with mounted(folder) as (server, point):
        rows = []
        for loader in (*workload.stock, FOREBAY):
            rows += _row_of(workload, server, point, loader, scope)
        return rows


def _row_of(workload: Emulated, server: pfs.Server, point: Path, loader: str, scope: Scope) -> list[Row]:
    """Train with one loader on more and more accelerators."""
    measure = partial(train, workload, server, point, loader=loader, tiny=scope.tiny)
    published, *others = workload.threads
    tried = []
    if loader != FOREBAY and not scope.tiny:
        tried = [measure(threads=threads, ranks=2) for threads in (published, *others)]
    threads = max(tried, key=lambda row: row["utilisation"])["threads"] if tried else published
    rows: list[Row] = []
    for ranks in TINY_ACCELERATORS if scope.tiny else ACCELERATORS:
        again = next(
            (row for row in tried if (row["threads"], row["accelerators"]) == (threads, ranks)), None
        )
        row = again or measure(threads=threads, ranks=ranks)
        rows.append(row)
        print(
            f"{loader}, {ranks} accelerators: {row['utilisation']:.1%} ({row['passes']}), cores {row['busy'] or 0:.0%} busy",
            flush=True,
        )
        if row["passes"] == "no" and not scope.tiny:
            break
    return rows


STUDY = Study(
    sections={name: partial(utilisation, workload=workload) for name, workload in WORKLOADS.items()}
)
