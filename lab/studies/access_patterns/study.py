"""The sections; each calls `forebay bench` with the shape of the page."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from forebay_lab.bench import workload
from forebay_lab.bench.node_memory import memory_groups
from studies.harness.sections import (
    DIRECTORY,
    MIB,
    Result,
    Row,
    Scope,
    Study,
    bench_rows,
    fetched,
    run,
)

WORKLOAD, SCALE = "fefs", 0.002
# A sixteenth of the paper's batch of 2 x 64, and of its compute time with AlexNet: 20 steps of 16
# ranks are one epoch.
SHAPE = ("--world-size", "16", "--batch-size", "8", "--cold")
PATTERNS = "pylmdb-skipping,pylmdb-contiguous,pylmdb-ownlock,lmdb,forebay@sequential,forebay"
THREE = "pylmdb-skipping,pylmdb-contiguous,forebay"
FEFS = ("--pfs", "fefs", "--targets", "3")

# File systems and their number of targets (0: that of the preset). Disks have one, because their
# slowed seeks take minutes.
PRESETS = {
    "fefs": 3,
    "fefs-hdd": 2,
    "lustre-ssd": 2,
    "lustre-hdd": 1,
    "gpfs": 1,
    "beegfs": 2,
    "nfs": 0,
    "blues": 1,
    "local-nvme": 0,
}

# Those with disks take fewer steps: in real time a seek takes tens of milliseconds.
DISKS = ("lustre-hdd", "gpfs", "blues")
DISK_STEPS = 8


def steps(scope: Scope, count: int) -> tuple[str, ...]:
    """Return the option for ``count`` steps, or for at most two in a tiny run."""
    return ("--steps", str(min(count, 2) if scope.tiny else count))


def bench(scope: Scope, *arguments: str, path: Path | None = None, repetitions: int = 3) -> Result:
    """Run a bench of the shape of the page."""
    count = str(1 if scope.tiny else repetitions)
    return run("bench", str(path or dataset()), *SHAPE, "--skip-verify", "--repetitions", count, *arguments)


def dataset() -> Path:
    return Path(workload.prepare(WORKLOAD, SCALE, DIRECTORY, container="lmdb").path)


def patterns(scope: Scope) -> list[Row]:
    """One rank per node, walking as 4 of 16: skipping, contiguous, own lock file, Forebay.

    Each row runs without and with compute.
    """
    rows = []
    for compute in ("0ms", "1.3ms"):
        shape = ("--ranks", "4", "--nodes", "4", *steps(scope, 20), "--compute", compute)
        for place in (FEFS, ("--pfs", "lustre-ssd", "--targets", "2")):
            rows += bench_rows(bench(scope, *shape, *place, "--strategies", PATTERNS))
    return rows


def disks(scope: Scope) -> list[Row]:
    """The same on disks, where a jump costs a seek."""
    shape = ("--ranks", "4", "--nodes", "4", *steps(scope, 8))
    return bench_rows(bench(scope, *shape, "--pfs", "fefs-hdd", "--targets", "2", "--strategies", PATTERNS))


def read_ahead(scope: Scope) -> list[Row]:
    """With the kernel's read-ahead on the mapping, and without."""
    shape = ("--ranks", "4", "--nodes", "4", *steps(scope, 2))
    names = ("skipping", "contiguous", "ownlock")
    rows = ",".join(f"pylmdb-{name},pylmdb-{name}-noreadahead" for name in names)
    return bench_rows(bench(scope, *shape, *FEFS, "--strategies", rows, repetitions=1))


def nodes(scope: Scope) -> list[Row]:
    """One, two and four nodes of one rank; then four ranks that share one node's page cache."""
    rows = []
    for ranks, count in ((1, 1), (2, 2), (4, 4), (4, 1)):
        shape = ("--ranks", str(ranks), "--nodes", str(count), *steps(scope, 20))
        rows += bench_rows(bench(scope, *shape, *FEFS, "--strategies", THREE))
    return rows


def stripes(scope: Scope) -> list[Row]:
    """Stripes of 64 KiB, 1 MiB and 64 MiB."""
    rows = []
    shape = ("--ranks", "4", "--nodes", "4", *steps(scope, 20), "--strategies", THREE)
    for stripe in ("64KiB", "1MiB", "64MiB"):
        options = ("--preset", "fefs", "--targets", "3", "--stripe", stripe, "--time-scale", "18")
        with mounted(*options) as mount:
            result = bench(scope, *shape, path=mount / dataset().name)
        rows += bench_rows(result, stripe=stripe.replace("KiB", " KiB").replace("MiB", " MiB"))
    return rows


def epochs(scope: Scope) -> list[Row]:
    """A second epoch: the page cache holds a rank's own region, but not all that skipping reads."""
    shape = ("--ranks", "4", "--nodes", "4", *steps(scope, 20), "--strategies", THREE)
    options = ("--preset", "fefs", "--targets", "3", "--time-scale", "18")
    with mounted(*options) as mount, small_memory(768 * MIB):
        path = mount / dataset().name
        one, two = (bench(scope, *shape, "--epochs", count, path=path, repetitions=1) for count in ("1", "2"))
    rows = []
    for first, both in zip(one["rows"], two["rows"], strict=True):
        row: Row = {"name": first["name"]}
        if not first["status"] == both["status"] == "ok":
            failed = first if first["status"] != "ok" else both
            rows.append(row | {"status": failed["status"], "error": failed["error"]})
            continue
        asked = first["median"]["requested_bytes"]
        before, after = fetched(first)[1], fetched(both)[1]
        rows.append(
            row | {"first_epoch_ratio": before / asked, "second_epoch_ratio": (after - before) / asked}
        )
    return rows


def presets(scope: Scope) -> list[Row]:
    """All ranks on one node, a cold epoch (a part on disks): default against best baseline."""
    strategies = "pylmdb-contiguous,lmdb,forebay@sequential,forebay@contiguous,forebay"
    rows = []
    for preset, targets in PRESETS.items():
        on_disks = preset in DISKS
        result = run(
            "bench", str(dataset()), "--ranks", "4", "--batch-size", "16", "--cold", "--skip-verify",
            "--repetitions", "1" if on_disks or scope.tiny else "3", *steps(scope, DISK_STEPS if on_disks else 40),
            "--pfs", preset, *(("--targets", str(targets)) if targets else ()), "--strategies", strategies,
        )  # fmt: skip
        rows.append(best_other(result) | {"targets": targets or None})
    return rows


def best_other(result: Result) -> Row:
    """Return a file system's row: the speed-up of each order of Forebay over the best baseline."""
    flat = bench_rows(result)
    if failed := next((row for row in flat if "status" in row), None):
        return {"name": failed["pfs"], **{key: failed[key] for key in ("status", "error")}}
    total = {row["name"]: row["total_seconds"] for row in flat}
    other = min((name for name in total if not name.startswith("forebay")), key=total.__getitem__)
    group = next(row for row in flat if row["name"] == "forebay@group")
    kept = ("pfs", "time_scale", "limit_mib_s", "steps", "limit_share")
    found = {"name": group["pfs"], **{key: group[key] for key in kept}, "repetitions": result["repetitions"]}
    found |= {"best_other": other, "best_other_seconds": total[other]}
    found |= {
        f"{order}_speedup": total[other] / total[f"forebay@{order}"]
        for order in ("sequential", "contiguous", "group")
    }
    late = {"missed_deadlines": True} if any("missed_deadlines" in row for row in flat) else {}
    return found | late


def blocks(scope: Scope) -> list[Row]:
    """Reads against page faults, by the size of what is read at once, each byte cold."""
    with mounted("--preset", "local-nvme", "--time-scale", "1") as mount:
        file = str(mount / dataset().name / "data.mdb")
        sizes = [word for size in ("4KiB", "16KiB", "64KiB", "256KiB", "1MiB") for word in ("--block", size)]
        kinds = [word for kind in ("sequential", "mmap", "random", "direct") for word in ("--kind", kind)]
        seconds = "0.1" if scope.tiny else "1"
        result = run("limit", file, "--cold", "--seconds", seconds, *sizes, *kinds)
    by_block: dict[int, dict[str, float]] = {}
    for figure in result["figures"]:
        by_block.setdefault(figure["block_bytes"], {})[figure["kind"]] = figure["rate_mib_s"]
    return [
        {
            "block_bytes": block,
            "pread_mib_s": rates["sequential"],
            "mmap_mib_s": rates["mmap"],
            "pread_speedup": rates["sequential"] / rates["mmap"],
            "random_mib_s": rates["random"],
            "direct_mib_s": rates["direct"],
        }
        for block, rates in by_block.items()
    ]


@contextlib.contextmanager
def mounted(*options: str) -> Iterator[Path]:
    """The directory of the dataset on an emulated file system."""
    with tempfile.TemporaryDirectory(prefix="forebay-study-") as point:
        run("pfs", "mount", str(dataset().parent), point, *options)
        try:
            yield Path(point)
        finally:
            run("pfs", "unmount", point)


@contextlib.contextmanager
def small_memory(limit_bytes: int) -> Iterator[None]:
    """This process and its children in a control group of little memory, the emulator outside."""
    with memory_groups(1, limit_bytes) as (group,):
        (group / "cgroup.procs").write_text(str(os.getpid()))
        # Each of the four nodes takes a quarter of the control group for itself, which is one for
        # all of them here.
        os.environ["FOREBAY_NODE_MEMORY"] = "64MiB"
        try:
            yield
        finally:
            del os.environ["FOREBAY_NODE_MEMORY"]
            (group.parent / "cgroup.procs").write_text(str(os.getpid()))


STUDY = Study(
    sections={
        section.__name__.replace("_", "-"): section
        for section in (patterns, disks, read_ahead, nodes, stripes, epochs, presets, blocks)
    }
)
