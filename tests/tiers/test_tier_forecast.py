"""The forecast of a report: what tiers would save for a run that was measured without them."""

from __future__ import annotations

import pytest

from forebay_lab.report import data, pace, tier_outlook

GIB = 1 << 30
SAMPLE_BYTES = 110_000


def outlook(data_gib=100, order="shuffle", nodes=1, epochs=1, *, rate=1000.0, computing=1.0, **more):
    row = {"name": f"forebay@{order}+label", "status": "ok", "repetitions": [{"total_seconds": 1.0}]}
    row["repetitions"][0] |= more.pop("repetition", {})
    row |= more.pop("row", {})
    samples = data_gib * GIB // SAMPLE_BYTES
    known = {
        "dataset": {"samples": samples, "bytes": data_gib * GIB},
        "global_batch": 256,
        "nodes": nodes,
        "steps": -(-samples // 256),
        "epochs": epochs,
    }
    result = data.from_bench({"rows": [row], **known, **more}, "test")
    return tier_outlook.of(result, result.rows[0], rate_mib_s=rate, computing_s=computing)


@pytest.mark.parametrize("order", ["sequential", "contiguous", "shuffle", "group"])
def test_a_tier_that_fits_on_one_node_keeps_everything_off_the_source_after_epoch_1(order):
    found = outlook(order=order)
    assert (found.copies, found.tier_bytes) == (True, found.whole_bytes)
    assert 100 * GIB <= found.whole_bytes <= 101 * GIB
    assert (found.first_share, found.kept_share) == (pytest.approx(1), pytest.approx(1))
    assert (found.epochs, found.is_epochs_assumed) == (tier_outlook.ASSUMED_EPOCHS, True)


def test_of_data_that_do_not_fit_the_share_that_fits_is_kept_and_bounds_the_time():
    found = outlook(data_gib=357, epochs=3)
    assert (found.epochs, found.is_epochs_assumed) == (3, False)
    assert found.tier_bytes == tier_outlook.ASSUMED_TIER_BYTES
    share = found.tier_bytes / (357 * GIB)
    assert found.kept_share == pytest.approx(share, rel=1e-3)
    # Reading is all: only epochs 2 and 3 are shorter, by what is kept.
    assert found.saved_seconds_share == pytest.approx(2 * share / 3, rel=1e-3)
    # Where computing takes longer than reading, no time is saved.
    assert outlook(data_gib=357, epochs=3, computing=1e6).saved_seconds_share == 0


def test_on_several_nodes_small_samples_in_shuffle_cost_more_than_they_save():
    assert not outlook(data_gib=100, nodes=16, epochs=3).copies
    found = outlook(data_gib=100, nodes=4, epochs=90)
    assert found.copies
    assert found.first_share > 1.4
    # Each node of a contiguous order reads its part alone.
    assert outlook(order="contiguous", nodes=4).whole_bytes <= 26 * GIB


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        ({}, False),
        ({"machine": {"memory_bytes": 300 * GIB}}, True),
        ({"machine": {"memory_bytes": 150 * GIB}}, False),
        ({"machine": {"memory_bytes": 300 * GIB}, "node_memory_bytes": 64 * GIB}, False),
    ],
)
def test_data_that_fit_into_memory_may_need_no_tier(limits, fits):
    assert outlook(data_gib=100, **limits).fits_page_cache is fits


@pytest.mark.parametrize(
    "more",
    [
        {"order": "of-its-own"},
        {"rate": None},
        {"nodes": None},
        {"steps": 0},
        {"global_batch": 1 << 40},
        {"dataset": {"samples": 0, "bytes": "many"}},
        {"repetition": {"by_epoch": [{"levels": {"source": 1, "/scratch": 1}}]}},
    ],
)
def test_without_the_facts_or_with_tiers_there_is_no_forecast(more):
    assert outlook(**more) is None


def test_the_advice_for_a_storage_at_its_limit_has_the_forecast():
    row = {
        "name": "forebay@shuffle",
        "status": "ok",
        "repetitions": [
            {
                "total_seconds": 20.0,
                "locate_and_read_seconds": 17.0,
                "reads": 2000,
                "read_bytes": 2000 << 20,
                "mmap_bytes": 0,
                "ranks": [{"exposed_seconds": 8.0, "compute_seconds": 10.0}],
                "readers": [{"threads": 2, "reader_idle_seconds": 0.0}],
            }
        ],
    }
    known = {
        "dataset": {"samples": 4000, "bytes": 2000 << 20},
        "global_batch": 40,
        "nodes": 1,
        "steps": 100,
        "epochs": 1,
        "compute_seconds": 0.1,
        "limit": {"rate_mib_s": 101.0},
    }
    result = data.from_bench({"rows": [row], **known}, "test")
    found = pace.of(result, result.rows[0])
    assert found.remedy == "tier"
    assert found.tier is not None
    assert found.tier.words() in found.words()
