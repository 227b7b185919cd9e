"""The store against reading the emulated `beegfs`, whose data are in memory, in real time.

Storage and links keep the ratio of the preset, and both are slowed to what two cores carry: the
bandwidths of the preset over `SLOWED`, latencies as they are. The data are read by `forebay bench`
on nodes that have memory for their share, the loader and Python; what a loader without a store has
free of it holds pages of the file system.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forebay_lab import pfs
from studies.harness.samples import Samples
from studies.harness.sections import MIB, Result, Row, Scope, ended, run

SOURCE = "beegfs"
SLOWED = 60
TARGETS, TARGET_BYTES_PER_SECOND, LINK_BYTES_PER_SECOND = 4, 3e9, 1.25e10
"""Of the preset."""
SAMPLE_BYTES = 110_000
DATA_BYTES = 384 << 20
GLOBAL_BATCH, ANY_BATCH = 64, 60
"""Samples per step; for any number of nodes up to four."""
EPOCHS = 5
REPETITIONS = 2
BUDGET_BYTES = 48 << 20
PROCESS_BYTES = 112 << 20
"""Of a rank with Python and MPI."""
ROWS = ("forebay@shuffle", "forebay@contiguous", "store@shuffle", "store@local-shuffle")
LINKS = (0.5, 1.0, 2.0)
"""Ratios of network to storage, over that of the preset."""


@contextlib.contextmanager
def mounted(samples: Samples, name: str) -> Iterator[Path]:
    """Mount samples that are in memory; give their path."""
    with tempfile.TemporaryDirectory(prefix="forebay-study-", dir="/dev/shm") as memory:
        in_memory = Samples(Path(memory), samples.count, samples.sample_bytes)
        path = in_memory.make(name)
        if name != "raw":
            in_memory.raw.unlink()
        slowed = {
            "target_bytes_per_second": TARGET_BYTES_PER_SECOND / SLOWED,
            "link_bytes_per_second": LINK_BYTES_PER_SECOND / SLOWED,
        }
        with pfs.mounted(memory, preset=SOURCE, time_scale=1.0, overrides=slowed) as (_, mount):
            yield mount / path.name


def measured(
    scope: Scope,
    path: Path,
    rows: Sequence[str],
    nodes: int,
    *,
    link: float = 1.0,
    share: float = 1.15,
    epochs: int = EPOCHS,
    repetitions: int = REPETITIONS,
    batch: int = GLOBAL_BATCH,
) -> Result:
    """Run a bench of one rank per node.

    `link` is the rate of links over that of the preset, `share` the memory of a node for samples
    over a node's part of the data.
    """
    memory = round(path.stat().st_size * share / nodes) + BUDGET_BYTES + PROCESS_BYTES
    return run(
        "bench", str(path), "--strategies", ",".join(f"{row}+limited" for row in rows), "--environment",
        f"limited:FOREBAY_NODE_MEMORY={BUDGET_BYTES // MIB}MiB", "--ranks", str(nodes), "--nodes", str(nodes),
        "--global-batch", str(batch), "--epochs", str(scope.pick(epochs, 3)), "--cold", "--skip-verify",
        "--repetitions", str(scope.pick(repetitions, 1)), "--node-memory", f"{-(-memory // MIB)}MiB",
        *(("--link-rate", f"{round(link * LINK_BYTES_PER_SECOND / SLOWED * 8 / 1e6)}Mbit") if nodes > 1 else ()),
    )  # fmt: skip


def later(row: Any) -> Row:
    """Medians of epochs that are neither the first nor the last, over the repetitions."""
    ended(row)
    epochs = [one for run_of in row["repetitions"] for one in run_of["by_epoch"][1:-1]]
    seconds = statistics.median(one["seconds"] for one in epochs)
    requested = epochs[0]["requested_bytes"]
    loaded = statistics.median(run_of["by_epoch"][0]["seconds"] for run_of in row["repetitions"])
    gib = statistics.median(
        sum(one["requested_bytes"] for one in run_of["by_epoch"]) for run_of in row["repetitions"]
    ) / (1 << 30)
    return {
        "order": row["order"],
        "first_seconds": loaded,
        "seconds": seconds,
        "mb_per_s": requested / seconds / 1e6,
        "cpu_s_per_gib": row["median"]["cpu_seconds"] / gib,
        "source_share": statistics.median(one["pfs"]["read_bytes"] for one in epochs) / requested,
    }


def storage(scope: Scope) -> list[Row]:
    """Rate of an epoch with a store, over that without, in the same order and from N to N."""
    samples = Samples.about(scope, SAMPLE_BYTES, DATA_BYTES)
    rows: list[Row] = []
    with mounted(samples, "npy") as path:
        for link in scope.pick(LINKS, (1.0,)):
            nodes = scope.pick(4, 2)
            found = measured(scope, path, ROWS, nodes, link=link)
            rows += [
                {"strategy": row["strategy"], "link": link, "nodes": nodes, **later(row)}
                for row in found["rows"]
            ]
            *_, plain, contiguous, _, _ = rows
            for row in rows[-4:]:
                row["ratio"] = row["mb_per_s"] / plain["mb_per_s"]
                row["sequential_ratio"] = row["mb_per_s"] / contiguous["mb_per_s"]
                row["link_mb_s"] = link * LINK_BYTES_PER_SECOND / SLOWED / 1e6
    return rows


def iterations(scope: Scope) -> list[Row]:
    """Time of an epoch and of an iteration, by nodes, as in figure 3 of the paper."""
    samples = Samples.about(scope, SAMPLE_BYTES, DATA_BYTES)
    rows: list[Row] = []
    with mounted(samples, "npy") as path:
        for nodes in scope.pick((1, 2, 3, 4), (1,)):
            strategies = ("forebay@shuffle", "store@shuffle", "store@local-shuffle")
            found = measured(scope, path, strategies, nodes, batch=ANY_BATCH, repetitions=1)
            steps = -(-samples.count // ANY_BATCH)
            for row in found["rows"]:
                one = {"strategy": row["strategy"], "nodes": nodes, "steps": steps, **later(row)}
                rows.append(one | {"iteration_ms": one["seconds"] / steps * 1e3})
            plain = rows[-3]
            for one in rows[-3:]:
                one["ratio"] = plain["seconds"] / one["seconds"]
    return rows
