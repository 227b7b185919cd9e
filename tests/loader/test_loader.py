"""The loader on one rank: batches, epochs, positions, states, lives."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import os
import pickle
import signal
import threading
from xml.etree import ElementTree

import numpy as np
import pytest

import forebay
import forebay_lab
import support
from forebay.config import Given


def contents(batch):
    return [bytes(row) for row in batch["data"]]


def ids(loader):
    return [list(map(int, batch.indices)) for batch in loader]


# --- batches ---


@pytest.mark.parametrize(
    "order", ["sequential", "contiguous", "shuffle", "group", forebay.Group(samples=10, window=2)]
)
def test_every_sample_comes_once_per_epoch_with_its_own_bytes(make, small_records, order):
    loader = make(order=order, batch_size=10)
    for _ in range(3):
        seen = []
        for batch in loader:
            assert contents(batch) == [small_records[number] for number in batch.indices]
            seen += list(batch.indices)
        assert sorted(seen) == list(range(100))


@pytest.mark.parametrize(
    "strategy", ["forebay", "mmap", "pread", "io_uring", forebay.Strategy(access="pread", readers=3)]
)
def test_a_strategy_never_changes_the_samples(make, small_records, strategy):
    plain = ids(make(order="shuffle", seed=5))
    loader = make(order="shuffle", seed=5, strategy=strategy)
    found = []
    for batch in loader:
        assert contents(batch) == [small_records[number] for number in batch.indices]
        found.append(list(map(int, batch.indices)))
    assert found == plain


@pytest.mark.parametrize("order", ["sequential", "contiguous"])
@pytest.mark.parametrize("last", ["fill", "drop", "partial"])
def test_walking_with_a_cursor_gives_the_same_samples_as_the_index(make, small_records, order, last):
    options = {"order": order, "last_batch": last, "batch_size": 7}
    walking, plain = make(strategy=forebay_lab.strategy("lmdb"), **options), make(**options)
    for _ in range(2):
        found = []
        for batch in walking:
            assert contents(batch) == [small_records[number] for number in batch.indices]
            found.append(list(map(int, batch.indices)))
        assert found == ids(plain)
    # Breaking off and going on elsewhere.
    for loader in (walking, plain):
        loader.load_state_dict({**loader.state_dict(), "epoch": 4, "step": 3})
    assert ids(walking) == ids(plain)
    stats = walking.stats()
    assert stats["read_bytes"] == stats["reads"] == 0
    assert stats["mmap_bytes"] >= stats["requested_bytes"] > 0
    reading = walking.config.reading
    assert (reading.io_mode, reading.roots, reading.access) == ("cursor_walk", False, "mmap")


@pytest.mark.parametrize("order", ["shuffle", "group", lambda epoch: np.arange(100)])
def test_a_cursor_refuses_orders_that_jump(make, order, says):
    with says(forebay.OptionError, "order=", "sequential", "contiguous"):
        make(order=order, strategy=forebay_lab.strategy("lmdb"))


def test_records_of_different_lengths_are_lists_of_views(tmp_path):
    records = [support.record(number, 1 + 37 * number) for number in range(40)]
    path = support.write_lmdb(tmp_path / "ragged.lmdb", records)
    with forebay.Loader(path, 8, order="shuffle", node_memory="16MiB") as loader:
        for batch in loader:
            assert isinstance(batch["data"], list)
            assert [view.tobytes() for view in batch["data"]] == [records[number] for number in batch.indices]


def test_a_batch_is_a_mapping_of_writable_arrays(make):
    batch = next(iter(make()))
    assert list(batch) == ["data"]
    assert batch["data"].dtype == np.uint8
    assert batch["data"].shape == (8, 300)
    assert batch.indices.dtype == np.int64
    batch["data"][:] = 0
    assert not batch["data"].any()
    assert "indices=array" in repr(batch)


def test_indices_keep_no_buffer(make):
    loader = make()
    kept = [batch.indices for batch in loader]
    assert len(kept) == len(loader)
    assert loader.stats()["heap_batches"] == 0


def test_a_user_who_keeps_every_batch_gets_private_copies_and_one_warning(make, small_records):
    loader = make(order="sequential", batch_size=4)
    with pytest.warns(RuntimeWarning) as warnings:
        kept = list(loader)
    assert len(warnings) == 1
    for batch in kept:
        assert contents(batch) == [small_records[number] for number in batch.indices]
    assert loader.stats()["heap_batches"] > 0


def test_views_outlive_batch_and_loader(make, small_records):
    loader = make(order="sequential")
    row = next(iter(loader))["data"][3]
    loader.close()
    del loader
    gc.collect()
    assert bytes(row) == small_records[3]


def test_the_function_of_a_batch_is_called_and_its_result_delivered(make):
    loader = make(
        order="sequential", batch_transform=lambda batch: (len(batch["data"]), int(batch.indices[0]))
    )
    assert list(loader)[:3] == [(8, 0), (8, 8), (8, 16)]


def test_a_function_of_a_batch_that_raises_counts_its_batch(make):
    def label(batch):
        if batch.indices[0] == 8:
            raise KeyError("no")
        return int(batch.indices[0])

    loader = make(order="sequential", batch_transform=label)
    iteration = iter(loader)
    assert next(iteration) == 0
    with pytest.raises(KeyError):
        next(iteration)
    assert loader.state_dict()["step"] == 2
    assert next(iteration) == 16


@pytest.mark.parametrize(
    ("last", "steps", "lengths"),
    [("fill", 13, [8] * 13), ("drop", 12, [8] * 12), ("partial", 13, [8] * 12 + [4])],
)
def test_the_end_of_an_epoch_is_as_last_says(make, last, steps, lengths):
    loader = make(order="sequential", last_batch=last)
    assert len(loader) == steps
    assert [len(batch) for batch in ids(loader)] == lengths


def test_a_circular_database_flows_on(make):
    loader = make(order="sequential", last_batch="carry", batch_size=30)
    flat = [number for _ in range(3) for batch in ids(loader) for number in batch]
    assert flat == [number % 100 for number in range(len(flat))]


# --- epochs ---


def test_each_pass_is_the_next_epoch(make):
    loader = make(order="shuffle")
    first, second = ids(loader), ids(loader)
    assert first != second
    again = make(order="shuffle")
    assert [ids(again), ids(again)] == [first, second]


def test_set_epoch_chooses_the_epoch(make, says):
    loader = make(order="shuffle")
    epochs = [ids(loader) for _ in range(3)]
    for epoch in (2, 0, 0, 1):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        assert ids(loader) == epochs[epoch]
    for wrong in (-1, 1.5, True):
        with says(forebay.OptionError, "set_epoch", 0):
            loader.set_epoch(wrong)
    with says(forebay.OptionError, "set_epoch", 2**64):
        loader.set_epoch(2**64)


def test_a_pass_that_was_broken_off_counts(make):
    loader = make(order="shuffle")
    epochs = [ids(loader) for _ in range(2)]
    loader.set_epoch(0)
    for step, batch in enumerate(loader):
        assert list(batch.indices) == epochs[0][step]
        if step == 2:
            break
    del batch
    assert loader.epoch == 0
    assert ids(loader) == epochs[1]


def test_set_epoch_after_a_break_begins_the_epoch_anew(make):
    loader = make(order="shuffle")
    whole = ids(loader)
    loader.set_epoch(0)
    next(iter(loader))
    loader.set_epoch(0)
    assert ids(loader) == whole


def test_an_older_iterator_says_that_it_is_stale(make, says):
    loader = make()
    older = iter(loader)
    next(older)
    next(iter(loader))
    with says(forebay.ForebayError):
        next(older)
    with pytest.raises(StopIteration):
        next(older)


def test_an_iterator_that_ended_stays_ended(make):
    iteration = iter(make())
    for _ in iteration:
        pass
    assert list(iteration) == []


def test_an_iterator_that_was_never_used_changes_nothing(make):
    loader = make(order="shuffle")
    epochs = [ids(loader) for _ in range(2)]
    again = make(order="shuffle")
    fresh = again.state_dict()
    probes = [iter(again) for _ in range(3)]
    assert (again.state_dict(), again.epoch) == (fresh, 0)
    assert ids(again) == epochs[0]
    between = again.state_dict()
    probes.append(iter(again))
    assert again.state_dict() == between
    running = iter(again)
    found = [list(map(int, next(running).indices))]
    del probes[0]
    iter(again)
    assert again.state_dict()["step"] == 1
    assert found + [list(map(int, batch.indices)) for batch in running] == epochs[1]


def test_an_iterator_begins_at_the_position_of_its_first_next(make):
    loader = make(order="shuffle")
    epochs = [ids(loader) for _ in range(3)]
    loader.set_epoch(0)
    iteration = iter(loader)
    loader.set_epoch(2)
    assert [list(map(int, batch.indices)) for batch in iteration] == epochs[2]


def test_threads_that_iterate_one_loader_at_once_never_get_short_epochs_in_silence(make):
    loader = make(order="sequential", batch_size=1)
    start = threading.Barrier(4)
    outcomes = []

    def epoch():
        start.wait()
        try:
            outcomes.append([int(number) for batch in loader for number in batch.indices])
        except forebay.ForebayError as error:
            outcomes.append(str(error))

    for _ in range(5):
        outcomes.clear()
        threads = [threading.Thread(target=epoch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        whole = [one for one in outcomes if isinstance(one, list)]
        assert whole
        assert all(one == list(range(100)) for one in whole)
        assert all("stale iterator" in one for one in outcomes if isinstance(one, str))


def test_threads_that_share_an_iterator_get_each_batch_once(make):
    loader = make(order="sequential", batch_size=1)
    iteration = iter(loader)
    found = []

    def take():
        for batch in iteration:
            found.append((batch.position.step, int(batch.indices[0])))
            assert loader.state_dict()["step"] > batch.position.step or loader.epoch == 1

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(step, step) for step in range(100)]
    assert (loader.epoch, loader.state_dict()["step"]) == (1, 0)


def test_next_of_a_loader_says_what_to_call(make, says):
    loader = make()
    assert not hasattr(loader, "__next__")
    with says(TypeError):
        next(loader)


@pytest.mark.parametrize(
    "name", ["shuffle", "num_workers", "drop_last", "pin_memory", "batchsize", "schema", "decode", "zzz"]
)
def test_an_option_of_other_loaders_is_named_as_it_is_called_here(small_lmdb, name, says):
    with says(forebay.OptionError, f"{name}="):
        forebay.Loader(small_lmdb, 8, **{name: True})


# --- given orders ---


def test_a_function_of_the_epoch_gives_the_order(make, small_records):
    asked = []

    def order(epoch):
        asked.append(epoch)
        return np.roll(np.arange(100), epoch)

    loader = make(order=order, batch_size=10)
    for epoch in range(3):
        flat = []
        for batch in loader:
            assert contents(batch) == [small_records[number] for number in batch.indices]
            flat += list(batch.indices)
        assert flat == list(np.roll(np.arange(100), epoch))
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i2", ">i4", ">u8"])
def test_a_given_order_takes_integers_of_any_width(make, dtype):
    loader = make(order=lambda epoch: np.arange(100)[::-1].astype(dtype), batch_size=10)
    assert [number for step in ids(loader) for number in step] == list(range(100))[::-1]


@pytest.mark.parametrize(
    ("value", "values"),
    [
        (np.arange(99), (0, 99, 100)),
        (np.arange(100) + 1, (100, 99, 0)),
        (np.arange(100, dtype=np.uint8) % 99, (0, 99)),
        (np.arange(100.0), (1,)),
        (np.zeros((10, 10), int), (2,)),
    ],
)
def test_a_given_order_is_checked(make, value, values, says):
    with says(forebay.OptionError, *values):
        next(iter(make(order=lambda epoch: value)))


# --- states ---


@pytest.mark.parametrize(
    "order", ["sequential", "contiguous", "shuffle", "group", lambda epoch: np.arange(100)[::-1]]
)
@pytest.mark.parametrize("stop", [0, 1, 5, 12, 13])
def test_resume_equals_uninterrupted(make, order, stop):
    whole = make(order=order, seed=3)
    epochs = [ids(whole), ids(whole)]
    first = make(order=order, seed=3)
    iteration = iter(first)
    for _ in range(stop):
        next(iteration)
    state = first.state_dict()
    assert state["step"] == stop
    second = make(order=order, seed=3)
    second.load_state_dict(pickle.loads(pickle.dumps(state)))
    second.set_epoch(state["epoch"])
    assert ids(second) == epochs[0][stop:]
    assert ids(second) == epochs[1]


@pytest.mark.parametrize("order", ["sequential", "shuffle", "group"])
def test_a_state_at_a_position_is_the_state_behind_that_batch(make, order):
    loader = make(order=order, seed=3)
    states, places, found = [], [], []
    for _ in range(2):
        for batch in loader:
            places.append(batch.position)
            states.append(loader.state_dict())
            found.append(list(map(int, batch.indices)))
    assert places == [(epoch, step) for epoch in range(2) for step in range(13)]
    # The loader is epochs ahead by now, as under a wrapper that reads ahead.
    assert [loader.state_at(place) for place in places] == states
    for place in (places[0], places[5], list(places[12]), places[17]):
        second = make(order=order, seed=3)
        second.load_state_dict(loader.state_at(place))
        behind = place[0] * 13 + place[1] + 1
        assert [one for _ in range(2 - place[0]) for one in ids(second)] == found[behind:]


@pytest.mark.parametrize("position", [(0, 13), (0, -1), (-1, 0), (0,), (0, 1.5), "no", None, 3])
def test_a_position_that_is_none_is_refused(make, position, says):
    with says(forebay.OptionError, "state_at"):
        make().state_at(position)


def test_a_loader_is_neither_pickled_nor_copied(make, says):
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with says(forebay.OptionError, 0):
            use(make())


def test_a_state_after_an_epoch_is_the_start_of_the_next(make):
    loader = make()
    ids(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["step"]) == (1, 0)


def test_a_state_of_a_contiguous_order_names_the_ranks_that_can_go_on(make, says):
    loader = make(order="contiguous")
    with says(forebay.OptionError, 4, 1):
        loader.load_state_dict({**loader.state_dict(), "lanes": 4})


def test_a_state_brings_its_lanes_and_groups_along(make, says):
    first = make(order=forebay.Group(samples=5, window=3, lanes=4), seed=1)
    whole = ids(first)
    first.set_epoch(0)
    iteration = iter(first)
    for _ in range(4):
        next(iteration)
    second = make(order="group", seed=1)
    second.load_state_dict(first.state_dict())
    assert ids(second) == whole[4:]
    assert second.config.order.lanes == 4
    third = make(order=forebay.Group(lanes=8), seed=1)
    with says(forebay.OptionError, 4, 8):
        third.load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"seed": 9}, (9, 0)),
        ({"kind": "shuffle"}, ("shuffle", "group")),
        ({"last_batch": "drop"}, ("drop", "partial")),
        ({"version": 2}, (2, 3)),
        ({"fingerprint": "0"}, (0,)),
        (
            {"global_batch": 16, "lanes": 8},
            (16, 8),
        ),
        ({"step": 14}, ("step", 0, 13, 14)),
        ({"epoch": -1}, (0, -1)),
        ({"epoch": 2**64}, (0, 18446744073709551616)),
        ({"epoch": True}, ("epoch", True)),
        ({"global_batch": "x"}, ("global_batch", 1, "x")),
        ({"lanes": None}, ("lanes", 1, 8, None)),
        ({"lanes": 10**12}, (1, 8, 1000000000000)),
        ({"global_batch": 1 << 32, "lanes": 1 << 32}, (4294967296, 8)),
        ({"lanes": 3}, (8, 3)),
        ({"group_samples": "zz"}, ("group_samples", 1, "zz")),
        ({"group_window": None}, ("group_window", 1, None)),
        ({"version": 3.0}, ("3.0", 3)),
        ({"step": 1.0}, ("step", "1.0")),
        ({"seed": 2**70}, (1180591620717411303424, 0)),
        ({"last_batch": "\udcff"}, ("partial",)),
        ({"kind": [1]}, (1, "group")),
    ],
)
def test_a_state_that_does_not_fit_is_refused_with_what_would(make, changes, values, says):
    loader = make()
    with says(forebay.OptionError, *values):
        loader.load_state_dict({**loader.state_dict(), **changes})
    # The loader goes on where it was.
    assert sorted(ids(loader)) == sorted(ids(make()))


def test_what_is_no_state_is_refused(make, says):
    loader = make()
    with says(forebay.OptionError, "epoch"):
        loader.load_state_dict({key: value for key, value in loader.state_dict().items() if key != "epoch"})
    for state in (None, 1, "x", []):
        with says(forebay.OptionError, "state_dict"):
            loader.load_state_dict(state)


def test_a_checkpoint_of_version_3_is_written_and_loaded_in_these_words(make):
    loader = make(order=forebay.Group(samples=5, window=3, lanes=4), seed=7)
    kept = {
        "version": 3,
        "kind": "group",
        "last_batch": "partial",
        "seed": 7,
        "epoch": 2,
        "step": 5,
        "global_batch": 8,
        "ranks": 1,
        "lanes": 4,
        "group_samples": 5,
        "group_window": 3,
        "fingerprint": loader.dataset.fingerprint,
    }
    loader.load_state_dict(kept)
    assert list(loader.state_dict().items()) == list(kept.items())
    assert {type(value) for value in loader.state_dict().values()} == {int, str}
    loader.load_state_dict(json.loads(json.dumps(kept)))
    loader.load_state_dict(
        {key: np.int64(value) if type(value) is int else value for key, value in kept.items()}
    )
    loader.close()
    assert loader.state_dict() == kept, "a closed loader still has its position"
    other = make(order="sequential").state_dict()
    assert (other["group_samples"], other["group_window"]) == (None, None)


# --- options ---


def test_options_come_from_the_environment(make, monkeypatch):
    monkeypatch.setenv("FOREBAY_BATCH_SIZE", "5")
    monkeypatch.setenv("FOREBAY_ORDER", "sequential")
    loader = make(batch_size=None)
    assert ids(loader)[0] == [0, 1, 2, 3, 4]
    assert loader.config.given["order"] == Given(value="sequential", origin="FOREBAY_ORDER")
    assert not loader.config.given["order"].is_argument


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({"batch_size": 101, "last_batch": "fill"}, (101,)),
        ({"node_memory": 4096}, ()),
        ({"order": "sorted"}, ()),
        ({"strategy": "lmm-dia"}, ("io_uring",)),
        ({"order": "shuffle", "last_batch": "carry"}, ("carry",)),
        ({"order": forebay.Group(lanes=3)}, ("lanes",)),
        ({"batch_transform": 3}, ("batch_transform=", 3)),
    ],
)
def test_wrong_use_is_told_when_the_loader_is_made(make, arguments, values, says):
    with says(forebay.OptionError, *values):
        make(**arguments)


# --- lives ---


def test_config_and_stats_tell_what_was_done_after_close_too(make):
    loader = make(order="group")
    ids(loader)
    stats = loader.stats()
    assert stats["steps"] == 13
    assert stats["samples"] == 100
    assert stats["node"]["steps"] == 13
    config, text = loader.config, loader.explain()
    assert (config.order.kind, config.order.steps, config.order.global_batch) == ("group", 13, 8)
    assert config.data.samples == 100
    assert config.order.group_samples >= 1
    assert config.index.source in {"sidecar", "build"}
    loader.close()
    assert loader.stats()["steps"] == 13
    assert dataclasses.replace(loader.config, now=config.now) == config
    assert loader.explain().splitlines()[0] == text.splitlines()[0]


def test_config_is_frozen_and_writes_as_json(make):
    config = make(order="group", strategy="pread").config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.reading = None
    assert json.loads(json.dumps(dataclasses.asdict(config)))["reading"]["access"] == "pread"
    assert pickle.loads(pickle.dumps(config)) == config


def test_where_every_rank_copies_alone_there_are_no_readers_and_no_staging_blocks(make):
    loader = make(order="group", node_memory="4MiB")
    ids(loader)
    if loader.config.reading.mapping != "resident":
        pytest.skip("the file just written is not in the page cache of a local file system")
    assert (loader.config.reading.io_mode, loader.config.reading.access) == ("mapped", "mmap")
    assert loader.config.reading.readers == loader.config.memory.staging_bytes == 0
    assert loader.stats()["reads"] == loader.stats()["reader_idle_seconds"] == 0
    reading = make(order="group", node_memory="4MiB", strategy="pread", name="reading")
    assert (reading.config.reading.io_mode, reading.config.reading.readers) == ("planned", 2)
    assert reading.config.memory.region_bytes > loader.config.memory.region_bytes


def test_a_closed_loader_says_so(make, says):
    with make() as loader:
        iteration = iter(loader)
        next(iteration)
    loader.close()
    with says(forebay.ForebayError, "train"):
        iter(loader)
    with says(forebay.ForebayError):
        next(iteration)


def test_several_loaders_live_side_by_side(make, small_records):
    training, validation = make(order="shuffle"), make(order="sequential", name="validation")
    for one, two in zip(training, validation, strict=True):
        for batch in (one, two):
            assert contents(batch) == [small_records[number] for number in batch.indices]


def test_a_loader_that_is_dropped_is_collected(small_lmdb):
    before = threading_count()
    for _ in range(5):
        loader = forebay.Loader(small_lmdb, 8, node_memory="16MiB")
        next(iter(loader))
        del loader
    gc.collect()
    support.wait_until(lambda: threading_count() <= before, "the threads of the loaders to end")


def threading_count():
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def test_a_loader_alive_at_exit_is_no_trouble(small_lmdb):
    code = """
import forebay, sys
loader = forebay.Loader(sys.argv[1], 8, node_memory="16MiB")
iteration = iter(loader)
kept = [next(iteration)]
cycle = [kept]; cycle.append(cycle)
print("end")
"""
    done = support.run_python(code, small_lmdb)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_loader_cannot_be_used_after_a_fork(small_lmdb):
    code = """
import forebay, os, sys
loader = forebay.Loader(sys.argv[1], 8, order="sequential", node_memory="16MiB")
iteration = iter(loader)
batch = next(iteration)
child = os.fork()
if child == 0:
    told = 0
    for use in (lambda: next(iteration), lambda: iter(loader), loader.stats):
        try:
            use()
        except forebay.ForebayError as error:
            told += "was made before this process" in str(error)
    del batch, iteration
    loader.close()
    del loader
    own = forebay.Loader(sys.argv[1], 8, order="sequential", node_memory="16MiB")
    told += sum(len(batch.indices) for batch in own) == 100
    sys.exit(10 + told)
_, status = os.waitpid(child, 0)
del batch
rest = sum(len(batch.indices) for batch in iteration)
print(os.waitstatus_to_exitcode(status), rest)
"""
    done = support.run_python(code, small_lmdb)
    assert (done.returncode, done.stdout) == (0, "14 92\n"), done.stderr


def test_an_interrupt_while_waiting_is_a_keyboard_interrupt(small_lmdb):
    # The second of two ranks that never comes: making the loader waits.
    world = forebay.World(rank=0, size=2, job=f"interrupt-{os.getpid()}")
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        forebay.Loader(small_lmdb, 8, world=world, node_memory="16MiB")
    timer.join()


def test_an_interrupt_at_any_moment_leaves_a_loader_that_works(make, small_records):
    loader = make(order="shuffle")
    for pause in (0.0001, 0.001, 0.005, 0.02):
        timer = threading.Timer(pause, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            timer.start()
            while True:
                ids(loader)
                if not timer.is_alive():
                    # Python drops what a handler raises inside a finalizer; the user presses again.
                    os.kill(os.getpid(), signal.SIGINT)
        timer.join()
    loader.set_epoch(0)
    assert {number for batch in ids(loader) for number in batch} == set(range(100))


def test_a_reference_cycle_through_the_loader_is_collected(make):
    loader = make()
    loader.myself = [loader]
    del loader
    gc.collect()


def test_a_loader_and_its_dataset_tell_people_what_they_are(tmp_path):
    path = tmp_path / "train.npz"
    np.savez(path, image=np.zeros((20, 2, 3), np.uint8), label=np.arange(20))
    dataset = forebay.open(path)
    source = f"forebay.Dataset npz {path}"
    # The index is not built for a text.
    assert repr(dataset) == f"<{source}>"
    assert "samples" not in dataset._repr_html_()
    fields = "image: uint8 (2, 3); label: int64"
    with forebay.Loader(
        dataset, 8, order="shuffle", last_batch="drop", node_memory="4MiB", name="a<b"
    ) as loader:
        assert repr(loader) == (
            "<forebay.Loader 'a<b' rank 0 of 1, shuffle order, batches of 8, epochs of 2 steps, "
            f"<{source}: 20 samples, {fields}>>"
        )
        table = loader._repr_html_()
    assert repr(dataset) == f"<{source}: 20 samples, {fields}>"
    assert repr(dataset.select([3])) == f"<{source}: 1 sample selected, {fields}>"
    # Notebooks show it as it is.
    assert "a&lt;b" in table
    for one in (table, dataset._repr_html_()):
        cells = ElementTree.fromstring(one).itertext()
        assert {"field image", "uint8 (2, 3)", "20"} <= set(cells)


def test_the_text_of_a_dataset_with_many_fields_is_short(tmp_path):
    np.savez(tmp_path / "many.npz", **{f"f{number}": np.arange(3.0) for number in range(9)})
    dataset = forebay.open(tmp_path / "many.npz")
    assert len(dataset) == 3
    assert repr(dataset).endswith("f4: float64; f5: float64; and 3 more>")
    assert "field f8" in dataset._repr_html_()
