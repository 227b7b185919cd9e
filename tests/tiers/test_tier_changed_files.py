"""Copies in tiers are the bytes of their sources, or are not used: changes and damage."""

from __future__ import annotations

import mmap
import os
import warnings

import pytest

import forebay
import support
from support import tiering
from support.ranks import tiers
from support.tiering import opening, tier

SLABS = f"forebay-{os.geteuid()}/v1/slabs"


def made(path, *places, **more):
    """Return a loader of raw samples with these tiers."""
    options = {"order": "shuffle", "node_memory": tiering.MEMORY, "world": "single", **more}
    dataset = forebay.open(path, **opening("raw"))
    strategy = forebay.Strategy(access="pread")
    return forebay.Loader(dataset, 12, strategy=strategy, tiers=list(places), **options)


def epoch(loader, number=0):
    """Return the steps of an epoch."""
    loader.set_epoch(number)
    return [tiers.step(batch) for batch in loader]


def plain(path):
    """Return the steps of an epoch without tiers."""
    with made(path) as loader:
        return epoch(loader)


def fill(path, place, daemon):
    """Fill a tier with a dataset."""
    with made(path, place) as loader:
        support.wait_until(lambda: epoch(loader) is not None and daemon.pieces() >= tiering.PIECES, "copies")


@pytest.mark.parametrize(("level", "number"), [("disk", 4), ("memory", 5)])
def test_a_change_during_a_job_is_noticed_within_a_moment_though_its_time_is_set_back(
    daemon, tmp_path, in_memory, tier_data, level, number
):
    path = tier_data.copies["raw", number]
    place = tier(in_memory if level == "memory" else tmp_path / "tier")
    before = path.stat()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with made(path, place) as loader:
            support.wait_until(
                lambda: epoch(loader) is not None and daemon.pieces() == tiering.PIECES, "copies"
            )
            with path.open("r+b") as file:
                file.write(tiering.rows(3).tobytes())
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            expected = plain(path)
            # Each rank looks once a second.
            support.wait_until(lambda: epoch(loader) == expected, "the change to be noticed")
            assert epoch(loader) == expected
    assert any("it was changed" in str(one.message) for one in caught)


def test_what_a_program_has_open_for_writing_is_not_copied(daemon, tmp_path, tier_data):
    path = tier_data.copies["raw", 6]
    place = tier(tmp_path / "tier")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        for at in range(0, len(mapping), mmap.PAGESIZE):
            mapping[at] = mapping[at]
        # Their pages are dirty: further stores leave the times as they are.
        tiering.settle([path])
        with warnings.catch_warnings(record=True) as caught, made(path, place) as loader:
            warnings.simplefilter("always")
            for _ in range(2):
                epoch(loader)
                mapping[: 1 << 20] = os.urandom(1 << 20)
        assert daemon.pieces() == 0
        assert sum("open for writing" in str(one.message) for one in caught) == 1
    expected = plain(path)
    for _ in range(2):
        with made(path, place) as loader:
            assert epoch(loader) == expected


def change_without_a_trace(path, content):
    """Change a file on tmpfs, whose times do not change by stores to pages that were read first."""
    before = path.stat()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        for at in range(0, len(mapping), mmap.PAGESIZE):
            mapping[at]
        mapping[:] = content
    after = path.stat()
    if (before.st_mtime_ns, before.st_ctime_ns) != (after.st_mtime_ns, after.st_ctime_ns):
        pytest.skip("this kernel sets the time of each store to a file on tmpfs")


def test_copies_of_an_earlier_job_are_compared_with_a_sample_of_the_source(daemon, tmp_path, in_memory):
    path = in_memory / "x.raw"
    path.write_bytes(tiering.rows().tobytes())
    tiering.settle([path])
    place = tier(tmp_path / "tier")
    fill(path, place, daemon)
    change_without_a_trace(path, tiering.rows(2).tobytes())
    expected = plain(path)
    with pytest.warns(RuntimeWarning, match="its copies in tiers are not its bytes"):
        loader = made(path, place)
    with loader:
        assert epoch(loader) == expected
    with made(path, place) as loader:
        assert epoch(loader) == expected


@pytest.mark.parametrize("ends", [False, True])
def test_copies_that_were_damaged_between_jobs_are_not_used(daemon, tmp_path, tier_data, ends, monkeypatch):
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    path = tier_data.formats["raw"]
    place = tmp_path / "tier"
    fill(path, tier(place), daemon)
    expected = plain(path)
    if ends:
        daemon.end()
    for slab in (place / SLABS).iterdir():
        with slab.open("r+b") as file:
            for at in range(0, slab.stat().st_size, 100_000):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1]))
    with made(path, tier(place)) as loader:
        assert epoch(loader) == expected
        # They are copied anew.
        support.wait_until(lambda: epoch(loader) == expected and is_served(loader), "sound copies")


def is_served(loader):
    """Whether an epoch comes from the tier alone."""
    before = loader.stats()["levels"]["source"]["bytes"]
    epoch(loader)
    return loader.stats()["levels"]["source"]["bytes"] == before


def test_sound_copies_of_an_earlier_job_are_used_and_nothing_is_read_from_the_source(
    daemon, tmp_path, tier_data, monkeypatch
):
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    path = tier_data.formats["raw"]
    place = tier(tmp_path / "tier")
    fill(path, place, daemon)
    with made(path, place) as loader:
        epoch(loader)
        assert loader.stats()["levels"]["source"]["bytes"] == 0
