"""The order ``opportunistic`` with data twice the memory of all nodes, against ``shuffle``.

Two nodes keep a part of the data and stream the rest once per epoch, in a sliding window. The
memory of a node is that for what it keeps and all that the loader has besides, together a quarter
of the data; a loader in the order ``shuffle`` has the same memory, without a store. Both read past
the page cache. The storage is emulated slower than its model, so times are the model's. No sample
crosses the network.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.harness.samples import Samples
from studies.harness.sections import MIB, Result, Row, Scope, ended, run

SOURCES = {"beegfs": 4, "lustre-hdd": 1}
"""And targets: a file is on one target of `lustre-hdd`, and on four of `beegfs`."""
NODES = 2
EPOCHS = 4
SHUFFLED = ("beegfs",)
"""Where `shuffle` is read, too, for one epoch: `lustre-hdd` takes hours."""
OTHER_MIB = 8
"""Of memory beside the window: batch buffers and control."""
MOST_WRITTEN_MIB = 2048
"""Larger data are holes of a file: beside the nodes, they do not fit in the machine."""
TURNS = 16
"""Sections of a window, at most."""


@dataclass(frozen=True)
class Shape:
    """A row: a window of units of a length."""

    source: str
    sample_bytes: int
    batch: int
    window: int
    unit_mib: int = 1
    data_mib: int = 512
    entropy: float | None = None
    turns: bool = False
    """Whether nodes take turns to read, each with one reader."""

    @property
    def memory_mib(self) -> int:
        """Memory of the loader: the window, a section, one more for the seam, and the rest."""
        units = self.window + 2 * -(-self.window // min(TURNS, self.window, self.unit_samples // 8))
        return -(-units * self.unit_mib * 65 // 64) + OTHER_MIB

    @property
    def unit_samples(self) -> int:
        """Samples of a unit."""
        return self.unit_mib * MIB // self.sample_bytes

    def strategy(self, node_mib: int) -> str:
        """Row of a bench, where a node has so much memory."""
        bound = "" if self.entropy is None else f"entropy={self.entropy},"
        unit = "" if self.unit_mib == 1 else f",unit={self.unit_mib}MiB"
        kept = max(node_mib - self.memory_mib, 1)
        order = f"opportunistic:{bound}window={self.window}{unit}"
        turns = f",readers=1,stagger={NODES}" if self.turns else ""
        return f"forebay:store={kept}MiB,direct=true{turns}@{order}+{self.name}"

    @property
    def name(self) -> str:
        """Name of its environment."""
        return f"w{self.window}u{self.unit_mib}" + "t" * self.turns


SHAPES = (
    Shape("beegfs", 16_384, 64, 24),
    Shape("beegfs", 16_384, 64, 48),
    Shape("beegfs", 16_384, 64, 88),
    Shape("beegfs", 1024, 512, 96, entropy=0.9),
    Shape("lustre-hdd", 16_384, 64, 88),
    Shape("lustre-hdd", 16_384, 64, 16, unit_mib=4),
    Shape("lustre-hdd", 16_384, 64, 4, unit_mib=16),
    Shape("lustre-hdd", 16_384, 64, 4, unit_mib=32, data_mib=1024),
    Shape("lustre-hdd", 16_384, 64, 4, unit_mib=32, data_mib=1024, turns=True),
    Shape("lustre-hdd", 1024, 4096, 5, unit_mib=256, data_mib=8192, entropy=0.9),
    Shape("lustre-hdd", 1024, 4096, 5, unit_mib=256, data_mib=8192, entropy=0.9, turns=True),
)


def opportunistic(scope: Scope) -> list[Row]:
    """Source bytes and time of an epoch, over what is streamed and that at the limit."""
    shapes = scope.pick(SHAPES, (Shape("beegfs", 16_384, 64, 1),))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="forebay-study-", dir="/dev/shm") as memory:
        for group in grouped(shapes):
            source, sample_bytes = group[0].source, group[0].sample_bytes
            samples = Samples.about(scope, sample_bytes, group[0].data_mib * MIB)
            made = Samples(Path(memory), samples.count, sample_bytes)
            if group[0].data_mib > MOST_WRITTEN_MIB:
                path = sparse(made)
            else:
                path = made.make("npy")
                made.raw.unlink(missing_ok=True)
            rows += of_source(source, path, made.count, group)
            path.unlink()
    return rows


def sparse(samples: Samples) -> Path:
    """Make a file of samples that are zeros and take no memory."""
    path = samples.directory / "sparse.npy"
    header = {"descr": "|u1", "fortran_order": False, "shape": (samples.count, samples.sample_bytes)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + samples.count * samples.sample_bytes)
    return path


def grouped(shapes: Sequence[Shape]) -> list[list[Shape]]:
    """Shapes by storage and data, each group in one bench."""
    groups: dict[tuple[str, int, int], list[Shape]] = {}
    for shape in shapes:
        groups.setdefault((shape.source, shape.sample_bytes, shape.data_mib), []).append(shape)
    return list(groups.values())


def of_source(source: str, path: Path, samples: int, shapes: Sequence[Shape]) -> list[Row]:
    """Rows of one storage and dataset."""
    node_mib = path.stat().st_size // 2 // NODES // MIB
    surroundings = [
        word
        for shape in shapes
        for word in ("--environment", f"{shape.name}:FOREBAY_NODE_MEMORY={shape.memory_mib}MiB")
    ]
    batch, sample_bytes = shapes[0].batch, shapes[0].sample_bytes
    strategies = [shape.strategy(node_mib) for shape in shapes]
    found = read(source, path, strategies, surroundings, batch, EPOCHS)
    limit = found["limit"]["rate_mib_s"] * MIB
    shared = {
        "source": source,
        "nodes": NODES,
        "sample_bytes": sample_bytes,
        "samples": samples,
    }
    rows = [
        shared | of_row(row, limit) | {"turns": "yes" if shape.turns else "no"}
        for row, shape in zip(found["rows"], shapes, strict=True)
    ]
    if source in SHUFFLED and sample_bytes > 4096:
        budget = f"plain:FOREBAY_NODE_MEMORY={max(node_mib, 24)}MiB"
        strategies = ["forebay:direct=true@shuffle+plain"]
        plain = read(source, path, strategies, ["--environment", budget], batch, epochs=1)
        shuffled = shared | of_row(plain["rows"][0], limit)
        rows.append(shuffled)
        for row in rows:
            row["shuffle_ratio"] = shuffled["seconds"] / row["seconds"]
    return rows


def read(
    source: str, path: Path, strategies: Sequence[str], surroundings: Sequence[str], batch: int, epochs: int
) -> Result:
    """Run a bench of one rank per node."""
    return run(
        "bench", str(path), "--strategies", ",".join(strategies), *surroundings, "--pfs", source, "--targets",
        str(SOURCES[source]), "--ranks", str(NODES), "--nodes", str(NODES), "--batch-size", str(batch),
        "--epochs", str(epochs), "--repetitions", "1", "--cold", "--skip-verify",
    )  # fmt: skip


def of_row(row: Any, limit: float) -> Row:
    """Times of epochs that are neither the first nor the last; the only one, if there is one.

    Source bytes are those of all epochs, without the one read of what is kept: an epoch reads ahead
    into the next one.
    """
    ended(row)
    every = row["repetitions"][0]["by_epoch"]
    epochs = every[1:-1] or every
    requested = epochs[0]["requested_bytes"]
    seconds = statistics.median(one["seconds"] for one in epochs)
    total = sum(one["pfs"]["read_bytes"] for one in every)
    streamed = (
        statistics.mean(one["levels"]["source"] for one in epochs) if "share" in epochs[0]["levels"] else None
    )
    kept = requested - streamed if streamed else 0
    read = (total - kept) / len(every)
    gib = sum(one["requested_bytes"] for one in every) / (1 << 30)
    window = re.search(r"window=(\d+)", row["order"])
    return {
        "order": row["order"],
        "window": int(window[1]) if window else None,
        "entropy": row["shuffle_quality"]["order_entropy"],
        "streamed_share": streamed / requested if streamed else None,
        "source_share": read / requested,
        "source_ratio": read / streamed if streamed else None,
        "seeks": sum(one["seeks"] for one in row["repetitions"][0]["pfs"]["servers"]) / len(every),
        "seconds": seconds,
        "limit_mb_s": limit / 1e6,
        "limit_ratio": seconds / (streamed / limit) if streamed else None,
        "mb_per_s": requested / seconds / 1e6,
        "cpu_s_per_gib": row["median"]["cpu_seconds"] / gib,
    }
