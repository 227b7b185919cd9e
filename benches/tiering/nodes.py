"""Several nodes and several ranks: what is read from the source, against what is predicted.

Each of four nodes has a tier for a quarter of the data. `group` with groups of whole chunks reads
nothing twice. Small samples in `shuffle` would, so each node reads most of the data for its copies.
"""

from __future__ import annotations

from sections import Result, Row
from tiering.fitting import DATA_BYTES, MEMORY, SAMPLE_BYTES
from tiering.study import Study, bench, epochs_of, quota

NODES = 4
RANKS_MEMORY = "600MiB"
"""Four Python processes take most of it."""


def nodes(study: Study) -> list[Row]:
    """Source bytes per epoch over the data, beside the prediction of `explain()`."""
    rows: list[Row] = []
    for name, sample_bytes, order, epochs in (
        ("groups of whole chunks", 1 << 16, "group:samples=16,window=4", 3),
        ("small samples", SAMPLE_BYTES, "shuffle", 6),
    ):
        samples = study.samples(sample_bytes, DATA_BYTES)
        path = samples.make("npy")
        data_bytes = samples.count * sample_bytes
        found = bench(
            path, f"forebay@{order}+quarter", "--ranks", str(NODES), "--nodes", str(NODES), "--batch-size", "8",
            tiers={"quarter": quota(data_bytes, 1 / NODES)}, epochs=study.pick(epochs, 2),
            memory=study.pick(MEMORY, None),
        )  # fmt: skip
        row = found["rows"][0]
        predicted = predictions(row)
        for number, one in enumerate(epochs_of(row)):
            share = one["source_bytes"] / data_bytes
            line: Row = {"name": name, "order": order, "epoch": number + 1, "source_share": share}
            if number < len(predicted):
                line |= {
                    "predicted_share": predicted[number] / data_bytes,
                    "difference": share - predicted[number] / data_bytes,
                }
            rows.append(line)
        samples.remove("npy")
    return rows


def predictions(row: Result) -> list[float]:
    """Bytes from the source of the first epochs, as the loader of rank 0 forecasts them."""
    return [epoch["source"] for epoch in row["tiers"]["forecast"]] if row["tiers"] else []


def sharing(study: Study) -> list[Row]:
    """Four ranks of one node with one tier: source bytes of the first epoch over the data."""
    samples = study.samples(SAMPLE_BYTES, DATA_BYTES)
    path = samples.make("tfrecord")
    rows: list[Row] = []
    for order in ("group", "sequential", "shuffle"):
        found = bench(
            path, f"forebay@{order}+fits", "--ranks", "4", "--batch-size", "8",
            tiers={"fits": "2GiB"}, epochs=3,
            memory=study.pick(RANKS_MEMORY, None),
        )  # fmt: skip
        data_bytes = samples.count * SAMPLE_BYTES
        shares = [one["source_bytes"] / data_bytes for one in epochs_of(found["rows"][0])]
        rows.append(
            {
                "order": order,
                **{f"source_share_{number}": share for number, share in enumerate(shares, 1)},
                "source_share": sum(shares),
            }
        )
    return rows
