"""Tiers that fail in any way cost time and at most a warning: every batch is right."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings

import pytest

import forebay
import support
from support import tiering
from support.ranks import tiers
from support.tiering import MEMORY, opening, tier

LEVELS = ("disk", "memory")


@pytest.fixture(params=LEVELS)
def place(request, tmp_path, in_memory):
    """A directory of a tier, on a disk and in memory."""
    if request.param == "memory":
        return in_memory / "tier"
    return tmp_path / "tier"


@pytest.fixture(scope="module")
def expected(tier_data):
    """The steps of epoch 0 and 1 without tiers."""
    with made(tier_data) as loader:
        return [[tiers.step(batch) for batch in loader] for _ in range(2)]


def made(data, *levels, kind="raw", **more):
    dataset = forebay.open(data.formats[kind], **opening(kind))
    strategy = forebay.Strategy(access="pread")
    options = {"order": "shuffle", "node_memory": MEMORY, "strategy": strategy, **more}
    if levels:
        options["tiers"] = list(levels)
    return forebay.Loader(dataset, 12, world="single", **options)


def slabs(place):
    return sorted(place.glob("forebay-*/v1/slabs/*"))


def log_of(place):
    (found,) = place.glob("forebay-*/v1/log")
    return found


def epoch(loader, number=0):
    """Go through an epoch, whose reads begin now."""
    loader.set_epoch(number)
    return [tiers.step(batch) for batch in loader]


def remove(place):
    shutil.rmtree(place)


def truncate(place):
    for slab in slabs(place):
        os.truncate(slab, 0)


def shorten(place):
    for slab in slabs(place):
        os.truncate(slab, slab.stat().st_size // 2 + 1000)


def unlink(place):
    for slab in slabs(place):
        slab.unlink()


def lose_log(place):
    log_of(place).unlink()


@pytest.mark.parametrize("harm", [remove, truncate, shorten, unlink, lose_log])
def test_a_tier_that_is_damaged_during_a_training_costs_no_batch(daemon, tier_data, expected, place, harm):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # A part is copied; the harm comes while the rest is.
        with made(tier_data, tier(place)) as loader:
            batches = iter(loader)
            found = [tiers.step(next(batches)) for _ in range(3)]
            support.wait_until(lambda: slabs(place) != [], "a slab")
            harm(place)
            found += [tiers.step(batch) for batch in batches]
            assert found == expected[0]
            for _ in range(3):
                assert [epoch(loader, number) for number in (0, 1)] == expected
    assert len(caught) <= 1
    # A later job finds what is left of it.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with made(tier_data, tier(place)) as loader:
            assert [epoch(loader, number) for number in (0, 1)] == expected
    assert len(caught) <= 1


@pytest.mark.sweep(together=1)
@pytest.mark.parametrize("harm", [truncate, shorten, unlink, lose_log])
@pytest.mark.parametrize("killed", [False, True])
def test_a_tier_that_is_damaged_between_jobs_costs_no_batch(daemon, tier_data, expected, place, harm, killed):
    with made(tier_data, tier(place)) as loader:
        support.wait_until(
            lambda: epoch(loader) == expected[0] and daemon.pieces() == tiering.PIECES, "copies"
        )
    if killed:
        daemon.kill()
    harm(place)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with made(tier_data, tier(place)) as loader:
                assert [epoch(loader, number) for number in (0, 1)] == expected
        assert len(caught) <= 1


def test_a_tier_below_one_chunk_is_refused(daemon, tier_data, tmp_path):
    with pytest.raises(forebay.OptionError, match="expected at least 1MiB"):
        made(tier_data, tier(tmp_path / "tier", (1 << 20) - 1))


@pytest.mark.parametrize("program", ["/bin/false", "/no/such/program"])
def test_without_a_daemon_the_source_is_read(tier_data, expected, place, monkeypatch, daemon, program):
    monkeypatch.setattr(sys, "executable", program)
    with pytest.warns(RuntimeWarning) as warned:
        loader = made(tier_data, tier(place))
    assert len(warned) == 1
    with loader:
        assert [epoch(loader, number) for number in (0, 1)] == expected
        assert [fallback.wanted for fallback in loader.config.fallbacks] == ["tiers"]
        assert loader.config.tiers is None
    assert daemon.pids() == []


def test_a_daemon_that_cannot_be_started_again_costs_no_batch(
    tier_data, expected, place, monkeypatch, daemon
):
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "1000")
    subprocess.run([sys.executable, "-m", "forebay.tools.tiers"], check=True)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with made(tier_data, tier(place)) as loader:
            assert loader.config.tiers is not None
            daemon.kill(signal.SIGTERM)
            for _ in range(3):
                assert [epoch(loader, number) for number in (0, 1)] == expected
    assert len(caught) <= 1


def test_a_daemon_that_is_stopped_costs_no_batch(daemon, tier_data, expected, tmp_path):
    place = tmp_path / "tier"
    with made(tier_data, tier(place)) as loader:
        (pid,) = daemon.pids()
        os.kill(pid, signal.SIGSTOP)
        try:
            assert [epoch(loader, number) for number in (0, 1)] == expected
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [epoch(loader, number) for number in (0, 1)] == expected


SMALL = """
import json, os, pathlib, sys, warnings
sys.path[:0] = json.loads(sys.argv[1])
import forebay
from support import tiering
from tests.tiers import test_tier_faults as tests
from support.ranks import tiers

data, place, harm, expected = json.loads(sys.argv[2])
class Data:
    formats = {"raw": pathlib.Path(data)}
place = pathlib.Path(place)
level = tiering.tier(place, "16MiB:keep")
daemon = tiering.Daemon(pathlib.Path(os.environ["FOREBAY_RUNTIME_DIR"]))
warnings.simplefilter("error")
def check(fills=False):
    with tests.made(Data, level) as loader:
        if fills:
            with open(place / "other", "wb") as other:
                free = os.statvfs(place)
                os.posix_fallocate(other.fileno(), 0, free.f_bavail * free.f_bsize - (5 << 19))
        found = [tests.epoch(loader, number) for number in (0, 1, 0, 1)]
        assert [[[list(ids), bytes] for ids, bytes in steps] for steps in found[-2:]] == expected
        assert found[:2] == found[2:]
        return loader.stats()["levels"]
levels = [check(True)] if harm == "full" else [check(), check()]
daemon.end()
if harm == "read-only":
    assert os.system(f"mount -o remount,ro {place}") == 0
    levels.append(check())
    daemon.end()
print(json.dumps([[one[str(place)], one["source"]] for one in levels]))
"""


def on_a_small_disk(tmp_path, data, expected, harm):
    """Train with a tier on a disk of 32 MiB; return the counters of each job."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    told = [
        json.dumps(sys.path),
        json.dumps([os.fspath(data.formats["raw"]), os.fspath(place), harm, expected]),
    ]
    script = f'mount -t tmpfs -o size=32m none {place} && exec "$@"'
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script, "sh", sys.executable, "-c", SMALL, *told],
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_tier_on_a_disk_that_others_fill_takes_what_it_has_room_for(daemon, tmp_path, tier_data, expected):
    levels = on_a_small_disk(tmp_path, tier_data, expected, "full")
    assert levels[-1][0]["skipped"] == 0
    assert levels[-1][1]["bytes"] > 0


@pytest.mark.full
def test_a_tier_that_becomes_read_only_still_serves(daemon, tmp_path, tier_data, expected):
    levels = on_a_small_disk(tmp_path, tier_data, expected, "read-only")
    assert levels[-1][0]["bytes"] > 0
    assert levels[-1][1]["bytes"] == 0


@pytest.mark.full
def test_a_tier_that_is_made_anew_under_a_loader_costs_no_batch(daemon, tier_data, place):
    path = tier_data.whole / "x.raw"
    dataset = forebay.open(path, format="raw", record_bytes=16 << 10)
    # So little that only a part is read ahead.
    options = {"order": "sequential", "node_memory": "20MiB", "strategy": "pread", "world": "single"}
    with forebay.Loader(dataset, 16, **options) as loader:
        expected = epoch(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with forebay.Loader(dataset, 16, tiers=[tier(place, "64MiB")], **options) as loader:
            batches = iter(loader)
            found = [tiers.step(next(batches))]
            support.wait_until(lambda: daemon.pieces() > 0, "copies")
            remove(place)
            place.mkdir()
            daemon.kill()
            found += [tiers.step(batch) for batch in batches]
            assert found == expected
            # The loader asks for a daemon again after a second.
            for _ in range(4):
                assert epoch(loader) == expected
                time.sleep(0.4)
        with forebay.Loader(dataset, 16, tiers=[tier(place, "64MiB")], **options) as loader:
            assert [epoch(loader) for _ in range(2)] == [expected] * 2


def test_copies_are_made_of_whatever_memory_there_is(daemon, tier_data, expected, place):
    # The copy buffers are shorter than a chunk.
    with made(tier_data, tier(place), order="sequential", node_memory="3MiB") as loader:
        assert loader.config.tiers.buffer_bytes < 1 << 20
        first = epoch(loader)
        support.wait_until(lambda: epoch(loader) == first and daemon.pieces() == tiering.PIECES, "copies", 30)


def test_copies_leave_the_memory_that_an_order_needs(daemon, tier_data, place):
    dataset = forebay.open(tier_data.whole / "x.raw", format="raw", record_bytes=16 << 10)
    options = {"order": "shuffle", "strategy": "pread", "world": "single"}
    with forebay.Loader(dataset, 100, **options) as loader:
        expected, least = epoch(loader), loader.config.memory.minimum_bytes
    # A quarter for copies would be too much.
    with forebay.Loader(
        dataset, 100, node_memory=least + (1 << 19), tiers=[tier(place)], **options
    ) as loader:
        assert 1 << 17 <= loader.config.tiers.buffer_bytes <= 1 << 19 < least // 4
        assert epoch(loader) == expected
