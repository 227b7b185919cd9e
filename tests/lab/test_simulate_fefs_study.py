"""The figures of FEFS: walks of the paper, in the model's virtual time."""

from __future__ import annotations

import itertools

import pytest

from studies.harness.sections import Scope
from studies.simulate import fefs

TINY = Scope(tiny=True)


def test_ranks_deal_records_one_by_one_or_have_regions():
    skipping = fefs.Walkers(pattern=fefs.SKIPPING, samples=100)
    dealt = zip(*(itertools.islice(skipping.records(rank), 6) for rank in range(fefs.RANKS)), strict=True)
    assert list(itertools.chain(*dealt)) == list(range(96))
    # What is left of an epoch is no whole round: a rank goes on with its neighbour's records.
    assert next(itertools.islice(skipping.records(3), 6, None)) == 99
    assert next(itertools.islice(skipping.records(4), 6, None)) == 0
    contiguous = fefs.Walkers(pattern=fefs.CONTIGUOUS, samples=100)
    assert list(itertools.islice(contiguous.records(2), 7)) == [12, 13, 14, 15, 16, 17, 12]


def test_steps_end_in_order_and_after_their_compute_time():
    found = fefs.walkers(TINY, fefs.SKIPPING, compute_s=0.01).run(fefs.file_system("fefs"))
    first, second = found["step_ends"]
    assert 0.01 < first < second - 0.01
    asked = fefs.RANKS * 2 * fefs.RECORDS_PER_STEP * fefs.RECORD_BYTES
    assert sum(one["requested_bytes"] for one in found["streams"]) == asked
    assert max(one["end_ns"] for one in found["streams"]) == pytest.approx(second * 1e9)


def test_local_drives_do_not_share_a_server():
    """A step takes as long as one drive takes for the records of one rank."""
    spec, client = fefs.local()
    walkers = fefs.walkers(TINY, fefs.CONTIGUOUS, client=client, compute_s=0.0)
    row = walkers.row(spec, "local")
    alone = fefs.RECORDS_PER_STEP * fefs.RECORD_BYTES / 2.4e9 * 1e3
    assert alone < row["step_ms"] < 3 * alone


def test_factors_are_those_of_the_times():
    rows = fefs.final(TINY)
    times = {
        (row["place"], row["pattern"]): row["step_ms"]
        for row in rows
        if row["kind"] == "time" and row["network"] == "alexnet"
    }
    first, disks, local = (row for row in rows if row["kind"] == "factor" and row["network"] == "alexnet")
    contiguous = times["FEFS, SSD", fefs.CONTIGUOUS]
    assert first["factor"] == pytest.approx(times["FEFS, SSD", fefs.SKIPPING] / contiguous)
    assert first["ratio"] == pytest.approx(first["factor"] / 5.5)
    assert disks["factor"] == pytest.approx(
        times["FEFS, disks", fefs.SKIPPING] / times["FEFS, SSD", fefs.SKIPPING]
    )
    assert local["factor"] == pytest.approx(times["local SSD", fefs.CONTIGUOUS] / contiguous)
    assert local["ratio"] is None


def test_each_stripe_is_compared_with_the_best():
    rows = fefs.stripes(TINY)
    assert len(rows) == 2 * 2 * 2
    for name in {row["name"] for row in rows}:
        found = [row for row in rows if row["name"] == name]
        best = min(found, key=lambda row: row["step_ms"])
        assert {row["best_stripe_kib"] for row in found} == {best["stripe_kib"]}
        assert best["of_best"] == 1
    assert {row["published_stripe_kib"] for row in rows} == {1024, 65_536}


def test_only_contiguous_ranks_find_their_second_epoch_in_a_small_cache():
    rows = fefs.steps(TINY)
    compute_ms = 1e3 * fefs.COMPUTE_S["alexnet"]
    for pattern, is_cached in ((fefs.CONTIGUOUS, True), (fefs.SKIPPING, False)):
        found = [row for row in rows if (row["pattern"], row["cache_gib"]) == (pattern, fefs.CACHE_GIB)]
        assert [row["step"] for row in found] == list(range(6))
        assert found[0]["step_ms"] > 1.5 * compute_ms
        assert (found[-1]["step_ms"] == pytest.approx(compute_ms, rel=0.01)) == is_cached


def test_a_lock_costs_once():
    shared, own, local = fefs.locks(TINY)
    assert shared["early_step_ms"] > own["early_step_ms"] + 100
    assert shared["later_step_ms"] == pytest.approx(own["later_step_ms"])
    assert own["of_ownlock"] == 1 < shared["of_ownlock"] < 1.05
    assert local["of_ownlock"] < 1
