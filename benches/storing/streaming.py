"""The order ``opportunistic`` with data twice the memory of all nodes, against ``shuffle``.

Two nodes keep a part of the data and stream the rest once per epoch, in windows. The memory of a
node is that for what it keeps and for two windows, together a quarter of the data; a loader in the
order ``shuffle`` has the same memory, without a store. Both read past the page cache. The storage
is emulated slower than its model, so times are the model's. No sample crosses the network.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asynchronous.containers import Samples
from sections import MIB, Result, Row, run
from tiering.study import Study

SOURCES = {"beegfs": 4, "lustre-hdd": 1}
"""And targets: a file is on one target of `lustre-hdd`, and on four of `beegfs`."""
NODES = 2
DATA_BYTES = 512 << 20
SAMPLE_BYTES = 16_384
BATCH = 64
EPOCHS = 4
SHUFFLED = ("beegfs",)
"""Where `shuffle` is read, too, for one epoch, and with all windows: `lustre-hdd` takes hours."""
SMALLEST_BYTES = 16 << 20
"""Of memory beside two windows: batch buffers and blocks."""
WINDOWS = (8, 24, 36)
"""Units of 1 MiB: 36 leave a quarter of the memory for what is kept."""


def opportunistic(study: Study) -> list[Row]:
    """Source bytes and time of an epoch, over what is streamed and that at the limit."""
    samples = study.samples(SAMPLE_BYTES, DATA_BYTES)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="forebay-study-", dir="/dev/shm") as memory:
        path = Samples(Path(memory), samples.count, SAMPLE_BYTES).make("npy")
        Samples(Path(memory), samples.count, SAMPLE_BYTES).raw.unlink()
        node_bytes = path.stat().st_size // 2 // NODES
        for source in study.pick(tuple(SOURCES), ("beegfs",)):
            strategies, surroundings = [], []
            windows_of = WINDOWS if source in SHUFFLED else WINDOWS[-1:]
            for window in study.pick(windows_of, (1,)):
                windows = 2 * (window + 2) * MIB + SMALLEST_BYTES
                kept = max((node_bytes - windows) // MIB, 1)
                strategies.append(
                    f"forebay:store={kept}MiB,direct=true@opportunistic:window={window}+w{window}"
                )
                surroundings += ["--environment", f"w{window}:FOREBAY_MEMORY={windows // MIB}MiB"]
            found = read(source, path, strategies, surroundings, EPOCHS if len(strategies) > 1 else 3)
            limit = found["limit"]["rate_mib_s"] * MIB
            rows += [{"source": source, "nodes": NODES, **of_row(row, limit)} for row in found["rows"]]
            if source in SHUFFLED:
                budget = f"plain:FOREBAY_MEMORY={max(node_bytes // MIB, 24)}MiB"
                plain = read(
                    source, path, ["forebay:direct=true@shuffle+plain"], ["--environment", budget], epochs=1
                )
                rows.append({"source": source, "nodes": NODES, **of_row(plain["rows"][0], limit)})
                for row in rows[-len(found["rows"]) - 1 :]:
                    row["shuffle_ratio"] = rows[-1]["seconds"] / row["seconds"]
    return rows


def read(
    source: str, path: Path, strategies: Sequence[str], surroundings: Sequence[str], epochs: int
) -> Result:
    """Run a bench of one rank per node."""
    return run(
        "bench", str(path), "--strategies", ",".join(strategies), *surroundings, "--pfs", source, "--targets",
        str(SOURCES[source]), "--ranks", str(NODES), "--nodes", str(NODES), "--batch-size", str(BATCH),
        "--epochs", str(epochs), "--repetitions", "1", "--cold", "--skip-verify",
    )  # fmt: skip


def of_row(row: Any, limit: float) -> Row:
    """Epochs that are neither the first nor the last; the only one, if there is one."""
    if row["status"] != "ok":
        raise RuntimeError(f"{row['name']}: {row['error']}")
    every = row["repetitions"][0]["by_epoch"]
    epochs = every[1:-1] or every
    requested = epochs[0]["requested_bytes"]
    seconds = statistics.median(one["seconds"] for one in epochs)
    read = statistics.mean(one["pfs"]["read_bytes"] for one in epochs)
    streamed = (
        statistics.mean(one["levels"]["source"] for one in epochs) if "share" in epochs[0]["levels"] else None
    )
    gib = sum(one["requested_bytes"] for one in every) / (1 << 30)
    window = re.search(r"window=(\d+)", row["order"])
    return {
        "order": row["order"],
        "window": int(window[1]) if window else None,
        "entropy": row["shuffle_quality"]["order_entropy"],
        "streamed_share": streamed / requested if streamed else None,
        "source_share": read / requested,
        "source_ratio": read / streamed if streamed else None,
        "seconds": seconds,
        "limit_mb_s": limit / 1e6,
        "limit_ratio": seconds / (streamed / limit) if streamed else None,
        "mb_per_s": requested / seconds / 1e6,
        "cpu_s_per_gib": row["median"]["cpu_seconds"] / gib,
    }
