"""A tier that holds 56 % of the data, as the paper's local disk held of its 200 GiB.

In order: three epochs in every order and ten of one, each beside the same without a tier; the bound
is what reading alone takes with this source and tier at their limits. Then `sequential` while a
step computes: a tier that was filled with what was read first, as Monarch does, is against one
whose chunks are spread evenly.
"""

from __future__ import annotations

import statistics

import forebay
from forebay import _native
from studies.harness.samples import Samples
from studies.harness.sections import Row, Scope
from studies.harness.tiered import HELD, bench, epochs_of, mounts, quota, read
from studies.tiers.fitting import DATA_BYTES, MEMORY, SAMPLE_BYTES

ORDERS = ("group", "sequential", "contiguous", "shuffle")
SOURCE_BYTES_PER_SECOND, TIER_BYTES_PER_SECOND = 1.1e9, 2.4e9
# Over computing: reading takes 0.9 of it, in the mean of an epoch.
READING = 0.9


def half(scope: Scope) -> list[Row]:
    """Source bytes per epoch over those without a tier, and time saved over three or ten epochs."""
    samples = Samples.about(scope, SAMPLE_BYTES, DATA_BYTES)
    path = samples.make("tfrecord")
    held = quota(samples.count * SAMPLE_BYTES, HELD)
    rows: list[Row] = []
    for order, epochs in (*((order, 3) for order in ORDERS), ("shuffle", 10)):
        found = bench(
            path, f"forebay@{order}+none,forebay@{order}+held", "--ranks", "1", "--batch-size", "32",
            tiers={"none": None, "held": held}, epochs=scope.pick(epochs, 2), memory=scope.pick(MEMORY, None),
        )  # fmt: skip
        plain, tiered = (epochs_of(row) for row in found["rows"])
        totals = [sum(one["seconds"] for one in run) for run in (plain, tiered)]
        saved, bound = 1 - totals[1] / totals[0], bound_of_saving(epochs)
        shares = [
            one["source_bytes"] / max(two["source_bytes"], 1) for one, two in zip(tiered, plain, strict=True)
        ]
        rows.append(
            {
                "order": order,
                "epochs": epochs,
                **{f"source_share_{number}": share for number, share in enumerate(shares, 1)},
                "later_share": statistics.mean(shares[1:]),
                "saved": saved,
                "bound": bound,
                "of_bound": saved / bound,
            }
        )
    return rows


def bound_of_saving(epochs: int) -> float:
    """Where reading is all and both are read at once; the first epoch saves nothing."""
    later = max(1 - HELD, HELD * SOURCE_BYTES_PER_SECOND / TIER_BYTES_PER_SECOND)
    return 1 - (1 + (epochs - 1) * later) / epochs


def first_touch(scope: Scope) -> list[Row]:
    """Exposed time of an epoch in `sequential`, by what the tier holds."""
    samples = Samples.about(scope, SAMPLE_BYTES, DATA_BYTES)
    path = samples.make("tfrecord")
    data_bytes = samples.count * SAMPLE_BYTES
    with mounts(path.parent) as place:
        steps = read(place, path.name, (), epochs=1)["steps"]
        tier = forebay.Tier(path=place.tier, size=quota(data_bytes, HELD))
        level = f"{tier.path}:{tier.size}"
        # Filled with what came first, under a larger quota: after that it takes no more.
        large = (f"{place.tier}:2GiB",)
        read(place, path.name, large, epochs=2, steps=round(HELD * steps))
        reading = read(place, path.name, (level,), epochs=1)
        compute_s = reading["seconds"] / READING / steps
        touched = read(place, path.name, (level,), epochs=1, compute_s=compute_s)
        _native.clear_tiers([place.tier])
        read(place, path.name, (level,), epochs=3)
        spread = read(place, path.name, (level,), epochs=1, compute_s=compute_s)
    rows: list[Row] = [
        {
            "name": name,
            "source_share": found["source_bytes"] / data_bytes,
            "exposed_seconds": found["exposed_seconds"] / place.servers[0].time_scale,
            "exposed_share": found["exposed_seconds"] / found["seconds"],
            "of_first_touch": found["exposed_seconds"] / touched["exposed_seconds"],
        }
        for name, found in (("first touch", touched), ("spread", spread))
    ]
    return rows
