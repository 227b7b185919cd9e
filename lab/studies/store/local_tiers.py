"""The order ``local-shuffle`` on nodes with storage tiers: what an epoch reads from the source.

In order, for each dataset: four nodes with one rank each, and a tier for a quarter of the file on
each, read it in each order. Then the same ranks without tiers count which samples a node takes of
its own share. Loaders read ahead across epochs, so the first two epochs, in which the tiers fill,
and the last one are left out. A node has less memory than a quarter of the file, so no page cache
stands in for the source.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from forebay_lab.ranks import launch
from studies.harness.samples import Samples
from studies.harness.sections import Row, Scope
from studies.harness.tiered import bench, epochs_of, predictions, quota
from studies.tiers.fitting import MEMORY

NODES = 4
GLOBAL_BATCH = 256
EPOCHS = 5
FILLING = 2
"""Epochs in which the tiers fill."""
DATA_BYTES = 1 << 30
DATA = ((3_073, "lmdb"), (3_073, "npy"), (110_000, "lmdb"))
"""Bytes of a sample, CIFAR-10's and ImageNet's, and format: `npy` packs samples."""
ROWS = (("shuffle", 1), ("local-shuffle", None), ("local-shuffle:steps=8", None))
"""Orders, and steps that one read may span; `shuffle` would read all between small samples."""
DEADLINE_S = 600.0


def local_tiers(scope: Scope) -> list[Row]:
    """Bytes from the source over the data, once the tiers are full, beside the forecast."""
    rows: list[Row] = []
    for sample_bytes, name in scope.pick(DATA, DATA[:1]):
        samples = Samples.about(scope, sample_bytes, DATA_BYTES)
        path = samples.make(name)
        expected = {order: own_samples(path, order) for order in dict.fromkeys(order for order, _ in ROWS)}
        for order, steps in ROWS:
            rows.append(
                {"name": name, "sample_bytes": sample_bytes, "order": order, "coalesced_steps": steps}
                | of_source(scope, path, samples.count * sample_bytes, order, steps)
                | expected[order]
            )
        samples.remove(name)
    return rows


def of_source(scope: Scope, path: Path, data_bytes: int, order: str, steps: int | None) -> Row:
    """What an epoch reads from the source, and what is forecast."""
    strategy = "forebay" if steps is None else f"forebay:coalesce={steps}"
    found = bench(
        path, f"{strategy}@{order}+quarter", "--ranks", str(NODES), "--nodes", str(NODES),
        "--batch-size", str(GLOBAL_BATCH // NODES), tiers={"quarter": quota(bytes_of(path), 1 / NODES)},
        epochs=EPOCHS, memory=scope.pick(MEMORY, None),
    )  # fmt: skip
    row = found["rows"][0]
    epochs = epochs_of(row)
    full = epochs[FILLING:-1]
    reads = statistics.mean(one["reads"] for one in full)
    source_bytes = statistics.mean(one["source_bytes"] for one in full)
    return {
        "first_source_share": epochs[0]["source_bytes"] / data_bytes,
        "source_share": source_bytes / data_bytes,
        "predicted_share": predictions(row)[FILLING] / data_bytes,
        "reads": reads,
        "bytes_per_read": source_bytes / max(reads, 1),
        "tier_share": tier_bytes(row) / data_bytes,
        "seconds": statistics.mean(one["seconds"] for one in full),
    }


def tier_bytes(row: Any) -> float:
    """Bytes that tiers deliver in an epoch."""
    epochs = row["repetitions"][0]["by_epoch"][FILLING:-1]
    levels = ("source", "page_cache")
    return statistics.mean(
        sum(count for level, count in one["levels"].items() if level not in levels) for one in epochs
    )


def bytes_of(path: Path) -> int:
    """Bytes of the files of a dataset."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)


def own_samples(path: Path, order: str) -> Row:
    """Share of the samples that are of their node's share: expected, and measured."""
    if not order.startswith("local-shuffle"):
        return {"local_expected": 1 / NODES}
    with tempfile.TemporaryDirectory(prefix="forebay-study-") as place:
        answer = Path(place) / "answer.json"
        words = (
            "-m",
            "studies.store.own_samples",
            str(path.resolve()),
            str(GLOBAL_BATCH // NODES),
            order,
            str(answer),
        )
        launch.run(
            launch.command(NODES, words),
            deadline_s=DEADLINE_S,
            progress=lambda done: None,
            what="own samples",
        )
        found: Any = json.loads(answer.read_text("utf-8"))
    return {"local_expected": found["expected"], "local_measured": found["measured"]}
