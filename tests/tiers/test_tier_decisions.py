"""What a loader decides about its tiers, and says before the first step."""

from __future__ import annotations

import pytest

import forebay
import support
from support.ranks import tiers
from support.tiering import MEMORY, SAMPLE_BYTES, WHOLE_CHUNKS, opening, tier

MIB = 1 << 20
# Reads are joined over gaps that are shorter than these samples.
RAW = {"format": "raw", "record_bytes": MIB}


def run(pool, path, options, ranks=1, given=None, **more):
    made = {"batch_size": 2, "order": "shuffle", "node_memory": MEMORY, "strategy": "pread", **options}
    return pool.run(ranks, tiers.deliver, path=str(path), opening=given or RAW, options=made, **more)


@pytest.mark.parametrize("order", ["sequential", "shuffle", "group"])
def test_epochs_read_what_the_loader_has_forecast(pool, shared_daemon, tmp_path, in_memory, tier_data, order):
    path, places = tier_data.whole / "x.raw", (in_memory, tmp_path / "tier")
    options = {
        "order": order,
        "tiers": [tier(places[0], "3MiB"), tier(places[1], "6MiB")],
        "expected_epochs": 3,
    }
    (first,) = run(pool, path, options, epochs=3)
    found = first["tiers"]
    assert [(level["slots"], level["held_bytes"]) for level in found["levels"]] == [(3, 0), (6, 0)]
    assert (found["chunks"], found["nodes"], found["copies"], found["no_copies"]) == (16, 1, True, None)
    bytes_of = [
        (epoch["source"] / MIB, *(size / MIB for size in epoch["levels"])) for epoch in found["forecast"]
    ]
    assert bytes_of[0][0] == 16
    assert bytes_of[1:] == [(7, 3, 6), (7, 3, 6)]
    # On a busy machine not all is copied at once.
    for _ in range(support.TRIES):
        (later,) = run(pool, path, options, epochs=3)
        if sum(level["held_bytes"] for level in later["tiers"]["levels"]) == 9 * MIB:
            break
    expected = {"page_cache": 0, "source": 7 * MIB, str(places[0]): 3 * MIB, str(places[1]): 6 * MIB}
    assert later["by_epoch"] == dict.fromkeys(range(3), expected)
    assert [epoch["source"] for epoch in later["tiers"]["forecast"]] == [pytest.approx(7 * MIB)] * 3


def test_a_single_epoch_makes_no_copies_and_says_so(pool, shared_daemon, tmp_path, tier_data):
    options = {"tiers": [tier(tmp_path / "tier")], "expected_epochs": 1}
    (found,) = run(pool, tier_data.whole / "x.raw", options, epochs=1)
    assert found["tiers"]["no_copies"] == {"reason": "one_epoch", "pays_from": None}
    assert found["tiers"]["forecast"][0] == {"source": WHOLE_CHUNKS * MIB, "levels": (0,)}
    assert found["copied"] == 0


def test_small_samples_in_shuffle_on_several_nodes_make_no_copies_until_they_pay(
    pool, shared_daemon, tmp_path, tier_data
):
    assert SAMPLE_BYTES < 1 << 16

    def found(**more):
        # Longer reads would fetch most of a small dataset on each node anyway.
        step_by_step = forebay.Strategy(access="pread", coalesce=1)
        options = {"tiers": [tier(tmp_path / "tier")], "strategy": step_by_step, **more}
        path = tier_data.formats["raw"]
        ranks = run(pool, path, options, 4, opening("raw"), nodes=(0, 1, 2, 3), epochs=1)
        assert [one["tiers"]["nodes"] for one in ranks] == [4] * 4
        return ranks[0]["tiers"]

    why = found(expected_epochs=2)["no_copies"]
    assert why["reason"] == "cost_more"
    assert why["pays_from"] > 2
    assert found()["no_copies"] == why
    assert found(expected_epochs=why["pays_from"])["copies"]
    assert found(order="contiguous", expected_epochs=2)["copies"]


def test_a_slower_tier_placed_first_is_a_warning_that_names_both(
    pool, daemon, tmp_path, in_memory, tier_data
):
    disk, memory = tmp_path / "tier", in_memory
    (found,) = run(pool, tier_data.whole / "x.raw", {"tiers": [tier(memory), tier(disk)]}, epochs=1)
    assert found["warnings"] == []
    (found,) = run(pool, tier_data.whole / "x.raw", {"tiers": [tier(disk), tier(memory)]}, epochs=1)
    assert [str(disk) in text and str(memory) in text for text in found["warnings"]] == [True]
    # The probe leaves nothing behind.
    level = next(level for level in daemon.usage()["levels"] if level["name"] == str(disk))
    assert len(list((disk / level["path"] / "slabs").iterdir())) == level["slabs"]
