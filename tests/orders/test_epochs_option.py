"""`expected_epochs=`: the loader prefetches nothing beyond them, and more can be iterated."""

from __future__ import annotations

import time
from itertools import chain
from pathlib import Path

import pytest

import forebay
import support
from forebay.config import Given
from support.ranks import plain, work

RECORD_BYTES = 3073  # of plain.write_even
EPOCH_BYTES = plain.SAMPLES * RECORD_BYTES
# Long enough for threads to read a few hundred KB ahead if they meant to [s].
PAUSE_S = 0.3

WAYS = {
    "sequential": {"order": "sequential", "strategy": "pread"},
    "carry": {"order": "sequential", "strategy": "pread", "last_batch": "carry"},
    "shuffle": {"order": "shuffle", "strategy": "pread"},
    "group": {"group": {"samples": 7, "window": 3, "lanes": 5}, "strategy": "pread"},
    "given": {"given": 5, "strategy": "pread"},
    "in the page cache": {"order": "group"},
    "by cursor": {"order": "sequential", "strategy": "lmdb"},
}


def make(path, way, **options):
    return work.make(path, {}, {"batch_size": 5, "last_batch": "partial", **WAYS[way], **options})


def fetched_bytes(loader):
    stats = loader.stats()
    return stats["read_bytes"] + stats["mmap_bytes"]


def check_read(path, loader, epochs):
    """Check that nothing was read or copied but for these epochs, now or soon."""
    time.sleep(PAUSE_S)
    stats = loader.stats()
    assert stats["read_bytes_by_epoch"].keys() <= set(epochs)
    assert sum(stats["read_bytes_by_epoch"].values()) == stats["read_bytes"]
    by_level = stats["level_bytes_by_epoch"]
    assert by_level.keys() <= set(epochs)
    for level, columns in stats["levels"].items():
        assert sum(of_epoch[level] for of_epoch in by_level.values()) == columns["bytes"]
    # Pages are read whole: a record of 3,073 bytes has one of its own.
    assert (
        stats["mmap_bytes"] + stats["unstaged_bytes"] <= len(epochs) * Path(path, "data.mdb").stat().st_size
    )


def walk(path, loader, epochs=1):
    return [list(chain.from_iterable(work.check(path, batch) for batch in loader)) for _ in range(epochs)]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "given"])
def test_without_a_number_of_epochs_the_next_one_is_read_ahead(even, way):
    with make(even, way) as loader:
        walk(even, loader)
        # Or the tests below show nothing.
        support.wait_until(lambda: fetched_bytes(loader) >= 1.2 * EPOCH_BYTES, "what is read ahead")


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_read_beyond_the_epochs_that_were_asked_for(even, way, epochs):
    with make(even, way, expected_epochs=epochs) as loader:
        assert loader.config.order.expected_epochs == epochs
        for ids in walk(even, loader, epochs):
            assert set(ids) == set(range(plain.SAMPLES))
        check_read(even, loader, range(epochs))


@pytest.mark.parametrize("way", WAYS)
def test_more_epochs_than_were_said_can_be_had(even, way):
    with make(even, way) as loader:
        expected = walk(even, loader, 4)
    with make(even, way, expected_epochs=2) as loader:
        assert walk(even, loader, 4) == expected
        check_read(even, loader, range(4))
    with make(even, way, expected_epochs=1) as loader:
        loader.set_epoch(2)
        assert walk(even, loader, 2) == expected[2:]
        loader.set_epoch(0)
        assert walk(even, loader) == expected[:1]
        check_read(even, loader, [0, 2, 3])


def test_a_restored_position_counts_epochs_from_the_first(even):
    with make(even, "sequential") as loader:
        loader.set_epoch(1)
        steps = iter(loader)
        for _ in range(10):
            next(steps)
        state = loader.state_dict()
        rest = [number for batch in steps for number in work.check(even, batch)]
    with make(even, "sequential", expected_epochs=2) as loader:
        loader.load_state_dict(state)
        assert walk(even, loader) == [rest]
        check_read(even, loader, [1])
        assert fetched_bytes(loader) > 0


def test_one_that_breaks_off_and_comes_back_gets_the_last_epoch_whole(even):
    with make(even, "group", expected_epochs=2) as loader:
        for _ in loader:
            break
        (ids,) = walk(even, loader)
        assert sorted(ids) == list(range(plain.SAMPLES))


@pytest.mark.parametrize("order", ["sequential", "group"])
def test_ranks_of_a_node_read_the_epochs_that_were_asked_for_and_no_more(pool, even, order):
    options = {
        "batch_size": 4,
        "last_batch": "partial",
        "strategy": "pread",
        "expected_epochs": 2,
        **plain.ORDERS[order],
    }
    found = pool.run(3, work.deliver, path=even, options=options, epochs=2)
    read = [one["stats"]["read_bytes_by_epoch"] for one in found]
    assert set().union(*read) == {0, 1}
    for epoch in range(2):
        assert sum(one.get(epoch, 0) for one in read) >= EPOCH_BYTES
        ids = [number for step in plain.joined(plain.together(found, epoch)) for number in step]
        assert sorted(ids) == list(range(plain.SAMPLES))


def test_ranks_that_go_on_at_different_times_get_an_epoch_that_nobody_had_announced(pool, even):
    options = {
        "batch_size": 5,
        "last_batch": "partial",
        "strategy": "pread",
        "expected_epochs": 1,
        "order": "sequential",
    }
    found = pool.run(3, work.deliver, path=even, options=options, epochs=3)
    expected = plain.expected(even, {"batch_size": 5, "order": "sequential"}, 3, 3, "partial")
    assert [plain.together(found, epoch) for epoch in range(3)] == expected


def test_a_number_of_epochs_is_at_least_one_and_comes_from_the_environment_too(even, monkeypatch):
    with pytest.raises(forebay.OptionError, match="epochs="):
        forebay.Loader(even, 5, expected_epochs=0)
    monkeypatch.setenv("FOREBAY_EXPECTED_EPOCHS", "3")
    with forebay.Loader(even, 5, node_memory="16MiB") as loader:
        assert loader.config.given["expected_epochs"] == Given(value="3", origin="FOREBAY_EXPECTED_EPOCHS")
        assert loader.config.order.expected_epochs == 3
