"""``bad_samples="skip"``: the nearest earlier good sample replaces a bad one, on any ranks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import forebay
import support

SAMPLES = 60
BAD = {0, 1, 17, 18, 19, 40, 59}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Datums of which some are cut off."""
    values = [support.datum(number) for number in range(SAMPLES)]
    for number in BAD:
        values[number] = values[number][: 20 + number]
    return str(support.write_lmdb(tmp_path_factory.mktemp("damaged") / "damaged.lmdb", values))


def deliver(path, options, world, pipe, schema):
    """Return the ids of each step, the labels of the last one, and the bad samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = forebay.open(path, schema=schema)
        found = []
        with forebay.Loader(dataset, world=forebay.World(**world), **options) as loader:
            for _ in range(2):
                for batch in loader:
                    found.append(batch.indices.tolist())
                    if schema != "raw":
                        np.testing.assert_array_equal(batch["label"], batch.indices)
                        for row, number in zip(batch["image"], batch.indices, strict=True):
                            assert row.tobytes() == support.record(int(number), 3 * 8 * 8)
            return {
                "steps": found,
                "bad": loader.bad_samples(),
                "skipped": loader.stats()["replaced_samples"],
            }


def expected(order):
    """What stands at each place of an epoch whose order is this."""
    good = [place for place, sample in enumerate(order) if sample not in BAD]
    before = [
        max((place for place in good if place <= here), default=min(good)) for here in range(len(order))
    ]
    return [order[place] for place in before]


@pytest.mark.sweep(together=2)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("order", ["sequential", "shuffle", "group"])
@pytest.mark.parametrize("access", ["auto", "pread"])
def test_the_nearest_earlier_good_sample_of_the_order_stands_in(pool, damaged, ranks, order, access):
    options = {
        "batch_size": 4,
        "order": order,
        "strategy": access if access != "auto" else "forebay",
        "expected_epochs": 2,
    }
    plain = pool.run(ranks, deliver, path=damaged, options=options, schema="raw")
    skip = {**options, "bad_samples": "skip"}
    found = pool.run(ranks, deliver, path=damaged, options=skip, schema="caffe-datum")
    steps = len(plain[0]["steps"]) // 2
    for epoch in (0, 1):
        span = range(epoch * steps, (epoch + 1) * steps)
        whole = [sample for step in span for rank in plain for sample in rank["steps"][step]]
        assert [sample for step in span for rank in found for sample in rank["steps"][step]] == expected(
            whole
        )
    met = {sample for rank in found for sample, _ in rank["bad"]}
    assert met == BAD
    assert all("sample" in reason and damaged in reason for rank in found for _, reason in rank["bad"])
    assert sum(rank["skipped"] for rank in found) >= 2 * len(BAD)


def test_the_user_is_told_and_by_itself_a_bad_sample_is_an_error(damaged, says):
    dataset = forebay.open(damaged, schema="caffe-datum")
    with (
        forebay.Loader(
            dataset, batch_size=10, order="sequential", bad_samples="skip", expected_epochs=1
        ) as loader,
        pytest.warns(RuntimeWarning, match=r"sample \d+: ") as told,
    ):
        for _ in loader:
            pass
    assert len(told) == len(BAD) == len(loader.bad_samples())
    with (
        forebay.Loader(dataset, batch_size=10, order="sequential", expected_epochs=1) as loader,
        says(forebay.FormatError, 0),
    ):
        next(iter(loader))


def test_where_many_in_a_row_cannot_be_read_it_is_an_error(tmp_path, says):
    values = [support.datum(number) for number in range(300)]
    values[100:] = [value[:30] for value in values[100:]]
    dataset = forebay.open(support.write_lmdb(tmp_path / "bad.lmdb", values), schema="caffe-datum")
    with (
        warnings.catch_warnings(),
        forebay.Loader(
            dataset, batch_size=10, order="sequential", bad_samples="skip", expected_epochs=1
        ) as loader,
    ):
        warnings.simplefilter("ignore")
        batches = iter(loader)
        seen = [next(batches).indices.tolist() for _ in range(16)]
        assert seen[9] == list(range(90, 100))
        assert seen[15] == [99] * 10
        # 163 is the 64th.
        with says(forebay.FormatError, 163, 63):
            next(batches)
