"""The index build retains inline values where a second read would cost a network."""

from __future__ import annotations

import pytest

import forebay
import support
from forebay_lab import pfs
from support.emulator import SPEC, needs_fuse
from support.ranks import plain, work

pytestmark = pytest.mark.usefixtures("no_held_memory")

RECORDS = 8000
RECORD_BYTES = 200
# What the check for changes at the end of an epoch may read: the meta pages, as the kernel reads
# ahead of them.
CHECK_BYTES = 128 << 10


@pytest.fixture
def records():
    return [support.record(number, RECORD_BYTES) for number in range(RECORDS)]


@pytest.fixture
def server(backing, points, records):
    """A small emulated file system with a dataset of inline values at each of two mounts."""
    support.write_lmdb(backing / "inline.lmdb", records)
    return pfs.Server.start(backing, points, spec=SPEC)


def read_bytes(server):
    return sum(node["read_bytes"] for node in server.stats()["nodes"])


@needs_fuse
def test_an_epoch_behind_an_index_build_reads_nothing_again(server, points, records):
    path = points[0] / "inline.lmdb"
    with forebay.Loader(path, 50, order="shuffle") as loader:
        assert loader.config.memory.retained_bytes >= RECORDS * RECORD_BYTES
        server.drop_caches(points[0])
        server.reset()
        for _ in range(2):
            for batch in loader:
                assert [bytes(data) for data in batch["data"]] == [
                    records[number] for number in batch.indices
                ]
        assert read_bytes(server) <= CHECK_BYTES
        assert loader.stats()["read_bytes"] == 0
    # With a sidecar there is no build, and the values are read as those of any dataset.
    server.drop_caches(points[0])
    server.reset()
    with forebay.Loader(path, 50, order="shuffle") as loader:
        assert loader.config.memory.retained_bytes == 0
        for batch in loader:
            assert [bytes(data) for data in batch["data"]] == [records[number] for number in batch.indices]
    assert read_bytes(server) > RECORDS * RECORD_BYTES


@needs_fuse
@pytest.mark.parametrize("access", ["pread", "io_uring", "mmap"])
def test_kept_values_are_read_by_every_access(server, points, records, access):
    with forebay.Loader(points[0] / "inline.lmdb", 64, order="group", strategy=access) as loader:
        assert loader.config.memory.retained_bytes >= RECORDS * RECORD_BYTES
        for batch in loader:
            assert [bytes(data) for data in batch["data"]] == [records[number] for number in batch.indices]


@needs_fuse
def test_values_that_do_not_fit_half_of_the_memory_are_not_kept(server, points, records):
    with forebay.Loader(points[0] / "inline.lmdb", 50, order="sequential", node_memory="3MiB") as loader:
        assert loader.config.memory.retained_bytes == 0
        assert [bytes(data) for batch in loader for data in batch["data"]] == records


@needs_fuse
def test_a_second_loader_with_less_memory_than_the_kept_values_is_told_so(server, points):
    dataset = forebay.open(points[0] / "inline.lmdb")
    with forebay.Loader(dataset, 50, order="sequential", node_memory="8MiB") as first:
        assert first.config.memory.retained_bytes >= RECORDS * RECORD_BYTES
        with forebay.Loader(dataset, 50, order="sequential", node_memory="8MiB", name="equal") as second:
            # The values are counted once for both.
            kept = (8 << 20) - first.config.memory.budget_bytes
            assert kept >= RECORDS * RECORD_BYTES
            assert second.config.memory.budget_bytes == (8 << 20) - kept - first.config.memory.region_bytes
        # Less than the kept values alone, which the dataset has brought along.
        with pytest.raises(forebay.OptionError, match="node_memory=1048576"):
            forebay.Loader(dataset, 50, order="sequential", node_memory="1MiB", name="second")


@needs_fuse
def test_all_ranks_of_a_node_read_what_their_leader_kept(pool, server, points, records):
    path = str(points[0] / "inline.lmdb")
    options = {"batch_size": 40, "order": "sequential"}
    found = pool.run(2, work.deliver, path=path, options=options, epochs=2)
    for epoch in range(2):
        assert plain.joined(plain.together(found, epoch)) == [
            list(range(step * 80, (step + 1) * 80)) for step in range(RECORDS // 80)
        ]
    # Each byte went over the network once, for the index; the values came from memory.
    assert read_bytes(server) <= 1.3 * (server.backing / "inline.lmdb" / "data.mdb").stat().st_size
