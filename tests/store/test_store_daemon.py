"""The store daemon: later jobs get shares from memory, with the bytes of the source."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

import forebay
import support
from forebay.cli.commands import cli
from forebay_lab import pfs
from support import documented_keys, tiering
from support.emulator import needs_fuse
from support.ranks import tiers, work
from support.ranks.pool import Raised
from support.store_daemons import store_daemons  # noqa: F401
from support.tiering import DATA_BYTES, FORMATS, MEMORY, opening, settle

LARGE_BYTES = 48 << 20
RECORD_BYTES = 16 << 10


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of many chunks, and four of a few, which are old enough to be kept."""
    directory = tmp_path_factory.mktemp("files")
    large = directory / "large" / "x.raw"
    large.parent.mkdir()
    large.write_bytes(np.random.default_rng(3).bytes(LARGE_BYTES))
    several = [tiering.write(directory / str(number), "raw", tiering.rows(number)) for number in range(4)]
    settle([directory])
    return large, several


@pytest.fixture
def large(files):
    """A file of many chunks."""
    return files[0]


@pytest.fixture
def several(files):
    """Datasets of the same length with other bytes."""
    return files[1]


@pytest.fixture
def job(pool, store_daemons):  # noqa: F811
    """Run a job on nodes that have daemons; return what each rank found."""

    def run(path, kind, nodes, *, record_bytes=None, store="auto", batch=12, **more):
        level = {"strategy": "pread"} if store is None else {"store": store}
        opened = {"format": kind, "record_bytes": record_bytes} if record_bytes else opening(kind)
        options = {"batch_size": batch // len(nodes), "order": "shuffle", "node_memory": MEMORY}
        arguments = {"path": str(path), "opening": opened, "options": {**options, **level}}
        where = {} if len(set(nodes)) == 1 else {"nodes": nodes, "over": "tcp"}
        environment = {"environment": lambda rank: store_daemons.variables(nodes[rank])}
        ranks = pool.begin(len(nodes), tiers.deliver, **where, **environment, **arguments, **more)
        found = pool.outcomes(ranks)
        for one in found:
            assert not isinstance(one, Raised), one.trace
            assert one["warnings"] == []
        return found

    return run


def steps_of(found):
    return [one["steps"] for one in found]


def leaders(found, nodes):
    """What the leader of each node found."""
    return [found[nodes.index(node)] for node in sorted(set(nodes))]


def total(found, nodes, key):
    return sum(one["store"][key] for one in leaders(found, nodes))


def read_of_source(found):
    return sum(one["levels"][-1]["source"]["bytes"] for one in found)


# --- the next job ---


@pytest.mark.sweep(together=1)
@pytest.mark.parametrize("nodes", [[0], [0, 0, 1], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("kind", FORMATS)
def test_the_next_job_reads_nothing_of_the_source(job, store_daemons, tier_data, kind, nodes):  # noqa: F811
    store_daemons.start(*sorted(set(nodes)))
    path = tier_data.formats[kind]
    plain = steps_of(job(path, kind, nodes, store=None))
    first = job(path, kind, nodes)
    assert steps_of(first) == plain
    assert total(first, nodes, "kept_bytes") == 0
    assert all(one["store"]["is_kept"] for one in first)
    second = job(path, kind, nodes)
    assert steps_of(second) == plain
    assert total(second, nodes, "loaded_bytes") == 0
    # Ranks read some compressed units of later epochs from the source, with any store.
    assert kind == "hdf5" or read_of_source(second) == 0
    assert total(second, nodes, "kept_bytes") == total(first, nodes, "loaded_bytes") > 0
    assert sum(one["kept"] for one in second) == total(second, nodes, "kept_bytes")
    assert all(one["fallbacks"] == [] for one in first + second)
    for node in set(nodes):
        (share,) = store_daemons.shares(node)
        assert (share["node"], share["nodes"], share["pids"]) == (node, len(set(nodes)), [])
        assert share["bytes"] == share["chunks"] << 20


@needs_fuse
def test_a_file_system_sees_no_read_of_the_next_job(job, store_daemons, large, points):  # noqa: F811
    server = pfs.Server.start(large.parent, points[:1], preset="none")
    store_daemons.start()
    arguments = {"path": points[0] / "x.raw", "kind": "raw", "nodes": [0, 0], "record_bytes": RECORD_BYTES}

    def read_bytes():
        server.drop_caches(points[0])
        server.reset()
        job(**arguments, epochs=1)
        return sum(node["read_bytes"] for node in server.stats()["nodes"])

    assert read_bytes() >= LARGE_BYTES
    assert read_bytes() < 0.01 * LARGE_BYTES
    server.end()


def test_a_daemon_that_was_restarted_has_no_share(job, store_daemons, tier_data):  # noqa: F811
    path = tier_data.formats["raw"]
    store_daemons.start()
    job(path, "raw", [0])
    store_daemons.stop()
    assert job(path, "raw", [0])[0]["store"]["is_kept"] is False
    store_daemons.start()
    assert job(path, "raw", [0])[0]["store"]["kept_bytes"] == 0
    assert job(path, "raw", [0])[0]["store"]["kept_bytes"] == DATA_BYTES


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (4, 2)])
def test_another_number_of_nodes_reads_only_what_they_lack(job, store_daemons, large, before, after):  # noqa: F811
    store_daemons.start(*range(max(before, after)))
    arguments = {"path": large, "kind": "raw", "record_bytes": RECORD_BYTES, "epochs": 1, "batch": 48}
    nodes = list(range(after))
    plain = steps_of(job(nodes=nodes, store=None, **arguments))
    job(nodes=list(range(before)), **arguments)
    found = job(nodes=nodes, **arguments)
    assert steps_of(found) == plain
    lacking = 1 - min(before, after) / max(before, after)
    assert total(found, nodes, "loaded_bytes") / LARGE_BYTES == pytest.approx(lacking, abs=0.12)
    assert total(found, nodes, "loaded_bytes") + total(found, nodes, "kept_bytes") == LARGE_BYTES
    # The shares of the earlier layout are gone from the nodes that have new ones.
    for node in nodes:
        (share,) = store_daemons.shares(node)
        assert share["nodes"] == after
    again = job(nodes=nodes, **arguments)
    assert (steps_of(again), total(again, nodes, "loaded_bytes")) == (plain, 0)


def test_a_part_of_the_data_is_kept_as_well(job, store_daemons, tier_data):  # noqa: F811
    nodes, path = [0, 0, 1], tier_data.formats["tfrecord"]
    store_daemons.start(0, 1)
    plain = steps_of(job(path, "tfrecord", nodes, store=None))
    first = job(path, "tfrecord", nodes, store="1MiB")
    second = job(path, "tfrecord", nodes, store="1MiB")
    assert steps_of(first) == steps_of(second) == plain
    assert total(first, nodes, "loaded_bytes") == total(second, nodes, "kept_bytes") > 0
    assert total(second, nodes, "loaded_bytes") == 0


# --- what is kept, and for how long ---


def load(path, **options):
    """Return a loader of this process."""
    dataset = forebay.open(path, **opening("raw"))
    return forebay.Loader(dataset, 12, node_memory=MEMORY, **{"store": "auto", **options})


def deliver(loader):
    """Return all steps of an epoch, and close the loader."""
    with loader:
        return [tiers.step(batch) for batch in loader]


def test_datasets_have_shares_of_their_own(store_daemons, several):  # noqa: F811
    store_daemons.start()
    plain = [deliver(load(path, store="none")) for path in several[:2]]
    for kept_bytes in (0, DATA_BYTES):
        train, validation = (load(path, name=path.parent.name) for path in several[:2])
        assert [one.config.store.kept_bytes for one in (train, validation)] == [kept_bytes] * 2
        (one, other) = store_daemons.status()["shares"]
        assert one["pids"] == other["pids"] == [os.getpid()]
        assert [deliver(train), deliver(validation)] == plain


def test_two_loaders_at_once_use_one_share(store_daemons, several):  # noqa: F811
    store_daemons.start()
    plain = deliver(load(several[0], store="none"))
    first = load(several[0], name="first")
    second = load(several[0], name="second")
    assert (first.config.store.kept_bytes, second.config.store.kept_bytes) == (0, DATA_BYTES)
    (share,) = store_daemons.status()["shares"]
    assert share["pids"] == [os.getpid()] * 2
    assert deliver(first) == plain
    support.wait_until(lambda: len(store_daemons.status()["shares"][0]["pids"]) == 1, "the first to end")
    assert deliver(second) == plain
    assert len(store_daemons.shares()) == 1


def test_the_least_recently_used_share_gives_way(store_daemons, several):  # noqa: F811
    store_daemons.start(memory=9 << 20)  # two shares of 4 MiB
    for number in (0, 1, 0, 2):
        deliver(load(several[number]))
    assert {share["path"] for share in store_daemons.shares()} == {str(several[0]), str(several[2])}
    # What is used does not give way.
    with load(several[0], name="a") as first, load(several[1], name="b"), load(several[2], name="c") as third:
        assert first.config.store.is_kept
        assert not third.config.store.is_kept
        assert [fallback.wanted for fallback in third.config.fallbacks] == ["kept_share"]
    assert {share["path"] for share in store_daemons.shares()} == {str(several[0]), str(several[1])}


@pytest.mark.filterwarnings("ignore:.*sidecar ignored. it is stale:RuntimeWarning")
def test_a_source_that_changed_is_loaded_again(store_daemons, several):  # noqa: F811
    store_daemons.start()
    path = several[3]
    deliver(load(path))
    with path.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"changed")
    plain = deliver(load(path, store="none"))
    loader = load(path)
    assert loader.config.store.kept_bytes == 0
    # A second change might have the same time, so the share is not kept yet.
    assert not loader.config.store.is_kept
    assert [fallback.wanted for fallback in loader.config.fallbacks] == ["kept_share"]
    assert deliver(loader) == plain
    assert store_daemons.shares() == []
    settle([path])
    for kept_bytes in (0, DATA_BYTES):
        loader = load(path)
        assert (loader.config.store.kept_bytes, loader.config.store.is_kept) == (kept_bytes, True)
        assert deliver(loader) == plain


def test_an_idle_daemon_ends_and_leaves_nothing(store_daemons, several):  # noqa: F811
    store_daemons.start(idle_s=0.3)
    with load(several[0]):
        # Used shares keep it alive.
        time.sleep(0.8)
        assert store_daemons.status()["idle_left_s"] is None
    store_daemons.wait_for_end()
    assert list(store_daemons.runtime(0).iterdir()) == []


def test_a_stopped_daemon_leaves_loaders_their_memory(store_daemons, several):  # noqa: F811
    store_daemons.start()
    plain = deliver(load(several[0], store="none"))
    deliver(load(several[0]))
    loader = load(several[0])
    assert loader.config.store.kept_bytes == DATA_BYTES
    assert store_daemons.stop() == 1
    assert deliver(loader) == plain


def test_nothing_is_left_open_in_a_process(store_daemons, several):  # noqa: F811
    store_daemons.start()
    before = tiering.descriptors()
    for _ in range(2):
        deliver(load(several[0]))
    assert not tiering.descriptors() - before


def test_a_killed_job_uses_its_share_no_more(pool, store_daemons, small_lmdb):  # noqa: F811
    settle([small_lmdb])
    store_daemons.start()
    options = {"batch_size": 2, "node_memory": "64MiB", "store": "auto"}
    (rank,) = pool.begin(1, work.walk, path=str(small_lmdb), options=options)
    assert rank.hear() == "made"
    (share,) = store_daemons.status()["shares"]
    assert share["pids"] == [rank.pid]
    rank.kill()
    assert len(store_daemons.shares()) == 1


FORKS = """
import os, sys
import forebay
loader = forebay.Loader(sys.argv[1], 2, store="auto")
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
loader.close()
print("closed", flush=True)
os.waitpid(child, 0)
"""


def test_a_child_of_a_process_holds_no_share(store_daemons, small_lmdb):  # noqa: F811
    settle([small_lmdb])
    store_daemons.start()
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, str(small_lmdb)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "closed\n"
        assert len(store_daemons.shares()) == 1
        process.stdin.close()


# --- the command ---


def run(*arguments, status=0):
    result = CliRunner().invoke(cli, ["store", *arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_the_command_starts_shows_and_stops(store_daemons, several):  # noqa: F811
    assert json.loads(run("status", "--json")) == {"daemon": None}
    assert json.loads(run("stop", "--json")) == {"pid": None, "users": 0}
    started = json.loads(run("start", "--memory", "64MiB", "--idle", "10m", "--json"))
    assert started["is_new"]
    daemon = started["daemon"]
    assert (daemon["memory_bytes"], daemon["idle_s"], daemon["held_bytes"]) == (64 << 20, 600, 0)
    again = CliRunner().invoke(cli, ["store", "start", "--memory", "1GiB", "--json"])
    assert again.exit_code == 0
    assert json.loads(again.stdout)["is_new"] is False
    assert all(words in again.stderr for words in ("64 MiB", f"process {daemon['pid']}", "none is started"))
    with load(several[0]) as loader:
        found = json.loads(run("status", "--json"))["daemon"]
        (share,) = found["shares"]
        assert set(documented_keys("A store daemon")) == {*found, *share}
        assert (share["path"], share["pids"]) == (str(several[0]), [os.getpid()])
        assert found["idle_left_s"] is None
        text = run()
        assert all(word in text for word in (str(several[0]), "4 MiB", str(os.getpid())))
        assert json.loads(run("stop", "--json")) == {"pid": daemon["pid"], "users": 1}
        assert sum(1 for _ in loader) > 0
    assert "already" not in run("start", "--idle", "1.5h")
    assert "already" in run("start")
    assert "process" in run("stop")
    for wrong in (["--idle", "0"], ["--idle", "soon"], ["--memory", "much"]):
        run("start", *wrong, status=2)
    # Sizes without a unit are bytes.
    assert all(words in run("start", "--memory", "10", status=2) for words in ("10 bytes", "1MiB"))


def test_the_command_serves_in_the_foreground(store_daemons):  # noqa: F811
    command = [sys.executable, "-m", "forebay", "store", "start", "--foreground", "--json"]
    for number in (signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert json.loads(process.stdout.readline()) == {"pid": process.pid, "is_new": True}
            assert store_daemons.status()["pid"] == process.pid
            second = subprocess.run(command, capture_output=True, text=True, check=True)
            assert json.loads(second.stdout) == {"pid": None, "is_new": False}
            process.send_signal(number)
            assert process.wait(support.DEADLINE_S) == 0
        assert list(store_daemons.runtime(0).iterdir()) == []


def test_explain_says_what_the_daemon_gave(store_daemons, several):  # noqa: F811
    store_daemons.start()
    with load(several[0]) as loader:
        assert "keeps the share" in loader.explain()
        assert "came from the store daemon" not in loader.explain()
    with load(several[0]) as loader:
        assert "came from the store daemon" in loader.explain()
