"""The tables of docs/results/access-patterns.md: ``python benches/access_patterns.py [--only SECTION ...]``.

Every table is one or a few ``forebay bench`` (or ``limit``) commands on the emulated file systems,
printed above it. The data set, the published ``fefs`` workload scaled down, is made once and kept
in ``$FOREBAY_BENCH_DIR`` (default ``./bench-data``). Needs FUSE; the second-epoch table also needs
a memory control group that can be written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DIRECTORY = Path(os.environ.get("FOREBAY_BENCH_DIR", "bench-data"))
WORKLOAD, SCALE = "fefs", 0.002
# A sixteenth of the paper's batch of 2 x 64, and of its compute time with AlexNet: 20 steps of 16
# ranks are one epoch.
SHAPE = ("--world-size", "16", "--batch-size", "8", "--cold")
PATTERNS = "pylmdb-skipping,pylmdb-contiguous,pylmdb-ownlock,lmdb,forebay@sequential,forebay"
FEFS = ("--pfs", "fefs", "--targets", "3")

# File systems, narrowed to so many targets (0: as they are): disks to one, or their seeks, slowed
# down, take minutes.
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

Result = dict[str, Any]
MIB = 1 << 20


def run(*arguments: str, quiet: bool = False) -> Result:
    """Run a command of forebay; return its JSON."""
    print(f"\n    forebay {shlex.join(arguments)}\n", file=sys.stderr if quiet else sys.stdout, flush=True)
    command = [sys.executable, "-m", "forebay", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        # A bench with a row that failed ends with 1, and its table says so.
        answer: Result = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return answer


def bench(*arguments: str, repetitions: int = 3) -> Result:
    return run(
        "bench", str(dataset()), *SHAPE, "--skip-verify", "--repetitions", str(repetitions), *arguments
    )


def dataset() -> Path:
    from forebay.tools.bench import workload

    return Path(workload.prepare(WORKLOAD, SCALE, DIRECTORY, container="lmdb").path)


def fetched(row: Result) -> tuple[int, int]:
    """Requests and bytes that reached the file system, in the first repetition."""
    nodes = row["repetitions"][0]["pfs"]["nodes"]
    return sum(node["reads"] for node in nodes), sum(node["read_bytes"] for node in nodes)


def table(result: Result) -> None:
    """Print the rows of a bench."""
    pfs = result["pfs"]
    limit = pfs["limit_mib_s"]
    print(f"{pfs['spec']['name']}, time scale {pfs['time_scale']:g}, model's limit {limit:,.0f} MiB/s\n")
    print(
        "| row | total | against the first | exposed | requests | fetched / requested | MiB/s fetched, of the limit | spread |"
    )
    print("|---|---|---|---|---|---|---|---|")
    first = None
    for row in result["rows"]:
        if row["status"] != "ok":
            print(
                f"| {row['name']} | {row['status']}: {row['error'].splitlines()[-1] if row['error'] else ''} |"
                + " |" * 6
            )
            continue
        median = row["median"]
        first = first or median["total_seconds"]
        reads, read_bytes = fetched(row)
        rate = read_bytes / MIB / median["total_seconds"]
        late = ", late" if any(one["missed_deadlines"] for one in row["repetitions"]) else ""
        print(
            f"| {row['name']} | {median['total_seconds']:.3f} s | {first / median['total_seconds']:.2f}× faster "
            f"| {median['exposed_seconds']:.3f} s | {reads:,} | {read_bytes / median['requested_bytes']:.2f} "
            f"| {rate:,.0f}, {100 * rate / limit:.0f} % | {100 * row['spread']['total_seconds']:.0f} %{late} |"
        )


def patterns() -> None:
    """One rank per node, walking as 4 of 16: skipping, contiguous, own lock file, Forebay; without and with compute."""
    for compute in ("0ms", "1.3ms"):
        shape = ("--ranks", "4", "--nodes", "4", "--steps", "20", "--compute", compute)
        for place in (FEFS, ("--pfs", "lustre-ssd", "--targets", "2")):
            table(bench(*shape, *place, "--strategies", PATTERNS))


def disks() -> None:
    """The same on disks, where a jump costs a seek."""
    shape = ("--ranks", "4", "--nodes", "4", "--steps", "8")
    table(bench(*shape, "--pfs", "fefs-hdd", "--targets", "2", "--strategies", PATTERNS))


def read_ahead() -> None:
    """With the kernel's read-ahead on the mapping, and without."""
    shape = ("--ranks", "4", "--nodes", "4", "--steps", "2")
    names = ("skipping", "contiguous", "ownlock")
    rows = ",".join(f"pylmdb-{name},pylmdb-{name}-noreadahead" for name in names)
    table(bench(*shape, *FEFS, "--strategies", rows, repetitions=1))


def nodes() -> None:
    """One, two, four nodes of one rank each; then four ranks that share the page cache of one node."""
    rows = "pylmdb-skipping,pylmdb-contiguous,forebay"
    for ranks, count in ((1, 1), (2, 2), (4, 4), (4, 1)):
        shape = ("--ranks", str(ranks), "--nodes", str(count), "--steps", "20")
        table(bench(*shape, *FEFS, "--strategies", rows))


def stripes() -> None:
    """Stripes of 64 KiB, 1 MiB and 64 MiB."""
    for stripe in ("64KiB", "1MiB", "64MiB"):
        options = ("--preset", "fefs", "--targets", "3", "--stripe", stripe, "--time-scale", "18")
        with mounted(*options) as mount:
            place = mount / dataset().name
            shape = ("--ranks", "4", "--nodes", "4", "--steps", "20", "--skip-verify", "--repetitions", "3")
            rows = ("--strategies", "pylmdb-skipping,pylmdb-contiguous,forebay")
            table(run("bench", str(place), *SHAPE, *shape, *rows))


def epochs() -> None:
    """A second epoch, with a page cache that holds what a rank fetches of its own region, not what skipping fetches."""
    rows = ("--strategies", "pylmdb-skipping,pylmdb-contiguous,forebay")
    shape = ("--ranks", "4", "--nodes", "4", "--steps", "20", "--skip-verify", "--repetitions", "1")
    options = ("--preset", "fefs", "--targets", "3", "--time-scale", "18")
    # Each of the four nodes takes a quarter of the control group for itself, which is one for all
    # of them here.
    os.environ["FOREBAY_MEMORY"] = "64MiB"
    with mounted(*options) as mount, small_memory(768 * MIB):
        place = str(mount / dataset().name)
        one, two = (run("bench", place, *SHAPE, *shape, *rows, "--epochs", count) for count in ("1", "2"))
    print("| row | fetched / requested, first epoch | second epoch |")
    print("|---|---|---|")
    for first, both in zip(one["rows"], two["rows"], strict=True):
        if first["status"] != "ok" or both["status"] != "ok":
            print(
                f"| {first['name']} | {first['status']} | {both['status']}: {(both['error'] or '').splitlines()[-1:]} |"
            )
            continue
        asked = first["median"]["requested_bytes"]
        before, after = fetched(first)[1], fetched(both)[1]
        print(f"| {first['name']} | {before / asked:.2f} | {(after - before) / asked:.2f} |")


def presets() -> None:
    """All ranks on one node, a cold epoch (on disks a part of one): the default against the best of the others everywhere."""
    shape = (
        "--ranks",
        "4",
        "--batch-size",
        "16",
        "--cold",
        "--skip-verify",
    )
    rows = ("--strategies", "pylmdb-contiguous,lmdb,forebay@sequential,forebay@contiguous,forebay")
    print(f"\n    forebay bench DATASET {shlex.join([*shape, '--pfs', 'PRESET', *rows])}\n")
    print(
        "| file system | k | steps | limit, MiB/s | best other row | its total "
        "| @sequential | @contiguous | @group | of the limit |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for preset, targets in PRESETS.items():
        steps = DISK_STEPS if preset in DISKS else 40
        repetitions = 1 if preset in DISKS else 3
        place = (
            "--repetitions",
            str(repetitions),
            "--steps",
            str(steps),
            "--pfs",
            preset,
            *(("--targets", str(targets)) if targets else ()),
        )
        result = run("bench", str(dataset()), *shape, *place, *rows, quiet=True)
        total = {
            row["name"]: row["median"]["total_seconds"] for row in result["rows"] if row["status"] == "ok"
        }
        other = min((name for name in total if not name.startswith("forebay")), key=total.__getitem__)
        group = next(row for row in result["rows"] if row["name"] == "forebay@group")
        rate = fetched(group)[1] / MIB / total["forebay@group"]
        pfs = result["pfs"]
        name = f"{preset}, {targets} targets" if targets else preset
        late = (
            ", late"
            if any(one["missed_deadlines"] for row in result["rows"] for one in row["repetitions"])
            else ""
        )
        times = " | ".join(
            f"{total[other] / total[f'forebay@{order}']:.2f}×"
            for order in ("sequential", "contiguous", "group")
        )
        print(
            f"| {name} | {pfs['time_scale']:g} | {steps} | {pfs['limit_mib_s']:,.0f} | {other} | {total[other]:.3f} s "
            f"| {times} | {100 * rate / pfs['limit_mib_s']:.0f} %{late} |",
            flush=True,
        )


def blocks() -> None:
    """Reads against page faults, by the size of what is read at once, each byte cold."""
    with mounted("--preset", "local-nvme", "--time-scale", "1") as mount:
        file = str(mount / dataset().name / "data.mdb")
        sizes = [word for size in ("4KiB", "16KiB", "64KiB", "256KiB", "1MiB") for word in ("--block", size)]
        kinds = [word for kind in ("sequential", "mmap", "random", "direct") for word in ("--kind", kind)]
        result = run("limit", file, "--cold", "--seconds", "1", *sizes, *kinds)
    by_block: dict[int, dict[str, float]] = {}
    for figure in result["figures"]:
        by_block.setdefault(figure["block_bytes"], {})[figure["kind"]] = figure["rate_mib_s"]
    print("| block | pread, MiB/s | mmap, MiB/s | pread / mmap | random pread, MiB/s | O_DIRECT, MiB/s |")
    print("|---|---|---|---|---|---|")
    for block, rates in by_block.items():
        ratio = rates["sequential"] / rates["mmap"]
        print(
            f"| {block // 1024} KiB | {rates['sequential']:,.0f} | {rates['mmap']:,.0f} | {ratio:.2f} "
            f"| {rates['random']:,.0f} | {rates['direct']:,.0f} |"
        )


@contextlib.contextmanager
def mounted(*options: str) -> Iterator[Path]:
    """The directory of the data set on an emulated file system."""
    with tempfile.TemporaryDirectory(prefix="forebay-study-") as point:
        run("pfs", "mount", str(dataset().parent), point, *options)
        try:
            yield Path(point)
        finally:
            run("pfs", "unmount", point)


@contextlib.contextmanager
def small_memory(limit_bytes: int) -> Iterator[None]:
    """This process and those that it starts in a control group of little memory; the emulator stays outside."""
    group = Path("/sys/fs/cgroup/memory/forebay-study")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        sys.exit(f"a memory control group cannot be made here: {error}")
    try:
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


SECTIONS: dict[str, Callable[[], None]] = {
    section.__name__: section
    for section in (patterns, disks, read_ahead, nodes, stripes, epochs, presets, blocks)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    for name in parser.parse_args().only:
        print(f"\n## {name}\n\n{SECTIONS[name].__doc__}", flush=True)
        SECTIONS[name]()


if __name__ == "__main__":
    main()
