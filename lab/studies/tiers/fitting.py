"""A tier that holds all data: every format, and what the first epoch costs.

In order: each format is made and read three epochs in its default order, with a tier; then the same
loader reads it from the tier's device as its source. For the first epoch, runs with and without a
tier take turns.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import forebay
from forebay import _native
from forebay_lab.bench.turns import mean_interval
from studies.harness.samples import FORMATS, Samples
from studies.harness.sections import Row, Scope
from studies.harness.tiered import LOADER_MEMORY, TIER, bench, epochs_of, mounts, read

SAMPLE_BYTES = 114_660
DATA_BYTES = 840 << 20
MEMORY = "210MiB"
"""Of a node: a quarter of the data."""
# Gives `Loader` samples of one length, which a raw file needs to be told and the bench cannot.
SKIPPED = {"raw", "hdf5-chunked"}
PAIRS = 7


def fits(scope: Scope) -> list[Row]:
    """Each format: what epochs 2 and 3 read from the source, and their time against the device."""
    rows: list[Row] = []
    for name in (name for name in FORMATS if name not in SKIPPED):
        samples = Samples.about(scope, SAMPLE_BYTES, DATA_BYTES)
        path = samples.make(name)
        data_bytes = samples.count * SAMPLE_BYTES
        batch = ("--ranks", "1", "--batch-size", "32")
        memory = scope.pick(MEMORY, None)
        tiered = bench(path, "forebay+fits", *batch, tiers={"fits": "2GiB"}, epochs=3, memory=memory)
        device = bench(
            path, "forebay+none", *batch, tiers={"none": None}, source=TIER, epochs=3, memory=memory
        )
        first, *later = epochs_of(tiered["rows"][0])
        at_device = statistics.median(one["seconds"] for one in epochs_of(device["rows"][0]))
        rows.append(
            {
                "name": name,
                "first_source_ratio": first["source_bytes"] / data_bytes,
                **{
                    f"source_share_{number}": one["source_bytes"] / data_bytes
                    for number, one in enumerate(later, 2)
                },
                "first_seconds": first["seconds"],
                "later_seconds": statistics.median(one["seconds"] for one in later),
                "device_seconds": at_device,
                "time_ratio": statistics.median(one["seconds"] for one in later) / at_device,
            }
        )
        samples.remove(name)
    return rows


def first_epoch(scope: Scope) -> list[Row]:
    """Time, bytes and requests of epoch 1 with a tier over those without, in alternating pairs."""
    samples = Samples.about(scope, SAMPLE_BYTES, DATA_BYTES)
    path = samples.make("tfrecord")
    data_bytes = samples.count * SAMPLE_BYTES
    rows: list[Row] = []
    for order in ("group", "shuffle"):
        found = bench(
            path, f"forebay@{order}+none,forebay@{order}+fits", "--ranks", "1", "--batch-size", "32",
            tiers={"none": None, "fits": "2GiB"}, epochs=2, repetitions=scope.pick(PAIRS, 1),
            memory=scope.pick(MEMORY, None),
        )  # fmt: skip
        plain, tiered = found["rows"]
        ratios = [
            with_tier["by_epoch"][0]["seconds"] / without["by_epoch"][0]["seconds"]
            for without, with_tier in zip(plain["repetitions"], tiered["repetitions"], strict=True)
        ]
        (first, second), (alone, _) = epochs_of(tiered), epochs_of(plain)
        rows.append(
            {
                "order": order,
                "time_ratio": statistics.median(ratios),
                **mean_interval(ratios),
                "source_ratio": first["source_bytes"] / alone["source_bytes"],
                "reads_ratio": first["reads"] / alone["reads"],
                # What epoch 1 did not copy is read again.
                "skipped_share": second["source_bytes"] / data_bytes,
                "steadiness": steadiness(path, order, scope.pick(PAIRS, 1)),
            }
        )
    return rows


def steadiness(path: Path, order: str, runs: int) -> float:
    """Samples/s of the last quarter of the first epoch over those of the first; median of runs."""
    ratios = []
    with mounts(path.parent) as place:
        for _ in range(runs):
            # Two epochs are announced, so copies are made; the first one is read.
            steps = len(forebay.Loader(path, 8, order=order, world="single"))
            level = (f"{place.tier}:2GiB",)
            first = read(place, path.name, level, order=order, epochs=2, steps=steps, memory=LOADER_MEMORY)
            ratios.append(first["quarters"][0] / first["quarters"][-1])
            _native.clear_tiers([place.tier])
    return statistics.median(ratios)
