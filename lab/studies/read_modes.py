"""The tables of docs/results/read-width.md.

    python lab/studies/read_modes.py [--only SECTION ...]

Each figure is one cold epoch in a new process, over 1 GiB of records of 196 KiB on an emulated file
system. The modes take turns, and the one that begins a turn changes. Times are medians in seconds
of the model. Needs FUSE and a memory control group (version 1) that can be written. The modes
``before`` and ``before kept`` are of another build (``--against OTHER/python``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import datasets
from bench.harness import Settings

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
RECORD_BYTES = 196 << 10
RECORDS = 5350
CHUNK_BYTES = 256 << 10
CHUNKS = 4096
# The process may take this much memory, its share of the page cache included: the file is larger
# than half of it.
MEMORY_BYTES = 448 * MIB
BYSTANDER_BYTES = 64 * MIB

MODES: dict[str, dict[str, Any]] = {
    "direct": {"direct": True},
    "kept": {"direct": False},
    "default": {},
    # With a number of readers that was given, nothing is announced.
    "8 unannounced": {"readers": 8, "direct": False},
    # Modes of the other build.
    "before": {},
    "before kept": {"direct": False},
}
# File systems and their number of targets (0: that of the preset), as in access_patterns.py.
DISKS = {"lustre-hdd": 1, "gpfs": 1, "fefs-hdd": 2, "blues": 1}
FLASH = {"fefs": 3, "lustre-ssd": 2, "beegfs": 2, "nfs": 0}
ORDERS = ("sequential", "contiguous", "group")

Figures = dict[str, Any]


def plain(settings: Settings) -> Path:
    return datasets.raw(settings, "wide", RECORDS, RECORD_BYTES).file


def coded(settings: Settings) -> Path:
    """HDF5, one compressed chunk per sample: half of the bytes are random, half are zeros."""
    place = datasets.directory(settings) / f"coded-{CHUNKS}.h5"
    if not place.exists():
        import h5py

        generator = np.random.default_rng(5)
        partial = place.with_suffix(f".{os.getpid()}.partial")
        with h5py.File(partial, "w") as file:
            shape = (CHUNKS, CHUNK_BYTES)
            rows = file.create_dataset("rows", shape, np.uint8, chunks=(1, CHUNK_BYTES), compression="lzf")
            for at in range(CHUNKS):
                row = generator.integers(0, 256, CHUNK_BYTES, dtype=np.uint8)
                row[: CHUNK_BYTES // 2] = 0
                rows[at] = row
        partial.rename(place)
    return place


def forebay(*arguments: str) -> Figures:
    command = [sys.executable, "-m", "forebay", *arguments, "--json"]
    answer: Figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


@contextlib.contextmanager
def mounted(file: Path, preset: str, targets: int) -> Iterator[tuple[Path, float]]:
    """The file on an emulated file system, and the time scale."""
    with tempfile.TemporaryDirectory(prefix="forebay-modes-") as point:
        narrow = ("--targets", str(targets)) if targets else ()
        scale = ("--time-scale", "auto")
        made = forebay("pfs", "mount", str(file.parent), point, "--preset", preset, *narrow, *scale)
        try:
            yield Path(point) / file.name, made["time_scale"]
        finally:
            forebay("pfs", "unmount", point)


@contextlib.contextmanager
def small_memory() -> Iterator[Path]:
    """A memory control group for the reading process; the emulator stays outside."""
    group = Path(f"/sys/fs/cgroup/memory/forebay-modes-{os.getpid()}")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES))
    try:
        yield group
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def epoch(
    file: Path, order: str, mode: str, options: argparse.Namespace, bystander: Path | None = None
) -> Figures:
    """One epoch in a new process of little memory."""
    package = options.against if mode.startswith("before") else ROOT / "python"
    cache = datasets.directory(Settings(options.directory)) / "cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    variables = {"PYTHONPATH": str(package.resolve()), "FOREBAY_CACHE_DIR": str(cache.resolve())}
    with small_memory() as group:
        what = {
            "path": str(file.parent if file.suffix == ".mdb" else file),
            "order": order,
            "strategy": MODES[mode],
            "group": str(group),
            "bystander": str(bystander) if bystander else None,
        }
        command = [sys.executable, "-W", "ignore", __file__, "--inside", json.dumps(what)]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env=os.environ | variables
        )
    if done.returncode:
        sys.exit(done.stderr)
    answer: Figures = json.loads(done.stdout)
    return answer


def inside(what: Figures) -> None:
    Path(what["group"], "cgroup.procs").write_text(str(os.getpid()))
    import forebay
    from forebay import page_cache

    bystander = what["bystander"] and Path(what["bystander"])
    if bystander:
        datasets.drop(bystander)
        datasets.warm(bystander)
    schema = {"schema": "raw"} if what["path"].endswith(".lmdb") else {}
    loader = forebay.Loader(
        forebay.open(what["path"], **schema),
        batch_size=16,
        order=what["order"],
        world="single",
        epochs=1,
        memory="192MiB",
        strategy=forebay.Strategy(**what["strategy"]),
        name="modes",
        seed=1,
    )
    before = resource.getrusage(resource.RUSAGE_SELF)
    begun = time.perf_counter()
    for _ in loader:
        pass
    seconds = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    readers = loader.facts["readers"]
    loader.close()
    left = page_cache.resident_share(bystander) if bystander else None
    print(json.dumps({"seconds": seconds, "cpu": cpu, "readers": readers, "left": left}))


def compare(
    make: Callable[[Settings], Path],
    presets: dict[str, int],
    modes: tuple[str, ...],
    options: argparse.Namespace,
) -> None:
    """Print a row per file system and order: per mode time, seeks and CPU time, with ratios."""
    if options.modes:
        modes = tuple(options.modes)
    file = make(Settings(options.directory))
    datasets.warm(file)
    print(
        "| file system | order |"
        + "".join(f" {mode} | its seeks |" for mode in modes)
        + f" {modes[0]} over "
        + " | over ".join(modes[1:])
        + " |"
    )
    print("|---|---|" + "---|---|" * len(modes) + "---|" * (len(modes) - 1))
    for preset, targets in presets.items():
        if options.presets and preset not in options.presets:
            continue
        with mounted(file, preset, targets) as (place, scale):
            epoch(place, "sequential", modes[0], options)
            for order in options.orders:
                found: dict[str, list[Figures]] = {mode: [] for mode in modes}
                for turn in range(options.repetitions):
                    for number in range(len(modes)):
                        mode = modes[(turn + number) % len(modes)]
                        forebay("pfs", "drop-caches", str(place.parent))
                        forebay("pfs", "reset", str(place.parent))
                        one = epoch(place, order, mode, options)
                        stats = forebay("pfs", "stats", str(place.parent))
                        one["seeks"] = sum(server["seeks"] for server in stats["servers"])
                        found[mode].append(one)
                first = [one["seconds"] for one in found[modes[0]]]
                cells = []
                for ones in found.values():
                    seconds = statistics.median(one["seconds"] for one in ones) / scale
                    cpu = statistics.median(one["cpu"] for one in ones)
                    seeks = statistics.median(one["seeks"] for one in ones)
                    cells.append(f"{seconds:.3f} s, CPU {cpu:.2f} s | {seeks:.0f}")
                for mode in modes[1:]:
                    ratios = [a / b["seconds"] for a, b in zip(first, found[mode], strict=True)]
                    cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
                print(f"| {preset} | {order} | " + " | ".join(cells) + " |", flush=True)


def disks(options: argparse.Namespace) -> None:
    """On disks, with a file more than twice as large as the memory."""
    compare(plain, DISKS, ("direct", "kept", "default"), options)


def flash(options: argparse.Namespace) -> None:
    """The same without seeks."""
    compare(plain, FLASH, ("direct", "kept", "default"), options)


def compressed(options: argparse.Namespace) -> None:
    """Compressed chunks."""
    compare(coded, {**DISKS, **FLASH}, ("direct", "8 unannounced", "default"), options)


def bystander(options: argparse.Namespace) -> None:
    """Measure what an epoch leaves of another file in the control group's page cache."""
    other = datasets.directory(Settings(options.directory)) / "bystander"
    other.write_bytes(os.urandom(BYSTANDER_BYTES))
    file = plain(Settings(options.directory))
    print("| mode | of the other file left |\n|---|---|")
    with mounted(file, "lustre-ssd", 2) as (place, _):
        for mode in ("direct", "kept", "default"):
            left = []
            for _ in range(options.repetitions):
                forebay("pfs", "drop-caches", str(place.parent))
                left.append(epoch(place, "sequential", mode, options, other)["left"])
            print(f"| {mode} | {100 * statistics.median(left):.0f} % |", flush=True)
    other.unlink()


SECTIONS = {section.__name__: section for section in (disks, flash, compressed, bystander)}


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument(
        "--against",
        type=Path,
        default=ROOT / "python",
        help="python directory of the build of the modes before",
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, help="in place of the section's own")
    parser.add_argument("--presets", nargs="+", choices=[*DISKS, *FLASH])
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=ORDERS)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--directory", type=Path, default=Path(os.environ.get("FOREBAY_BENCH_DIR", "bench-data"))
    )
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(json.loads(options.inside))
        return
    for name in options.only:
        print(f"\n## {name}\n\n{SECTIONS[name].__doc__}\n", flush=True)
        SECTIONS[name](options)


if __name__ == "__main__":
    main()
