"""Later jobs read what earlier ones copied, whatever became of the daemon, unless data changed."""

from __future__ import annotations

import signal
import warnings

import pytest

import forebay
import support
from support import tiering
from support.ranks import tiers
from support.tiering import MEMORY, opening, tier

KINDS = ("raw", "lmdb", "folder")


def options(level, **more):
    strategy = forebay.Strategy(access="pread")
    return {
        "batch_size": 12,
        "order": "shuffle",
        "node_memory": MEMORY,
        "tiers": [level],
        "strategy": strategy,
        **more,
    }


def run(pool, path, kind, level=None, **more):
    made = options(level, **more.pop("options", {}))
    if level is None:
        del made["tiers"]
    return pool.run(1, tiers.deliver, path=str(path), opening=opening(kind), options=made, **more)[0]


def filled(pool, path, kind, level):
    """Fill a tier; return the steps."""
    for _ in range(support.TRIES):
        found = run(pool, path, kind, level)
        if found["levels"][-1]["source"]["bytes"] == 0:
            return found["steps"]
    raise AssertionError("the tier does not fill")


@pytest.mark.sweep(together=1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["none", "stop", "SIGTERM", "SIGKILL"])
def test_a_later_job_reads_nothing_from_the_source(pool, daemon, tmp_path, tier_data, kind, end):
    level = tier(tmp_path / "tier")
    steps = filled(pool, tier_data.formats[kind], kind, level)
    if end == "stop":
        daemon.end()
    elif end != "none":
        daemon.kill(signal.Signals[end])
    later = run(pool, tier_data.formats[kind], kind, level)
    assert later["steps"] == steps
    assert later["levels"][-1]["source"]["bytes"] == 0
    assert later["levels"][-1][str(tmp_path / "tier")]["bytes"] > 0
    assert (later["warnings"], len(daemon.pids())) == ([], 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_loaders_go_on_when_the_daemon_dies_and_start_another_one(pool, daemon, tmp_path, tier_data, number):
    path = tier_data.formats["raw"]
    expected = run(pool, path, "raw", epochs=1)["steps"]
    made = options(tier(tmp_path / "tier"), expected_epochs=1000)
    dataset = forebay.open(path, **opening("raw"))
    with forebay.Loader(dataset, world="single", **made) as loader:
        assert [tiers.step(batch) for batch in loader] == expected
        (first,) = daemon.pids()
        daemon.kill(number)
        # Copies can still be read; a job that comes meanwhile starts a daemon.
        loader.set_epoch(0)
        assert [tiers.step(batch) for batch in loader] == expected
        second = run(pool, path, "raw", tier(tmp_path / "tier"), epochs=1)
        assert second["steps"] == expected
        loader.set_epoch(0)
        assert [tiers.step(batch) for batch in loader] == expected
    assert first not in daemon.pids()


@pytest.mark.full
def test_a_loader_starts_a_daemon_that_died_when_it_copies(pool, daemon, tmp_path, tier_data):
    path = tier_data.formats["raw"]
    expected = run(pool, path, "raw", epochs=1)["steps"]
    dataset = forebay.open(path, **opening("raw"))
    with forebay.Loader(dataset, world="single", **options(tier(tmp_path / "tier"))) as loader:
        daemon.kill()

        def is_copied():
            loader.set_epoch(0)
            assert [tiers.step(batch) for batch in loader] == expected
            return daemon.pids() != [] and daemon.pieces() == tiering.PIECES

        support.wait_until(is_copied, "copies")
    later = run(pool, path, "raw", tier(tmp_path / "tier"))
    assert (later["levels"][-1]["source"]["bytes"], later["warnings"]) == (0, [])


@pytest.mark.full
def test_jobs_with_other_tiers_fill_their_own(pool, daemon, tmp_path, tier_data):
    path = tier_data.formats["raw"]
    # More than a node may have at a time; a loader holds one of them.
    with forebay.Loader(
        forebay.open(path, **opening("raw")), world="single", **options(tier(tmp_path / "held"))
    ) as loader:
        steps = [tiers.step(batch) for batch in loader]
        for number in range(12):
            found = run(pool, path, "raw", tier(tmp_path / f"{number}"), epochs=1)
            assert (found["steps"], found["warnings"]) == (steps, [])
        loader.set_epoch(0)
        assert [tiers.step(batch) for batch in loader] == steps
    whole = filled(pool, path, "raw", tier(tmp_path / "held"))
    # All of them still hold what they held.
    for number in range(12):
        assert filled(pool, path, "raw", tier(tmp_path / f"{number}")) == whole
    assert len(daemon.pids()) == 1


def in_place(path):
    with path.open("r+b") as file:
        file.seek(100_000)
        file.write(bytes(200_000))


def by_rename(path):
    path.with_suffix(".new").write_bytes(tiering.rows(2).tobytes())
    path.with_suffix(".new").rename(path)


def one_file(path):
    name = max(path.rglob("*.bin"), key=lambda name: name.stat().st_size)
    name.write_bytes(bytes(name.stat().st_size))


# The change, and the number of the data that it is made to.
CHANGES = {"in place": (in_place, 0), "by rename": (by_rename, 1), "one file": (one_file, 0)}


@pytest.mark.parametrize("change", CHANGES)
def test_data_that_changed_between_jobs_are_read_anew(pool, daemon, tmp_path, tier_data, change):
    make, number = CHANGES[change]
    kind = "folder" if make is one_file else "raw"
    path = tier_data.copies[kind, number]
    level = tier(tmp_path / "tier")
    before = filled(pool, path, kind, level)
    make(path)
    expected = run(pool, path, kind)["steps"]
    assert expected != before
    for _ in range(2):
        found = run(pool, path, kind, level)
        assert (found["steps"], found["warnings"]) == (expected, [])


def outcome(loader):
    """Go through an epoch; return its steps, the kind of its error, and the number of warnings."""
    steps, kind = [], None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            steps.extend(tiers.step(batch) for batch in loader)
        except forebay.ForebayError as error:
            kind = type(error)
    return steps, kind, len(caught)


@pytest.mark.parametrize("change", ["in place", "by rename"])
def test_data_that_change_between_epochs_are_read_as_without_tiers(pool, daemon, tmp_path, tier_data, change):
    make, number = CHANGES[change]
    kind, path = "raw", tier_data.copies["raw", number + 2]
    level = tier(tmp_path / "tier")
    filled(pool, path, kind, level)
    dataset = forebay.open(path, **opening(kind))
    made = options(level)
    plain = {name: value for name, value in made.items() if name != "tiers"}
    with (
        forebay.Loader(dataset, world="single", name="tiered", **made) as tiered,
        forebay.Loader(dataset, world="single", name="plain", **plain) as plain,
    ):
        assert outcome(tiered) == outcome(plain)
        make(path)
        tiered.set_epoch(5)
        plain.set_epoch(5)
        steps, error, told = outcome(tiered)
        expected, expected_error, expected_told = outcome(plain)
    assert error == expected_error
    assert told <= expected_told + 1
    # An error comes as soon as a look at the file finds it.
    common = min(len(steps), len(expected)) if error else len(expected)
    assert steps[:common] == expected[:common]


def test_a_loader_whose_daemon_ended_never_takes_slabs_of_other_data_for_its_own(
    pool, daemon, tmp_path, in_memory, tier_data
):
    # What is in memory goes with its daemon, also while a loader still uses it.
    level = tier(in_memory, "16MiB")
    expected = filled(pool, tier_data.formats["raw"], "raw", level)
    dataset = forebay.open(tier_data.formats["raw"], **opening("raw"))
    with forebay.Loader(dataset, world="single", **options(level)) as loader:
        daemon.kill(signal.SIGTERM)
        filled(pool, tier_data.formats["tfrecord"], "tfrecord", level)
        found = [tiers.step(batch) for _ in range(2) for batch in loader]
    assert found == expected


def test_a_daemon_without_idle_time_serves_the_loader_that_started_it(
    pool, daemon, tmp_path, tier_data, monkeypatch
):
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "0")
    found = run(pool, tier_data.formats["raw"], "raw", tier(tmp_path / "tier"))
    assert found["warnings"] == []
    assert found["copies"]
