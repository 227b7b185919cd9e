"""The promises for data on other nodes: large announced reads, at the fastest concurrency."""

from __future__ import annotations

import os

import pytest

import forebay
import support
from forebay_lab import pfs
from support.emulator import needs_fuse
from support.ranks import plain, work

pytestmark = needs_fuse

# 1,200 records of 40 to 80 KB, 70 MB: more blocks of 8 MiB than four readers announce ahead.
LARGE = 1200
GROUPS = {
    "small groups": {"samples": 7, "window": 3},
    "groups larger than a block": {"samples": 300, "window": 1},
    "one group": {"samples": LARGE, "window": 1},
    "windows that overlap blocks": {"samples": 64, "window": 4, "lanes": 2},
}


@pytest.fixture
def far(backing, points):
    """A directory of this node, and where it is mounted as one of other nodes."""
    server = pfs.Server.start(backing, points, preset="none")
    yield backing, points[0], server
    server.end()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A database of the large records, and its records."""
    values = [support.record(number, 40_000 + number * 33) for number in range(LARGE)]
    return support.write_lmdb(tmp_path_factory.mktemp("large") / "large.lmdb", values), values


@pytest.mark.parametrize("order", ["sequential", "contiguous", "shuffle", "group"])
def test_every_number_of_ranks_delivers_what_the_plain_reader_does(pool, far, order):
    near, mount, server = far
    local = plain.write_mixed(near)
    for ranks in (1, 2, 3, 4):
        options = {"batch_size": 12 // ranks, **plain.ORDERS[order], "seed": 3}
        expected = plain.expected(local, options, ranks, 3)
        server.drop_caches(mount)
        found = pool.run(ranks, work.deliver, path=str(mount / "mixed.lmdb"), options=options, epochs=3)
        for epoch in range(3):
            steps = plain.together(found, epoch)
            assert (plain.joined(steps) if order == "group" else steps) == expected[epoch]


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("memory", ["least", "512MiB"])
def test_groups_of_any_size_and_in_any_memory_are_those_of_a_local_file(far, large, name, memory):
    near, mount, server = far
    whole, values = large
    local = near / "large.lmdb"
    local.mkdir()
    os.link(whole / "data.mdb", local / "data.mdb")
    order = forebay.Group(**GROUPS[name])
    with forebay.Loader(local, 50, order=order, expected_epochs=1, seed=4) as loader:
        expected = [[int(number) for number in batch.indices] for batch in loader]
    path = mount / "large.lmdb"
    if memory == "least":
        with pytest.raises(forebay.OptionError, match="node_memory=1048576") as raised:
            forebay.Loader(path, 50, order=order, expected_epochs=1, seed=4, node_memory=1 << 20)
        memory = str(raised.value).split('node_memory="')[1].split('"')[0]
    for _ in range(2):
        server.drop_caches(mount)
        with forebay.Loader(path, 50, order=order, expected_epochs=1, seed=4, node_memory=memory) as loader:
            assert loader.config.reading.readers == 4
            for batch, ids in zip(loader, expected, strict=True):
                assert [int(number) for number in batch.indices] == ids
                assert all(
                    bytes(row) == values[number] for row, number in zip(batch["data"], ids, strict=True)
                )


@pytest.mark.parametrize("direct", [None, False])
def test_readers_drop_what_they_have_read_of_files_larger_than_half_the_memory_unless_told_otherwise(
    far, direct
):
    near, mount, server = far
    record_bytes, batches = 1 << 20, 12
    with (near / "records.bin").open("wb") as file:
        file.truncate(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // record_bytes * record_bytes)
    data = forebay.open(mount / "records.bin", format="raw", record_bytes=record_bytes)
    for _ in range(support.TRIES):
        server.drop_caches(mount)
        strategy = forebay.Strategy(direct=direct)
        with forebay.Loader(data, 8, order="sequential", strategy=strategy) as loader:
            assert not loader.config.reading.direct
            for _batch, _ in zip(loader, range(batches), strict=False):
                pass
        server.reset()
        with (mount / "records.bin").open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            file.read(batches // 2 * 8 * record_bytes)
        again = server.stats()["nodes"][0]["read_bytes"] > 0
        # Another process may drop the page cache of the machine in between.
        if again == (direct is None):
            return
    raise AssertionError("what was read is still cached" if direct is None else "what was read is not cached")


@pytest.mark.parametrize("order", ["sequential", "group"])
def test_resume_equals_uninterrupted(pool, far, order):
    near, mount, server = far
    plain.write_even(near)
    path = str(mount / "even.lmdb")
    options = {"batch_size": 4, **plain.ORDERS[order], "seed": 8}
    whole = pool.run(3, work.deliver, path=path, options=options, epochs=2)
    for stop in (1, whole[0]["steps"] - 1, whole[0]["steps"] + 2):
        server.drop_caches(mount)
        first = pool.run(3, work.deliver, path=path, options=options, epochs=2, stop=stop)
        state = first[0]["state"]
        rest = pool.run(3, work.deliver, path=path, options=options, epochs=2 - state["epoch"], state=state)
        for one, begun, ended in zip(whole, first, rest, strict=True):
            flat = [step for epoch in (*begun["found"], *ended["found"]) for step in epoch]
            assert flat == [step for epoch in one["found"] for step in epoch]
