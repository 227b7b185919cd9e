"""What reaches the source of a dataset with storage tiers, counted by an emulated file system."""

from __future__ import annotations

import pytest

import forebay
import support
from forebay_lab import pfs
from support.emulator import needs_fuse
from support.ranks import tiers
from support.tiering import WHOLE_CHUNKS, tier

pytestmark = needs_fuse

DATA_BYTES = WHOLE_CHUNKS << 20
SAMPLE_BYTES = 16 << 10
OPENING = {"format": "raw", "record_bytes": SAMPLE_BYTES}


@pytest.fixture
def server(tier_data, points):
    """An emulated file system without delays; a mount has the data."""
    server = pfs.Server.start(tier_data.whole, points[:1], preset="none")
    len(forebay.open(points[0] / "x.raw", **OPENING))
    server.drop_caches(points[0])
    server.reset()
    yield server
    server.end()


def read_bytes(server):
    """Return what was read since the last call, and let nothing of it come from memory again."""
    found = sum(node["read_bytes"] for node in server.stats()["nodes"])
    server.drop_caches(server.mounts[0])
    server.reset()
    return found


def options(*levels, **more):
    return {
        "batch_size": 16,
        "order": "shuffle",
        "node_memory": "512MiB",
        "tiers": list(levels),
        "strategy": forebay.Strategy(access="pread", direct=True),
        **more,
    }


def run(pool, server, ranks=1, **more):
    path = str(server.mounts[0] / "x.raw")
    return pool.run(ranks, tiers.deliver, path=path, opening=OPENING, **more)


def once(directory, job):
    """Whether data are read once by a job; on a busy machine some copies come too late."""
    for attempt in range(support.TRIES):
        found = job(tier(directory / f"tier-{attempt}"))
        assert found >= DATA_BYTES
        if found <= 1.02 * DATA_BYTES:
            return True
    return False


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("access", ["pread", "io_uring"])
def test_data_that_fit_are_read_once_by_all_ranks_and_jobs(pool, daemon, server, tmp_path, ranks, access):
    strategy = forebay.Strategy(access=access, direct=True)
    made = {}

    def job(level):
        made.update(options(level, batch_size=16 // ranks, strategy=strategy))
        run(pool, server, ranks, options=made, epochs=2)
        return read_bytes(server)

    assert once(tmp_path, job)
    run(pool, server, ranks, options=made, epochs=2)
    assert read_bytes(server) <= 0.001 * DATA_BYTES


@pytest.mark.full
def test_two_jobs_at_once_read_the_data_once(pool, daemon, server, tmp_path):
    def jobs(level):
        arguments = {"path": str(server.mounts[0] / "x.raw"), "opening": OPENING, "options": options(level)}
        ranks = pool.ranks(2)
        for number, rank in enumerate(ranks):
            rank.begin(tiers.deliver, {"rank": 0, "size": 1, "job": f"{level}-{number}"}, arguments)
        one, other = pool.outcomes(ranks)
        assert one["steps"] == other["steps"]
        return read_bytes(server)

    assert once(tmp_path, jobs)


@pytest.mark.sweep(together=2)
@pytest.mark.parametrize("order", ["sequential", "contiguous", "shuffle", "group"])
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.full
def test_ranks_and_jobs_read_twice_only_what_they_count_as_uncopied(
    pool, daemon, server, tmp_path, order, jobs, direct
):
    """Four ranks of one job, or two jobs at once: each byte is read from the source once."""
    size = 4 if jobs == 1 else 1
    strategy = forebay.Strategy(access="pread", direct=direct)
    for attempt in range(support.TRIES):
        # With `epochs`, no read ahead goes on after the counts were taken. A rank that closes gives
        # up its pending copies, which others may still need: all stay until the last is through.
        made = options(
            tier(tmp_path / f"tier-{attempt}"),
            batch_size=16 // size,
            order=order,
            strategy=strategy,
            expected_epochs=2,
        )
        arguments = {"path": str(server.mounts[0] / "x.raw"), "opening": OPENING, "options": made}
        arguments["stays"] = True
        ranks = pool.ranks(size * jobs)
        for number, rank in enumerate(ranks):
            job = f"{made['tiers'][0]}-{number // size}"
            rank.begin(tiers.deliver, {"rank": number % size, "size": size, "job": job}, arguments)
        assert [rank.hear() for rank in ranks] == ["delivered"] * len(ranks)
        for rank in ranks:
            rank.tell("end")
        found = pool.outcomes(ranks)
        uncopied_bytes = sum(one["uncopied"] for one in found)
        source_bytes = read_bytes(server)
        assert source_bytes >= DATA_BYTES
        if direct:
            assert source_bytes <= 1.01 * DATA_BYTES + uncopied_bytes
            return
        # The page cache serves what is read again before it is copied, but a busy kernel may drop
        # pages.
        if source_bytes <= 1.01 * DATA_BYTES:
            return
    raise AssertionError(f"{source_bytes} bytes were read of {DATA_BYTES}")


@pytest.mark.parametrize("order", ["sequential", "shuffle"])
def test_a_tier_with_room_for_half_halves_what_is_read(pool, daemon, server, tmp_path, order):
    plain = run(pool, server, options=options(order=order, expected_epochs=3), epochs=3)[0]["steps"]
    plain_bytes = read_bytes(server)
    made = options(tier(tmp_path / "tier", DATA_BYTES // 2), order=order, expected_epochs=3)
    for _ in range(support.TRIES):
        assert run(pool, server, options=made, epochs=3)[0]["steps"] == plain
        found_bytes = read_bytes(server)
        if found_bytes == pytest.approx(plain_bytes / 2, rel=0.02):
            return
    assert found_bytes == pytest.approx(plain_bytes / 2, rel=0.02)


@pytest.mark.full
def test_a_stretch_that_cannot_be_read_costs_the_same_samples(pool, daemon, server, tmp_path):
    server.fail_range("x.raw", (5 << 20) + 20_000, (5 << 20) + 50_000)
    strategy = forebay.Strategy(access="pread")
    made = options(tier(tmp_path / "tier"), strategy=strategy, bad_samples="skip")
    (found,) = run(pool, server, options=made)
    (again,) = run(pool, server, options=made)
    del made["tiers"]
    (plain,) = run(pool, server, options=made)
    assert [number for number, _ in plain["bad"]] == [321, 322, 323]
    for one in (found, again):
        assert one["steps"] == plain["steps"]
        assert [number for number, _ in one["bad"]] == [321, 322, 323]
