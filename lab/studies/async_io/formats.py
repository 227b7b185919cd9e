"""Group order of each format, cold, against the storage's sequential rate of one file.

In order, for each format: it is made, indexed, and mounted on an emulated file system; then the
epoch and `forebay limit` take turns, each from an empty page cache: one process, from asking for
the first batch to the last one. What making the loader takes (a file is opened) is told apart, as
of exposed I/O: an epoch here is a tenth of a second in model time, and the limit opens nothing,
either. Both are bytes fetched from the file system over real seconds of the same time scale, so
that their ratio is the model's. What was made is removed again.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import forebay
from forebay import _native
from forebay_lab import pfs
from forebay_lab.bench.runner import LIMIT_KINDS
from studies.harness.samples import FORMATS, Samples
from studies.harness.sections import Row, Scope

PLACES: dict[str, dict[str, Any]] = {"nfs": {}, "lustre-ssd": {"targets": 2}}
SIZES = {"3k": (3_072, 64, 256), "110k": (114_660, 32, 32)}
"""Bytes of a sample; samples of a tiny run, in groups of 64; batch."""
DATA_BYTES = 768 << 20
FOLDER_SAMPLES = 2048
"""Each file costs at least one request, however small, of the file system's latency."""
BLOCK_BYTES = 4 << 20
LIMIT_SECONDS = 1.0


def formats_limit(scope: Scope, size: str) -> list[Row]:
    """Bytes fetched per second over `forebay limit` on the file (of a folder: the raw file)."""
    sample_bytes, tiny, batch = SIZES[size]
    raw_rates: dict[str, float] = {}
    rows: list[Row] = []
    for name in ("raw", *(name for name in FORMATS if name not in {"raw", "hdf5-gzip"})):
        whole = FOLDER_SAMPLES if name == "folder" else DATA_BYTES // sample_bytes
        samples = Samples(scope.directory / "formats", scope.pick(whole, tiny * 64), sample_bytes)
        path = samples.make(name)
        samples.open(path).native.build_index(beside=True)
        row: Row = {"name": name, "sample_bytes": sample_bytes, "samples": samples.count}
        for preset, overrides in PLACES.items():
            with pfs.mounted(path.parent, preset=preset, time_scale="auto", overrides=overrides) as (
                server,
                mount,
            ):
                row |= measure(scope, samples, server, mount, path.name, batch, preset, raw_rates)
        rows.append(row)
        samples.remove(name)
    return rows


def measure(
    scope: Scope,
    samples: Samples,
    server: pfs.Server,
    mount: Path,
    name: str,
    batch: int,
    preset: str,
    raw_rates: dict[str, float],
) -> Row:
    """Let epochs and the limit take turns; three figures."""
    path = mount / name
    file = path / "data.mdb" if path.suffix == ".lmdb" else path
    limits, rates, fetched, started = [], [], [], []
    for _ in range(scope.repetitions):
        if file.is_file():
            limits.append(limit_of(server, mount, file))
        server.drop_caches(mount)
        dataset = samples.open(path)
        dataset.native.load_index()
        server.reset()
        startup, seconds = epoch(dataset, batch)
        started.append(1e3 * startup / server.stats()["time_scale"])
        read_bytes = sum(node["read_bytes"] for node in server.stats()["nodes"])
        rates.append(read_bytes / seconds / (1 << 20))
        fetched.append(read_bytes / (samples.count * samples.sample_bytes))
    limit = statistics.median(limits) if limits else raw_rates[preset]
    raw_rates.setdefault(preset, limit)
    rate = statistics.median(rates)
    place = preset.replace("-", "_")
    late = {"missed_deadlines": True} if server.stats()["missed_deadlines"] else {}
    return late | {
        f"{place}_limit_share": rate / limit,
        f"{place}_fetched_ratio": statistics.median(fetched),
        f"{place}_startup_ms": statistics.median(started),
    }


def limit_of(server: pfs.Server, mount: Path, file: Path) -> float:
    """Return `forebay limit` [MiB/s]: the best of one stream, and O_DIRECT with 1 and 4 threads."""
    rates = []
    for kind, threads in LIMIT_KINDS:
        server.drop_caches(mount)
        figure = _native.limit(
            str(file), block_bytes=BLOCK_BYTES, seconds=LIMIT_SECONDS, kind=kind, threads=threads, cold=True
        )
        rates.append(figure["rate_mib_s"])
    return float(max(rates))


def epoch(dataset: forebay.Dataset, batch: int) -> tuple[float, float]:
    """Seconds to make a loader, and of an epoch from its first request to its last batch."""
    begun = time.perf_counter()
    with forebay.Loader(
        dataset, batch, order="group", expected_epochs=1, last_batch="partial", world="single"
    ) as loader:
        made = time.perf_counter()
        got = sum(len(taken.indices) for taken in loader)
        ended = time.perf_counter()
    if got != len(dataset):
        raise RuntimeError(f"expected {len(dataset)} samples, found {got}")
    return made - begun, ended - made
