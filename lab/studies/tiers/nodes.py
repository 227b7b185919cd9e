"""Several nodes and several ranks: what is read from the source, against what is predicted.

Each of four nodes has a tier for a quarter of the data. `group` with groups of whole chunks reads
nothing twice. Small samples in `shuffle` would, so each node reads most of the data for its copies.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py

from forebay import _native
from studies.harness.samples import Samples
from studies.harness.sections import Row, Scope
from studies.harness.tiered import Mounts, bench, epochs_of, mounts, predictions, quota
from studies.tiers.fitting import DATA_BYTES, MEMORY, SAMPLE_BYTES

NODES = 4
RANKS_MEMORY = "600MiB"
"""Four Python processes take most of it."""


def nodes(scope: Scope) -> list[Row]:
    """Source bytes over the data, beside the prediction of `explain()`.

    Loaders read ahead across epochs, but not beyond the last: runs of one more epoch are compared.
    """
    rows: list[Row] = []
    for name, sample_bytes, order, runs in (
        ("groups of whole chunks", 1 << 16, "group:samples=16,window=4", (2, 3)),
        ("samples of 112 KiB", SAMPLE_BYTES, "shuffle", (3,)),
    ):
        samples = Samples.about(scope, sample_bytes, DATA_BYTES)
        path = aligned(samples)
        data_bytes = samples.count * sample_bytes
        read, predicted, before = 0.0, 0.0, 0
        for epochs in runs:
            found = bench(
                path, f"forebay@{order}+quarter", "--ranks", str(NODES), "--nodes", str(NODES), "--batch-size",
                "8", tiers={"quarter": quota(data_bytes, 1 / NODES)}, epochs=epochs,
                memory=scope.pick(MEMORY, None),
            )  # fmt: skip
            row = found["rows"][0]
            total = sum(one["source_bytes"] for one in epochs_of(row)) / data_bytes
            forecast = sum(predictions(row)[:epochs]) / data_bytes
            rows.append(
                {
                    "name": name,
                    "order": order,
                    "epochs": f"{before + 1} to {epochs}" if before + 1 < epochs else str(epochs),
                    "source_share": total - read,
                    "predicted_share": forecast - predicted,
                    "ratio": (total - read) / (forecast - predicted),
                }
            )
            read, predicted, before = total, forecast, epochs
        path.unlink()
    return rows


def aligned(samples: Samples) -> Path:
    """Write samples to an HDF5 file whose first one begins at a whole chunk."""
    path = samples.raw.with_suffix(".aligned.h5")
    with h5py.File(path, "w", alignment_threshold=samples.sample_bytes, alignment_interval=1 << 20) as file:
        file["x"] = samples.array
    return path


def sharing(scope: Scope) -> list[Row]:
    """Source bytes of each epoch over the data: four ranks of a node, and two jobs at once."""
    samples = Samples.about(scope, SAMPLE_BYTES, DATA_BYTES)
    path = samples.make("tfrecord")
    data_bytes = samples.count * SAMPLE_BYTES
    rows: list[Row] = []
    for order in ("group", "sequential", "shuffle"):
        found = bench(
            path, f"forebay@{order}+fits", "--ranks", "4", "--batch-size", "8",
            tiers={"fits": "2GiB"}, epochs=3, memory=scope.pick(RANKS_MEMORY, None),
        )  # fmt: skip
        shares = [one["source_bytes"] / data_bytes for one in epochs_of(found["rows"][0])]
        rows.append(
            {
                "name": "four ranks",
                "order": order,
                **{f"source_share_{number}": share for number, share in enumerate(shares, 1)},
                "source_share": sum(shares),
            }
        )
    with mounts(path.parent) as place:
        for order in ("group", "sequential", "shuffle"):
            place.drop_caches()
            before = place.source_bytes()
            two_jobs(place, path.name, order)
            share = (place.source_bytes() - before) / data_bytes
            _native.clear_tiers([place.tier])
            rows.append({"name": "two jobs", "order": order, "source_share": share})
    return rows


def two_jobs(place: Mounts, name: str, order: str) -> None:
    """Read three epochs in two processes at once."""
    words = ("-m", "studies.tiers.job", place.source / name, f"{place.tier}:2GiB", order)
    jobs = [
        subprocess.Popen([sys.executable, *map(str, words), str(seed)], stderr=subprocess.PIPE, text=True)
        for seed in (1, 2)
    ]
    for job in jobs:
        _, said = job.communicate()
        if job.returncode:
            raise RuntimeError(said)
