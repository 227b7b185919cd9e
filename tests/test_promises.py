"""The promises of docs/design.md on one node: same samples, exact cover, resume; in every way a loader can be made and used."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import numpy as np
import pytest

import forebay
import support
from ranks import work
from ranks.pool import Killed, Pool, Raised

SAMPLES = 101  # a prime: no batch fits

ORDERS = {
    "sequential": {"order": "sequential"},
    "contiguous": {"order": "contiguous"},
    "shuffle": {"order": "shuffle"},
    "group": {"group": {"samples": 7, "window": 3, "lanes": 12}},
    "given": {"given": 5},
}
STRATEGIES = {
    "auto": {},
    "mmap": {"access": "mmap"},
    "pread": {"access": "pread"},
    "io_uring": {"access": "io_uring"},
    "pread-direct": {"access": "pread", "direct": True},
    "io_uring-direct": {"access": "io_uring", "direct": True},
}


@pytest.fixture(scope="module")
def pool():
    pool = Pool()
    yield pool
    pool.end()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Records from no byte to 150 KB: inline ones, large ones of their own pages, some in pages of 64 KiB and more."""
    rng = random.Random(1)
    lengths = [
        0,
        150_000,
        70_000,
        *(rng.choice([1, 40, 900, 3000, 4100, 9000, 40_000]) for _ in range(SAMPLES - 3)),
    ]
    rng.shuffle(lengths)
    values = [support.record(number, length) for number, length in enumerate(lengths)]
    return str(support.write_lmdb(tmp_path_factory.mktemp("mixed") / "mixed.lmdb", values))


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    """Records of one length."""
    values = [support.record(number, 3073) for number in range(SAMPLES)]
    return str(support.write_lmdb(tmp_path_factory.mktemp("even") / "even.lmdb", values))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """64 records of 300 KB: 19 MB."""
    values = [support.record(number, 300_000) for number in range(64)]
    return str(support.write_lmdb(tmp_path_factory.mktemp("large") / "large.lmdb", values))


def plain(path, options, ranks, epochs, last="wrap"):
    """By epoch, step and rank, the ids that a plain reader of the order gives.

    For the contiguous order, whose meaning depends on the ranks, this is written out; for the others it is one process with
    the whole global batch.
    """
    batch = options["batch_size"]
    if options.get("order") == "contiguous":
        return contiguous(SAMPLES, batch, ranks, epochs, last)
    with work.make(path, {}, {**options, "batch_size": batch * ranks, "last": last}) as loader:
        whole = [[[int(number) for number in one.indices] for one in loader] for _ in range(epochs)]
    if "group" not in options:
        return [
            [[step[rank * batch : (rank + 1) * batch] for rank in range(ranks)] for step in epoch]
            for epoch in whole
        ]
    return whole


def contiguous(samples, batch, ranks, epochs, last):
    steps = samples // (batch * ranks) if last == "drop" else -(-samples // (batch * ranks))
    regions = [range(rank * samples // ranks, (rank + 1) * samples // ranks) for rank in range(ranks)]
    epoch = []
    for step in range(steps):
        own = []
        for region in regions:
            positions = range(step * batch, (step + 1) * batch)
            if last == "wrap":
                own.append([region[position % len(region)] for position in positions])
            else:
                own.append([region[position] for position in positions if position < len(region)])
        epoch.append(own)
    return [epoch] * epochs


def together(found, epoch):
    """The steps of an epoch, each as the lists of its ranks."""
    steps = [one["found"][epoch] for one in found]
    assert len({len(own) for own in steps}) == 1, "the ranks have unequal steps"
    return [list(step) for step in zip(*steps, strict=True)]


def joined(steps):
    return [sum(step, []) for step in steps]


# --- promise 1: the same samples in the same order ---


@pytest.mark.parametrize("last", ["wrap", "drop", "short", "carry"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_and_number_of_ranks_delivers_what_the_plain_reader_does(
    pool, mixed, even, strategy, order, last
):
    if last == "carry" and order != "sequential":
        with pytest.raises(forebay.OptionError, match=r"carry"):
            work.make(mixed, {}, {"batch_size": 4, **ORDERS[order], "last": last})
        return
    for path in (mixed, even):
        for ranks in (1, 2, 3, 4):
            options = {"batch_size": 12 // ranks, **ORDERS[order], "seed": 3}
            expected = plain(path, options, ranks, 3, last)
            strategy_options = {**STRATEGIES[strategy], "readers": 1 + ranks % 3}
            found = pool.run(
                ranks,
                work.deliver,
                path=path,
                options={**options, "last": last, "strategy": strategy_options},
                epochs=3,
            )
            for epoch in range(3):
                steps = together(found, epoch)
                if order == "group":
                    assert joined(steps) == expected[epoch]
                else:
                    assert steps == expected[epoch]


@pytest.mark.parametrize("readers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_readers_and_ranks_go_together(pool, mixed, readers, ranks):
    options = {"batch_size": 12 // ranks, **ORDERS["group"]}
    expected = plain(mixed, options, ranks, 2)
    strategy = {"access": "pread", "readers": readers, "buffers": 2}
    found = pool.run(ranks, work.deliver, path=mixed, options={**options, "strategy": strategy}, epochs=2)
    for epoch in range(2):
        assert joined(together(found, epoch)) == expected[epoch]


# --- promise 2: exact cover, equal steps ---


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("ranks", "batch"), [(1, 7), (2, 6), (3, 4), (4, 3), (3, 33), (4, 25)])
def test_every_sample_comes_once_per_epoch_over_all_ranks(pool, even, order, ranks, batch):
    options = {"batch_size": batch, **ORDERS[order]}
    if order == "group":
        options["group"] = {"samples": 9, "window": 2}
    whole = batch * ranks
    for last in ("wrap", "drop", "short"):
        found = pool.run(ranks, work.deliver, path=even, options={**options, "last": last}, epochs=2)
        for epoch in range(2):
            ids = [number for step in joined(together(found, epoch)) for number in step]
            if last == "short":
                assert sorted(ids) == list(range(SAMPLES))
            elif last == "drop":
                assert len(set(ids)) == len(ids) == SAMPLES // whole * whole
            else:
                assert set(ids) == set(range(SAMPLES))
                assert len(ids) == -(-SAMPLES // whole) * whole


def test_a_circular_database_gives_every_sample_equally_often_over_the_epochs_that_make_it_whole(pool, even):
    found = pool.run(
        3,
        work.deliver,
        path=even,
        options={"batch_size": 4, "order": "sequential", "last": "carry"},
        epochs=5,
    )
    flat = [number for epoch in range(5) for step in joined(together(found, epoch)) for number in step]
    assert flat == [position % SAMPLES for position in range(len(flat))]


def test_short_last_batches_may_be_empty_on_some_ranks(pool, even):
    found = pool.run(
        4, work.deliver, path=even, options={"batch_size": 24, "order": "shuffle", "last": "short"}
    )
    assert [[len(step) for step in one["found"][0]] for one in found] == [[24, 5], [24, 0], [24, 0], [24, 0]]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_batch_larger_than_the_data_set_is_refused_unless_short(pool, even, ranks):
    for last in ("wrap", "drop"):
        options = {"batch_size": 200, "order": "shuffle", "last": last}
        for one in pool.outcomes(pool.begin(ranks, work.deliver, path=even, options=options)):
            assert isinstance(one, Raised)
            assert "batch larger than the data set" in one.message
            assert f"has {SAMPLES}" in one.message
    options = {"batch_size": 200, "order": "shuffle", "last": "short"}
    found = pool.run(ranks, work.deliver, path=even, options=options, epochs=2)
    assert sorted(joined(together(found, 1))[0]) == list(range(SAMPLES))


# --- promise 3: resume ---


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("last", ["wrap", "drop", "short"])
def test_resume_at_any_step_equals_uninterrupted(pool, mixed, order, last):
    options = {"batch_size": 4, **ORDERS[order], "last": last, "seed": 8}
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
            lambda rank: {"state": states[rank]},
            path=mixed,
            options=options,
            epochs=2,  # noqa: B023
        )
        epoch, step = states[0]["epoch"], states[0]["step"]
        for rank in range(3):
            assert rest[rank]["found"][0] == whole[rank]["found"][epoch][step:]
            if epoch < 2:
                assert rest[rank]["found"][1] == whole[rank]["found"][epoch + 1]


@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
@pytest.mark.parametrize("order", ["sequential", "shuffle", "group", "given"])
def test_a_stream_goes_on_with_another_number_of_ranks(pool, mixed, order, before, after):
    options = {**ORDERS[order], "seed": 4}
    whole = plain(mixed, {**options, "batch_size": 12}, 1, 2)
    whole = [step for epoch in whole for step in epoch]
    if order != "group":
        whole = joined(whole)
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
        found = [step for epoch in range(len(rest[0]["found"])) for step in joined(together(rest, epoch))]
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
    assert joined(together(rest, 0)) == joined(together(whole, 0))[3:]
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
    ("ids", "message"),
    [
        (np.zeros(SAMPLES, int), r"epoch 0 has id 0 twice"),
        (np.arange(SAMPLES) - 1, r"ids from -1 to 99"),
        (np.arange(SAMPLES, dtype=np.uint64) + 2**63, r"ids from 9223372036854775808"),
        (np.arange(5), r"5 sample ids, expected all 101"),
        ([], r"array of float64|0 sample ids"),
    ],
)
def test_wrong_ids_are_refused_with_what_was_expected(even, ids, message):
    with (
        forebay.Loader(even, 4, order=lambda epoch: ids, memory="16MiB") as loader,
        pytest.raises(forebay.OptionError, match=message),
    ):
        iter(loader)


def test_a_given_order_that_fails_in_a_later_epoch_leaves_a_loader_that_works(even):
    def order(epoch):
        if epoch == 1:
            raise KeyError(epoch)
        return work.given_ids(SAMPLES, 1, epoch)

    with forebay.Loader(even, 4, order=order, memory="16MiB", last="short") as loader:
        assert sum(len(batch.indices) for batch in loader) == SAMPLES
        with pytest.raises(KeyError):
            iter(loader)
        loader.set_epoch(2)
        assert [number for batch in loader for number in batch.indices] == list(work.given_ids(SAMPLES, 1, 2))


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
            ids = list(work.given_ids(SAMPLES, 3, epoch))
            ids += ids[:7]
            assert steps == [ids[s * 12 + rank * 4 : s * 12 + rank * 4 + 4] for s in range(len(steps))]


# --- memory ---


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("data", ["mixed", "large"])
def test_the_least_memory_that_a_refusal_names_works(request, pool, data, order, ranks):
    path = request.getfixturevalue(data)
    options = {"batch_size": 12 // ranks, **ORDERS[order], "strategy": {"access": "pread"}, "memory": 100_000}
    for one in pool.outcomes(pool.begin(ranks, work.deliver, path=path, options=options)):
        assert isinstance(one, Raised), one
        assert one.kind == "OptionError"
        assert "memory=100000 bytes is too little" in one.message
        least = int(one.message.split("the least that works is ")[1].split()[0])
    for memory in (least, least + 1, least + 1_000_000):
        found = pool.run(ranks, work.deliver, path=path, options={**options, "memory": memory}, epochs=2)
        assert found[0]["facts"]["region_bytes"] <= memory
        samples = len(work.records(path))
        for epoch in range(2):
            ids = {number for step in joined(together(found, epoch)) for number in step}
            assert ids == set(range(samples))
    if least > 100_001:
        for one in pool.outcomes(
            pool.begin(ranks, work.deliver, path=path, options={**options, "memory": least - 1})
        ):
            assert isinstance(one, Raised)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("order", ["shuffle", "group", "sequential"])
def test_large_samples_in_little_memory_are_read_in_place(pool, large, strategy, order):
    options = {
        "batch_size": 4,
        **ORDERS[order],
        "memory": "20MiB",
        "strategy": {**STRATEGIES[strategy], "buffers": 2},
    }
    if order == "group":
        options["group"] = {"samples": 4, "window": 2, "lanes": 3}
        options["memory"] = "32MiB"
    found = pool.run(3, work.deliver, path=large, options=options, epochs=3)
    for epoch in range(3):
        assert {number for step in joined(together(found, epoch)) for number in step} == set(range(64))


def test_a_second_loader_gets_what_the_first_left_of_the_memory(even):
    with forebay.Loader(even, 4, memory="12MiB") as first:
        taken = first.facts["region_bytes"]
        with forebay.Loader(even, 4, memory="12MiB", name="second") as second:
            assert second.facts["region_bytes"] + taken <= 12 << 20


# --- lives ---


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_break_keep_and_pause_as_they_like_get_what_the_order_says(pool, mixed, order, seed):
    rng = random.Random(f"{order} {seed}")
    ranks = rng.choice([1, 2, 3, 4])
    options = {
        "batch_size": 12 // ranks,
        **ORDERS[order],
        "last": rng.choice(["wrap", "drop", "short"]),
        "seed": seed,
        "strategy": {
            "access": rng.choice(["auto", "mmap", "pread", "io_uring"]),
            "readers": rng.choice([1, 2, 3, 4, 5]),
            "buffers": rng.choice([2, 3, 4]),
        },
    }
    scripts = [[] for _ in range(ranks)]
    epoch = -1
    for _ in range(8):
        jump = rng.choice([None, None, None, rng.randrange(6)])
        epoch = epoch + 1 if jump is None else jump
        for script in scripts:
            script.append(
                {
                    "epoch": jump,
                    "stop": rng.choice([None, None, 1, 2, 3, 8, 9]),
                    "keep": rng.choice([0, 0, 0, 1, 3, 20]),
                    "pause": rng.choice([0, 0, 0, 0.001, 0.005]),
                    "drop": rng.random() < 0.5,
                    "scribble": rng.random() < 0.5,
                }
            )
    expected = plain(mixed, options, ranks, 14, options["last"])
    found = pool.run(ranks, work.act, lambda rank: {"actions": scripts[rank]}, path=mixed, options=options)
    epoch = -1
    for number in range(8):
        jump = scripts[0][number]["epoch"]
        epoch = epoch + 1 if jump is None else jump
        whole = expected[epoch]
        by_rank = [found[rank][number] for rank in range(ranks)]
        for rank, (told, step, steps) in enumerate(by_rank):
            assert (told, step) == (epoch, 0)
            stop = scripts[rank][number]["stop"]
            assert len(steps) == min(len(whole), stop or len(whole))
            if order != "group":
                assert steps == [one[rank] for one in whole[: len(steps)]]
        if order == "group":
            for step, one in enumerate(whole):
                if all(len(steps) > step for _, _, steps in by_rank):
                    assert sum((steps[step] for _, _, steps in by_rank), []) == one


@pytest.mark.parametrize("how", ["close", "break"])
def test_readers_that_move_or_lag_never_write_over_blocks_that_others_wait_for(pool, tmp_path, how):
    # Blocks of one rank each: steps of 1.5 MiB in a region per rank, and a ring that goes round every few steps.
    path = str(
        support.write_lmdb(tmp_path / "x.lmdb", [support.record(number, 48_000) for number in range(1600)])
    )
    options = {
        "batch_size": 16,
        "order": "contiguous",
        "memory": "9MiB",
        "strategy": {"access": "pread", "readers": 2, "buffers": 2},
    }
    expected = contiguous(1600, 16, 2, 1, "wrap")[0]
    for victim in (0, 1):
        each = lambda rank: {"actions": [{"stop": 2 if rank == victim else None}], "rest": how == "break"}  # noqa: B023, E731
        ranks = pool.begin(2, work.act, each, path=path, options=options)
        if how == "break":
            assert [rank.hear() for rank in ranks] == ["resting"] * 2
            for rank in ranks:
                rank.tell("go")
        found = pool.outcomes(ranks)
        for rank, passes in enumerate(found):
            assert not isinstance(passes, (Raised, Killed)), passes.trace
            assert passes[0][2] == [step[rank] for step in expected[: len(passes[0][2])]]


def test_a_fork_in_any_rank_disturbs_nobody(pool, mixed):
    options = {"batch_size": 4, "order": "shuffle", "strategy": {"access": "pread", "readers": 3, "buffers": 3}}
    found = pool.run(3, work.forking, path=mixed, options=options)
    assert [one["codes"] for one in found] == [[4, 4]] * 3
    assert together(found, 0) == plain(mixed, options, 3, 1)[0]


def test_interrupts_at_any_moment_lose_no_place(pool, mixed):
    options = {"batch_size": 4, "order": "shuffle", "strategy": {"access": "pread", "readers": 3, "buffers": 2}}
    epochs = 12
    ranks = pool.begin(3, work.interrupted, lambda rank: {"rests": rank == 0}, path=mixed, options=options, epochs=epochs)
    rng = random.Random(5)
    for _ in range(epochs):
        assert ranks[0].hear() == "resting"
        for _ in range(6):
            time.sleep(rng.choice([0, 0.001, 0.01]))
            ranks[rng.choice([1, 2])].kill(signal.SIGINT)
        ranks[0].tell("go")
    found = pool.outcomes(ranks)
    for one in found:
        assert not isinstance(one, (Raised, Killed)), one
    assert found[1]["interrupts"] + found[2]["interrupts"] > epochs
    expected = plain(mixed, options, 3, 2 * epochs + 1)
    for rank, one in enumerate(found):
        for number, steps in enumerate(one["found"]):
            whole = [step[rank] for step in expected[2 * (epochs - number)]]
            # A batch on its way from the call to the variable goes with the interrupt; no batch comes twice or late.
            places = [whole.index(step) for step in steps]
            assert places == sorted(set(places))
            assert rank != 0 or steps == whole


@pytest.mark.parametrize("victim", [0, 2])
def test_a_loader_that_is_collected_says_goodbye(pool, mixed, victim):
    options = {"batch_size": 4, "order": "shuffle", "strategy": {"access": "pread", "readers": 3}}
    ranks = pool.ranks(3)
    job = f"collected-{victim}"
    for number, rank in enumerate(ranks):
        world = {"rank": number, "size": 3, "job": job}
        if number == victim:
            rank.begin(work.collected, world, {"path": mixed, "options": options})
        else:
            rank.begin(work.deliver, world, {"path": mixed, "options": options, "epochs": 5})
    found = pool.outcomes(ranks)
    assert found[victim] == []
    for number in {0, 1, 2} - {victim}:
        assert [len(steps) for steps in found[number]["found"]] == [9] * 5


def test_views_outlive_the_loaders_of_all_ranks_and_the_memory_goes_with_the_last(pool, mixed, even):
    for path in (mixed, even):
        options = {"batch_size": 4, "order": "shuffle", "strategy": {"buffers": 2}}
        for one in pool.run(3, work.views, path=path, options=options):
            assert one["right"]
            assert one["writable"]
            assert one["held"] > 0
            assert one["left"] == []


EXITING = """
import forebay, sys
rank, path, job = int(sys.argv[1]), sys.argv[2], sys.argv[3]
loader = forebay.Loader(path, 4, order="shuffle", memory="16MiB", world=forebay.World(rank=rank, size=3, job=job))
iteration = iter(loader)
kept = [next(iteration) for _ in range(2)]
if rank != 1:
    for _ in range(3):
        kept = [sum(1 for _ in loader)]
print("end", kept[0] if rank != 1 else len(kept))
"""


def test_a_rank_that_exits_with_a_loader_alive_leaves_the_others_working(even):
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", EXITING, str(rank), even, f"exit-{os.getpid()}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        found = [(*process.communicate(timeout=support.DEADLINE_S), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert found == [("end 9\n", "", 0), ("end 2\n", "", 0), ("end 9\n", "", 0)]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_ranks_may_be_started_by_any_method_of_multiprocessing(even, method):
    code = """
import forebay, multiprocessing, sys

def rank(number, path):
    loader = forebay.Loader(path, 4, order="shuffle", memory="16MiB", world=forebay.World(rank=number, size=2))
    for _ in range(1 if number == 0 else 3):
        assert sum(1 for _ in loader) == 13

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    processes = [context.Process(target=rank, args=(number, sys.argv[2])) for number in range(2)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    print([one.exitcode for one in processes])
"""
    work_file = Path("started.py")
    work_file.write_text(code)
    done = subprocess.run(
        [sys.executable, str(work_file), method, even],
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[0, 0]\n", "")


# --- storage ---


@pytest.mark.parametrize("access", ["pread", "io_uring"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_file_that_is_truncated_under_way_is_an_error_with_file_and_offset(pool, tmp_path, access, ranks):
    path = support.write_lmdb(tmp_path / "x.lmdb", [support.record(number, 100_000) for number in range(SAMPLES)])
    strategy = {"access": access, "readers": 2}
    options = {"batch_size": 2, "order": "sequential", "strategy": strategy, "memory": "8MiB"}
    work.records(str(path))
    ranks = pool.begin(ranks, work.rested, path=str(path), options=options)
    for rank in ranks:
        assert rank.hear() == "resting"
    data = path / "data.mdb"
    os.truncate(data, 2_000_000)
    for rank in ranks:
        rank.tell("go")
    for one in pool.outcomes(ranks):
        assert isinstance(one, Raised)
        assert one.kind == "StorageError"
        assert str(data) in one.message
        assert re.search(r"offset [0-9]+", one.message), one.message


def test_a_data_set_that_is_written_to_is_an_error_at_the_end_of_the_epoch(pool, tmp_path):
    path = support.write_lmdb(tmp_path / "x.lmdb", [support.record(number, 500) for number in range(SAMPLES)])
    ranks = pool.begin(2, work.rested, path=str(path), options={"batch_size": 2, "order": "shuffle"})
    for rank in ranks:
        assert rank.hear() == "resting"
    with lmdb.open(str(path), map_size=1 << 24) as environment:
        for number in range(2):
            with environment.begin(write=True) as transaction:
                transaction.put(b"more", str(number).encode())
    for rank in ranks:
        rank.tell("go")
    for one in pool.outcomes(ranks):
        assert isinstance(one, Raised), one
        assert one.kind == "FormatError"
        assert "data.mdb" in one.message
        assert "transaction" in one.message


@pytest.mark.parametrize(
    ("differ", "name"),
    [
        ({"batch_size": 5}, "batch_size"),
        ({"seed": 1}, "seed"),
        ({"order": "shuffle"}, "order"),
        ({"last": "drop"}, "last"),
        ({"memory": "33MiB"}, "memory"),
        ({"strategy": {"readers": 3}}, "readers"),
        ({"strategy": {"access": "pread"}}, "access"),
        ({"strategy": {"buffers": 3}}, "buffers"),
        ({"timeout": 60}, "timeout"),
    ],
)
def test_ranks_that_want_different_things_are_all_told_which(pool, even, differ, name):
    options = {"batch_size": 4, "order": "sequential"}
    for odd in (0, 2):
        each = lambda rank: {"options": {**options, **(differ if rank == odd else {})}}  # noqa: B023, E731
        for one in pool.outcomes(pool.begin(3, work.made, each, path=even)):
            assert isinstance(one, Raised), one
            assert one.kind == "OptionError"
            assert f"the ranks disagree on {name}" in one.message


def test_ranks_with_different_data_sets_are_all_told(pool, even, mixed):
    each = lambda rank: {"path": mixed if rank == 1 else even}  # noqa: E731
    for one in pool.outcomes(pool.begin(3, work.made, each, options={"batch_size": 4})):
        assert isinstance(one, Raised)
        assert one.kind == "OptionError"
        assert "the ranks disagree on data set" in one.message
