"""Batches with storage tiers equal those without, while tiers fill and when they serve."""

from __future__ import annotations

import pytest

import forebay
import support
from ranks import tiers
from tier_support import FORMATS, MEMORY, opening, tier

ORDERS = ("sequential", "contiguous", "shuffle", "group")


@pytest.fixture(scope="module")
def plain_steps(pool, tier_data):
    """Give the steps of each rank without tiers."""
    known = {}

    def steps(kind, order, ranks, **options):
        key = (kind, order, ranks, *sorted(options.items()))
        if key not in known:
            options = {"batch_size": 12 // ranks, "order": order, "memory": MEMORY, **options}
            found = pool.run(
                ranks, tiers.deliver, path=str(tier_data[kind]), opening=opening(kind), options=options
            )
            known[key] = [one["steps"] for one in found]
        return known[key]

    return steps


def run(pool, data, kind, tier, *, order="shuffle", ranks=1, access="pread", direct=False, **more):
    options = {
        "batch_size": 12 // ranks,
        "order": order,
        "memory": MEMORY,
        "strategy": forebay.Strategy(access=access, direct=direct),
        "tiers": tier if isinstance(tier, list) else [tier],
        **more.pop("options", {}),
    }
    return pool.run(
        ranks, tiers.deliver, path=str(data[kind]), opening=opening(kind), options=options, **more
    )


@pytest.mark.sweep(together=2)
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("access", ["pread", "io_uring"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", FORMATS)
def test_batches_are_those_without_tiers_while_they_fill_and_when_they_serve(
    pool, daemon, tmp_path, tier_data, plain_steps, kind, order, ranks, access, direct
):
    how = {"order": order, "ranks": ranks, "access": access, "direct": direct}
    found = run(pool, tier_data, kind, tier(tmp_path / "tier"), **how)
    assert [one["steps"] for one in found] == plain_steps(kind, order, ranks)
    assert all(one["copies"] for one in found)
    assert sum(one["copied"] for one in found) > 0
    assert [one["warnings"] for one in found] == [[]] * ranks
    # What one job has copied serves the next one; on a busy machine not all at once.
    for _ in range(support.TRIES):
        found = run(pool, tier_data, kind, tier(tmp_path / "tier"), **how)
        assert [one["steps"] for one in found] == plain_steps(kind, order, ranks)
        assert [one["warnings"] for one in found] == [[]] * ranks
        if sum(one["levels"][-1]["source"]["bytes"] for one in found) == 0:
            break
    assert sum(one["levels"][-1]["source"]["bytes"] for one in found) == 0
    assert sum(one["levels"][-1][str(tmp_path / "tier")]["bytes"] for one in found) > 0
