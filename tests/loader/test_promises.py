"""Promises on one node: equal samples in every way, exact cover, resume, memory, orders."""

from __future__ import annotations

import numpy as np
import pytest

import forebay
import support
from support.ranks import plain, work
from support.ranks.pool import Raised


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """64 records of 300 KB: 19 MB."""
    values = [support.record(number, 300_000) for number in range(64)]
    return str(support.write_lmdb(tmp_path_factory.mktemp("large") / "large.lmdb", values))


# --- promise 1: the same samples in the same order ---


@pytest.mark.sweep(together=2)
@pytest.mark.parametrize("last", ["fill", "drop", "partial", "carry"])
@pytest.mark.parametrize("order", plain.ORDERS)
@pytest.mark.parametrize("strategy", plain.STRATEGIES)
def test_every_strategy_and_number_of_ranks_delivers_what_the_plain_reader_does(
    pool, mixed, even, strategy, order, last, says
):
    if last == "carry" and order != "sequential":
        with pytest.raises(forebay.OptionError, match=r"carry"):
            work.make(mixed, {}, {"batch_size": 4, **plain.ORDERS[order], "last_batch": last})
        return
    if not plain.fits(strategy, order):
        options = {"batch_size": 4, **plain.ORDERS[order], "strategy": plain.STRATEGIES[strategy]}
        with says(forebay.OptionError):
            work.make(mixed, {}, options)
        return
    for path in (mixed, even):
        for ranks in (1, 2, 3, 4):
            options = {"batch_size": 12 // ranks, **plain.ORDERS[order], "seed": 3}
            expected = plain.expected(path, options, ranks, 3, last)
            strategy_options = {**plain.STRATEGIES[strategy], "readers": 1 + ranks % 3}
            found = pool.run(
                ranks,
                work.deliver,
                path=path,
                options={**options, "last_batch": last, "strategy": strategy_options},
                epochs=3,
            )
            for epoch in range(3):
                steps = plain.together(found, epoch)
                if order == "group":
                    assert plain.joined(steps) == expected[epoch]
                else:
                    assert steps == expected[epoch]


@pytest.mark.parametrize("readers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_readers_and_ranks_go_together(pool, mixed, readers, ranks):
    options = {"batch_size": 12 // ranks, **plain.ORDERS["group"]}
    expected = plain.expected(mixed, options, ranks, 2)
    strategy = {"access": "pread", "readers": readers, "batch_buffers": 2}
    found = pool.run(ranks, work.deliver, path=mixed, options={**options, "strategy": strategy}, epochs=2)
    for epoch in range(2):
        assert plain.joined(plain.together(found, epoch)) == expected[epoch]


# --- promise 2: exact cover, equal steps ---


@pytest.mark.parametrize("order", plain.ORDERS)
@pytest.mark.parametrize(("ranks", "batch"), [(1, 7), (2, 6), (3, 4), (4, 3), (3, 33), (4, 25)])
def test_every_sample_comes_once_per_epoch_over_all_ranks(pool, even, order, ranks, batch):
    options = {"batch_size": batch, **plain.ORDERS[order]}
    if order == "group":
        options["group"] = {"samples": 9, "window": 2}
    whole = batch * ranks
    for last in ("fill", "drop", "partial"):
        found = pool.run(ranks, work.deliver, path=even, options={**options, "last_batch": last}, epochs=2)
        for epoch in range(2):
            ids = [number for step in plain.joined(plain.together(found, epoch)) for number in step]
            if last == "partial":
                assert sorted(ids) == list(range(plain.SAMPLES))
            elif last == "drop":
                assert len(set(ids)) == len(ids) == plain.SAMPLES // whole * whole
            else:
                assert set(ids) == set(range(plain.SAMPLES))
                assert len(ids) == -(-plain.SAMPLES // whole) * whole


def test_a_circular_database_gives_every_sample_equally_often_over_the_epochs_that_make_it_whole(pool, even):
    found = pool.run(
        3,
        work.deliver,
        path=even,
        options={"batch_size": 4, "order": "sequential", "last_batch": "carry"},
        epochs=5,
    )
    flat = [
        number for epoch in range(5) for step in plain.joined(plain.together(found, epoch)) for number in step
    ]
    assert flat == [position % plain.SAMPLES for position in range(len(flat))]


@pytest.mark.parametrize("order", plain.ORDERS)
@pytest.mark.parametrize(("ranks", "batch"), [(4, 24), (2, 10), (4, 5), (4, 1), (3, 25)])
def test_by_default_ranks_get_even_parts_of_what_fills_no_step(pool, even, order, ranks, batch):
    options = {"batch_size": batch, **plain.ORDERS[order], "expected_epochs": 2}
    if order == "group":
        options["group"] = {"samples": 9, "window": 2}
    found = pool.run(ranks, work.deliver, path=even, options=options, epochs=2)
    expected = plain.sizes(plain.SAMPLES, batch, ranks, "partial")
    for epoch in range(2):
        steps = plain.together(found, epoch)
        assert [[len(own) for own in step] for step in steps] == expected
        assert all(max(step) - min(step) <= 1 <= min(step) for step in expected)
        assert sorted(number for step in plain.joined(steps) for number in step) == [*range(plain.SAMPLES)]


@pytest.mark.parametrize("order", ["shuffle", "group", "contiguous"])
def test_a_thousand_samples_in_batches_of_300_are_a_thousand_and_their_mean_is_the_plain_one(
    pool, tmp_path, order
):
    rows = np.random.default_rng(3).normal(size=(1000, 1))
    np.save(tmp_path / "rows.npy", rows)
    path = str(tmp_path / "rows.npy")
    for ranks in (1, 4):
        options = {"batch_size": 300 // ranks, "order": order, "expected_epochs": 1}
        found = pool.run(ranks, work.samples, path=path, options=options)
        values = [np.frombuffer(value) for own in found for _, fields in own for value in fields["data"]]
        assert len(values) == 1000
        assert np.isclose(np.mean(values), rows.mean(), rtol=0, atol=1e-12)
        assert {len(own) for own in found} == {4}
        lengths = [[len(ids) for ids, _ in own] for own in found]
        assert lengths == [[300 // ranks] * 3 + [100 // ranks]] * ranks


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_batch_larger_than_the_dataset_is_refused_unless_partial(pool, even, ranks):
    for last in ("fill", "drop"):
        options = {"batch_size": 200, "order": "shuffle", "last_batch": last}
        for one in pool.outcomes(pool.begin(ranks, work.deliver, path=even, options=options)):
            assert isinstance(one, Raised)
            assert "batch larger than the dataset" in one.message
            assert f"has {plain.SAMPLES}" in one.message
    options = {"batch_size": 200, "order": "shuffle", "last_batch": "partial"}
    found = pool.run(ranks, work.deliver, path=even, options=options, epochs=2)
    assert sorted(plain.joined(plain.together(found, 1))[0]) == list(range(plain.SAMPLES))


def test_a_batch_marks_what_fill_repeats(even):
    for order in ("sequential", "shuffle", "group", "contiguous"):
        for more in ({}, {"transform": lambda sample: {"first": sample["data"][:1]}, "workers": 1}):
            options = {"batch_size": 30, "order": order, "last_batch": "fill", "expected_epochs": 1, **more}
            with forebay.Loader(even, **options, world="single") as loader:
                batches = list(loader)
            assert [batch.repeated is None for batch in batches] == [True, True, True, False]
            seen = np.concatenate([batch.indices for batch in batches[:3]])
            last = batches[3]
            assert last.repeated.dtype == bool
            assert last.repeated.sum() == 4 * 30 - plain.SAMPLES
            own = last.indices[~last.repeated]
            assert sorted([*seen, *own]) == list(range(plain.SAMPLES))
            with forebay.Loader(even, **{**options, "last_batch": "partial"}, world="single") as loader:
                assert {batch.repeated for batch in loader} == {None}


def test_explain_says_what_an_epoch_has_with_each_end(even):
    with forebay.Loader(even, 30, expected_epochs=1, world="single") as loader:
        ends = {one.last_batch: one for one in loader.config.order.ends}
        assert loader.config.order.last_batch == "partial"
        counts = {name: (one.steps, one.delivered, one.repeated, one.left_out) for name, one in ends.items()}
        assert counts == {"partial": (4, 101, 0, 0), "fill": (4, 120, 19, 0), "drop": (3, 90, 0, 11)}
        text = str(loader.explain())
    assert all(number in text for number in ("101 samples", "120 samples", "19 of them twice", "11 left out"))


# --- promise 3: resume ---


@pytest.mark.parametrize("order", plain.ORDERS)
@pytest.mark.parametrize("last", ["fill", "drop", "partial"])
def test_resume_at_any_step_equals_uninterrupted(pool, mixed, order, last):
    options = {"batch_size": 4, **plain.ORDERS[order], "last_batch": last, "seed": 8}
    whole = pool.run(3, work.deliver, path=mixed, options=options, epochs=3)
    steps = whole[0]["steps"]
    for stop in range(2 * steps + 1):
        first = pool.run(3, work.deliver, path=mixed, options=options, epochs=2, stop=stop)
        states = [one["state"] for one in first]
        # At the end of an epoch both names of the place are right.
        assert states[0]["epoch"] * steps + states[0]["step"] == stop
        rest = pool.run(
            3,
            work.deliver,
            lambda rank, states=states: {"state": states[rank]},
            path=mixed,
            options=options,
            epochs=2,
        )
        epoch, step = states[0]["epoch"], states[0]["step"]
        for rank in range(3):
            assert rest[rank]["found"][0] == whole[rank]["found"][epoch][step:]
            if epoch < 2:
                assert rest[rank]["found"][1] == whole[rank]["found"][epoch + 1]


@pytest.mark.sweep(together=2)
@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
@pytest.mark.parametrize("order", ["sequential", "shuffle", "group", "given"])
def test_a_stream_goes_on_with_another_number_of_ranks(pool, mixed, order, before, after):
    options = {**plain.ORDERS[order], "seed": 4}
    whole = plain.expected(mixed, {**options, "batch_size": 12}, 1, 2)
    whole = [step for epoch in whole for step in epoch]
    if order != "group":
        whole = plain.joined(whole)
    for stop in (1, 5, 8, 9, 11):
        first = pool.run(
            before, work.deliver, path=mixed, options={**options, "global_batch": 12}, epochs=2, stop=stop
        )
        rest = pool.run(
            after,
            work.deliver,
            path=mixed,
            options={**options, "global_batch": 12},
            state=first[0]["state"],
            epochs=1 if stop > 9 else 2,
        )
        found = [
            step
            for epoch in range(len(rest[0]["found"]))
            for step in plain.joined(plain.together(rest, epoch))
        ]
        assert found == whole[stop : stop + len(found)]
        assert len(found) == 18 - stop


def test_a_default_group_order_takes_lanes_and_groups_from_the_state(pool, mixed):
    state = pool.run(
        2, work.deliver, path=mixed, options={"global_batch": 16, "group": {"samples": 5, "lanes": 4}}, stop=3
    )[0]["state"]
    whole = pool.run(
        1, work.deliver, path=mixed, options={"global_batch": 16, "group": {"samples": 5, "lanes": 4}}
    )
    rest = pool.run(4, work.deliver, path=mixed, options={"global_batch": 16}, state=state)
    assert plain.joined(plain.together(rest, 0)) == plain.joined(plain.together(whole, 0))[3:]
    for one in pool.outcomes(
        pool.begin(3, work.deliver, path=mixed, options={"batch_size": 16, "order": "group"}, state=state)
    ):
        assert isinstance(one, Raised)
        assert "3 ranks cannot share the 4 lanes of the state" in one.message


# --- given orders ---


def test_ranks_that_are_given_different_orders_are_all_told(pool, even):
    each = lambda rank: {"options": {"batch_size": 4, "given": 9 if rank == 2 else 5}}  # noqa: E731
    for one in pool.outcomes(pool.begin(3, work.deliver, each, path=even, epochs=3)):
        assert isinstance(one, Raised)
        assert "the order given for epoch 0 differs between rank" in one.message


@pytest.mark.parametrize(
    ("ids", "values"),
    [
        (np.zeros(plain.SAMPLES, int), (0, 1)),
        (np.arange(plain.SAMPLES) - 1, (-1, 0, 100)),
        (np.arange(plain.SAMPLES, dtype=np.uint64) + 2**63, (9223372036854775807, 0)),
        (np.arange(5), (5, 101)),
        ([], (0,)),
    ],
)
def test_wrong_ids_are_refused_with_what_was_expected(even, ids, values, says):
    with (
        forebay.Loader(even, 4, order=lambda epoch: ids, node_memory="16MiB") as loader,
        says(forebay.OptionError, *values),
    ):
        next(iter(loader))


def test_a_given_order_that_fails_in_a_later_epoch_leaves_a_loader_that_works(even):
    def order(epoch):
        if epoch == 1:
            raise KeyError(epoch)
        return work.given_ids(plain.SAMPLES, 1, epoch)

    with forebay.Loader(even, 4, order=order, node_memory="16MiB", last_batch="partial") as loader:
        assert sum(len(batch.indices) for batch in loader) == plain.SAMPLES
        with pytest.raises(KeyError):
            next(iter(loader))
        loader.set_epoch(2)
        assert [number for batch in loader for number in batch.indices] == list(
            work.given_ids(plain.SAMPLES, 1, 2)
        )


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("first", ["together", "odd", "others"])
def test_ranks_that_set_different_epochs_are_all_told(pool, even, odd, first):
    # The first rank to ask leaves first, with the error; the last must not go on alone.
    def actions(rank):
        late = {"together": False, "odd": rank != odd, "others": rank == odd}[first]
        return [{"pause": 0.05 if late else 0}, {"epoch": 6 if rank == odd else 5}]

    ranks = pool.begin(
        3, work.act, lambda rank: {"actions": actions(rank)}, path=even, options={"batch_size": 4}
    )
    for one in pool.outcomes(ranks):
        assert isinstance(one, Raised)
        assert (one.kind, "ranks disagree on the iteration start" in one.message) == ("RendezvousError", True)


def test_a_rank_that_goes_on_while_others_jump_is_told_as_well(pool, even):
    def actions(rank):
        # Rank 1 is well inside epoch 1 when the others ask for epoch 5.
        return [{}, {"pause": 0.1}, {}] if rank == 1 else [{"pause": 0.02}, {"epoch": 5}]

    ranks = pool.begin(
        3, work.act, lambda rank: {"actions": actions(rank)}, path=even, options={"batch_size": 4}
    )
    for one in pool.outcomes(ranks):
        assert isinstance(one, Raised)
        assert "ranks disagree on the iteration start" in one.message


def test_a_rank_that_breaks_a_given_order_and_rests_holds_nobody_up(pool, even):
    actions = [{"stop": 1}] + [{}] * 3
    ranks = pool.begin(
        3,
        work.act,
        lambda rank: {"actions": [{"stop": 1}] if rank == 2 else actions, "rest": rank == 2},
        path=even,
        options={"batch_size": 4, "given": 3, "strategy": {"access": "pread", "readers": 3}},
    )
    assert ranks[2].hear() == "resting"
    found = pool.outcomes(ranks[:2])
    ranks[2].tell("go")
    assert len(pool.outcomes(ranks[2:])[0]) == 1
    for rank, passes in enumerate(found):
        assert [(epoch, len(steps)) for epoch, _, steps in passes] == [(0, 1), (1, 9), (2, 9), (3, 9)]
        for epoch, _, steps in passes:
            ids = iter(work.given_ids(plain.SAMPLES, 3, epoch))
            ways = plain.sizes(plain.SAMPLES, 4, 3, "partial")
            whole = [[[next(ids) for _ in range(count)] for count in step] for step in ways]
            assert steps == [step[rank] for step in whole[: len(steps)]]


# --- memory ---


@pytest.mark.parametrize("order", plain.ORDERS)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("data", ["mixed", "large"])
def test_the_least_memory_that_a_refusal_names_works(request, pool, data, order, ranks):
    path = request.getfixturevalue(data)
    options = {
        "batch_size": 12 // ranks,
        **plain.ORDERS[order],
        "strategy": {"access": "pread"},
        "node_memory": 100_000,
    }
    for one in pool.outcomes(pool.begin(ranks, work.deliver, path=path, options=options)):
        assert isinstance(one, Raised), one
        assert one.kind == "OptionError"
        assert "node_memory=100000 bytes is too little" in one.message
        least = int(one.message.split("the least that works is ")[1].split()[0])
    for memory in (least, least + 1, least + 1_000_000):
        found = pool.run(ranks, work.deliver, path=path, options={**options, "node_memory": memory}, epochs=2)
        assert found[0]["config"].memory.region_bytes <= memory
        samples = len(work.records(path))
        for epoch in range(2):
            ids = {number for step in plain.joined(plain.together(found, epoch)) for number in step}
            assert ids == set(range(samples))
    if least > 100_001:
        for one in pool.outcomes(
            pool.begin(ranks, work.deliver, path=path, options={**options, "node_memory": least - 1})
        ):
            assert isinstance(one, Raised)


@pytest.mark.parametrize(
    ("strategy", "order"),
    [
        (strategy, order)
        for strategy in plain.STRATEGIES
        for order in ("shuffle", "group", "sequential")
        if plain.fits(strategy, order)
    ],
)
def test_large_samples_in_little_memory_are_read_in_place(pool, large, strategy, order):
    options = {
        "batch_size": 4,
        **plain.ORDERS[order],
        "node_memory": "20MiB",
        "strategy": {**plain.STRATEGIES[strategy], "batch_buffers": 2},
    }
    if order == "group":
        options["group"] = {"samples": 4, "window": 2, "lanes": 3}
        options["node_memory"] = "32MiB"
    found = pool.run(3, work.deliver, path=large, options=options, epochs=3)
    for epoch in range(3):
        assert {number for step in plain.joined(plain.together(found, epoch)) for number in step} == set(
            range(64)
        )


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_second_loader_gets_what_the_first_left_of_the_memory(pool, even, ranks):
    # Samples of 3 KB are read ahead twice over at most, which alone takes more than half of this.
    memory = 4 << 20
    options = {"batch_size": 4, "node_memory": memory, "strategy": "pread"}
    for first, second, alone in pool.run(ranks, work.made_beside, path=even, options=options):
        first, second, alone = (one.memory.region_bytes for one in (first, second, alone))
        assert alone == first > memory / 2
        assert 0 < second <= memory - first


@pytest.mark.usefixtures("no_held_memory")
def test_the_refusal_of_a_second_loader_tells_what_the_first_holds(even):
    with forebay.Loader(even, 4, node_memory="8MiB", strategy="pread") as first:
        held = first.config.memory.region_bytes
        with pytest.raises(forebay.OptionError, match=rf"\b{held}\b"):
            forebay.Loader(even, 4, node_memory="1MiB", strategy="pread", name="second")
