"""Where bytes come from with a store: data larger than all memory, and bytes of other nodes."""

from __future__ import annotations

import statistics
from typing import Any

from studies.harness.samples import Samples
from studies.harness.sections import MIB, Row, Scope, ended
from studies.store.storage import DATA_BYTES, SAMPLE_BYTES, measured, mounted

NODES = 4
SIZES = (0.5, 1.0, 2.0, 4.0)
"""Data over the memory of all nodes for shares."""
EPOCHS_OF_BYTES = 5
REMOTE_BATCH = 256


def sizes(scope: Scope) -> list[Row]:
    """Time and origin of the bytes of an epoch, by the size of the data over that of the shares."""
    samples = Samples.about(scope, SAMPLE_BYTES, DATA_BYTES)
    nodes = scope.pick(NODES, 2)
    rows: list[Row] = []
    with mounted(samples, "npy") as path:
        for size in scope.pick(SIZES, (2.0,)):
            share = path.stat().st_size / nodes / size
            # Past the page cache, which would hold more of the data than the shares.
            store = f"forebay:store={-(-round(share) // MIB)}MiB,direct=true"
            names = [f"{store}@{order}" for order in ("shuffle", "local-shuffle")]
            found = measured(scope, path, names, nodes, share=1.15 / size)
            rows += [{"size": size, "share_mib": share / MIB, **origin(row)} for row in found["rows"]]
    return rows


def origin(row: Any) -> Row:
    """Time of an epoch that is neither the first nor the last, and where its bytes come from."""
    ended(row)
    epochs = [one for run in row["repetitions"] for one in run["by_epoch"][1:-1]]
    requested = epochs[0]["requested_bytes"]
    found = {
        "order": row["order"],
        "seconds": statistics.median(one["seconds"] for one in epochs),
        "source_share": statistics.mean(one["pfs"]["read_bytes"] for one in epochs) / requested,
    }
    for level in ("share", "peers", "source"):
        delivered = statistics.mean(one["levels"].get(level, 0) for one in epochs)
        found[f"{level}_delivered"] = delivered / requested
    gib = sum(one["requested_bytes"] for one in row["repetitions"][0]["by_epoch"]) / (1 << 30)
    return found | {
        "mb_per_s": requested / found["seconds"] / 1e6,
        "cpu_s_per_gib": row["median"]["cpu_seconds"] / gib,
    }


def remote(scope: Scope) -> list[Row]:
    """Bytes from the source over five epochs, and from other nodes, of all that is delivered."""
    rows: list[Row] = []
    for sample_bytes in scope.pick((3_073, SAMPLE_BYTES), (3_073,)):
        samples = Samples.about(scope, sample_bytes, DATA_BYTES)
        with mounted(samples, "npy") as path:
            found = measured(
                scope, path, ("store@shuffle", "store@local-shuffle"), scope.pick(NODES, 2),
                epochs=EPOCHS_OF_BYTES, repetitions=1, batch=REMOTE_BATCH,
            )  # fmt: skip
            for row in found["rows"]:
                ended(row)
                epochs = row["repetitions"][0]["by_epoch"]
                share, peers = (sum(one["levels"][level] for one in epochs) for level in ("share", "peers"))
                rows.append(
                    {
                        "sample_bytes": sample_bytes,
                        "order": row["order"],
                        "nodes": found["nodes"],
                        "source_ratio": sum(one["pfs"]["read_bytes"] for one in epochs) / path.stat().st_size,
                        "remote_share": peers / (share + peers),
                    }
                )
    return rows
