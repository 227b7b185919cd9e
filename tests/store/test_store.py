"""The in-memory store: batches are those of the plain loader, and the source is read once."""

from __future__ import annotations

import functools
import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import forebay
import forebay_lab
import support
from forebay_lab.ranks import page_cache
from support.ranks import deaths, tiers, work
from support.ranks.pool import Killed, Pool, Raised
from support.tiering import FORMATS, MEMORY, SAMPLE_BYTES, opening

SHAPES = ([0], [0, 0], [0, 1], [0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 0, 1])


def deliver(pool, path, kind, nodes, *, order="shuffle", store="auto", fetch=None, batch=12, **more):
    """Go through epochs on these nodes, with a store or without; return what each rank found."""
    options = {"batch_size": batch // len(nodes), "order": order, "node_memory": MEMORY}
    if store is None:
        options["strategy"] = "pread"
    else:
        options["store"] = forebay.Store(size=store, on_lost=more.pop("on_lost", "raise"), **(fetch or {}))
    options |= more.pop("options", {})
    arguments = {"path": str(path), "opening": opening(kind), "options": options, **more}
    where = {} if len(set(nodes)) == 1 else {"nodes": nodes, "over": "tcp"}
    found = pool.outcomes(pool.begin(len(nodes), tiers.deliver, **where, **arguments))
    for one in found:
        assert not isinstance(one, Raised), one.trace
        assert one["warnings"] == []
    return found


@pytest.fixture(scope="module")
def plain(pool, tier_data):
    """Give the steps of each rank without a store."""
    known = {}

    def steps(kind, order, nodes):
        key = (kind, order, tuple(nodes))
        if key not in known:
            found = deliver(pool, tier_data.formats[kind], kind, nodes, order=order, store=None)
            known[key] = [one["steps"] for one in found]
        return known[key]

    return steps


@pytest.mark.sweep(together=2)
@pytest.mark.parametrize("order", ["sequential", "shuffle", "local-shuffle", "group"])
@pytest.mark.parametrize("nodes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", FORMATS)
def test_batches_are_those_without_a_store(pool, tier_data, plain, kind, nodes, order):
    found = deliver(pool, tier_data.formats[kind], kind, nodes, order=order)
    assert [one["steps"] for one in found] == plain(kind, order, nodes)


def of_level(found, name):
    return sum(one["levels"][-1][name]["bytes"] for one in found)


@pytest.mark.parametrize("nodes", [[0, 0], [0, 0, 1, 1], [0, 1, 2, 3]], ids=str)
def test_the_source_is_read_once_in_five_epochs(pool, tier_data, nodes):
    path = tier_data.formats["raw"]
    found = deliver(pool, path, "raw", nodes, epochs=5, options={"expected_epochs": 5})
    assert of_level(found, "source") <= 1.01 * path.stat().st_size
    assert (of_level(found, "peers") > 0) == (len(set(nodes)) > 1)
    delivered = sum(len(ids) for one in found for ids, _ in one["steps"]) * SAMPLE_BYTES
    assert of_level(found, "share") + of_level(found, "peers") == delivered


@pytest.mark.parametrize("kind", ["raw", "lmdb", "npy", "tfrecord"])
def test_what_fits_in_no_share_comes_from_the_source(pool, tier_data, plain, kind):
    nodes = [0, 0, 1, 1]
    found = deliver(pool, tier_data.formats[kind], kind, nodes, store="1MiB", epochs=2)
    assert [one["steps"] for one in found] == plain(kind, "shuffle", nodes)
    store = found[0]["store"]
    assert store["own_chunks"] == 1
    assert store["held_chunks"] <= 2 < store["chunks"]
    later = [one["by_epoch"][1] for one in found]
    assert sum(one["source"] for one in later) > 0
    assert sum(one["share"] + one["peers"] for one in later) > 0


@pytest.mark.parametrize("direct", [True, False])
def test_direct_reads_of_what_fits_in_no_share_leave_no_pages(pool, tmp_path, direct):
    path = tmp_path / "x.raw"
    path.write_bytes(bytes(4000 * SAMPLE_BYTES))
    support.drop_from_page_cache(path)
    deliver(pool, path, "raw", [0, 1], store="1MiB", options={"strategy": forebay.Strategy(direct=direct)})
    # Shares of 1 MiB are loaded through the page cache, and the kernel reads ahead of that.
    left = page_cache.resident_share(path) * path.stat().st_size
    assert (left < 4 << 20) == direct


def requests_to_peers(found):
    return sum(one["levels"][-1]["peers"]["operations"] for one in found)


@pytest.mark.parametrize("kind", ["raw", "lmdb", "hdf5"])
@pytest.mark.parametrize(
    "fetch",
    [
        {"requests_per_node": 1, "request_bytes": "4KiB"},
        {"requests_per_node": 64, "request_bytes": 4096},
        {"requests_per_node": 1},
    ],
    ids=str,
)
def test_batches_do_not_depend_on_the_limits_of_requests(pool, tier_data, plain, kind, fetch):
    nodes = [0, 0, 1, 1]
    found = deliver(pool, tier_data.formats[kind], kind, nodes, fetch=fetch)
    assert [one["steps"] for one in found] == plain(kind, "shuffle", nodes)
    assert found[0]["store"]["requests_per_node"] == fetch["requests_per_node"]


def test_requests_are_as_many_as_their_limit_makes_them(pool, tier_data):
    path, nodes, epochs = tier_data.formats["raw"], [0, 1], 2
    whole = deliver(
        pool, path, "raw", nodes, epochs=epochs, options={"last_batch": "drop", "expected_epochs": epochs}
    )
    steps = sum(len(one["steps"]) for one in whole)
    # One per node and step, but where a step needs nothing of the other node.
    assert 0 < requests_to_peers(whole) <= steps
    cut = deliver(
        pool,
        path,
        "raw",
        nodes,
        epochs=epochs,
        options={"last_batch": "drop", "expected_epochs": epochs},
        fetch={"request_bytes": "4KiB"},
    )
    assert of_level(cut, "peers") == of_level(whole, "peers")
    assert requests_to_peers(cut) >= of_level(cut, "peers") / 4096
    assert cut[0]["store"]["request_bytes"] == 4096


@pytest.mark.parametrize("nodes", [[0, 0], [0, 1], [0, 0, 1, 2]], ids=str)
def test_the_network_is_probed_where_there_is_one(pool, tier_data, nodes):
    found = deliver(pool, tier_data.formats["raw"], "raw", nodes, epochs=1)
    for one in found:
        probe = one["store"]["probe"]
        if len(set(nodes)) == 1:
            assert probe is None
        else:
            assert probe["rate_mib_s"] >= probe["slowest_rate_mib_s"] > 0
            assert probe["round_trip_us"] > 0
    of_nodes = {json.dumps(one["store"]["probe"]) for one in found}
    assert len(of_nodes) <= len(set(nodes))


@pytest.fixture
def forcing_ucx(monkeypatch):
    """Give a function that delivers in fresh processes with a failpoint of UCX."""
    pool = Pool()

    def forced(point, *arguments, **more):
        monkeypatch.setenv("FOREBAY_FAILPOINT", f"ucx:{point}")
        return deliver(pool, *arguments, **more)

    yield forced
    pool.end()


@functools.cache
def has_ucx():
    """Return whether the UCX library can be loaded; in another process, for its signal handlers."""
    load = "import ctypes; ctypes.CDLL('libucp.so.0')"
    return (
        subprocess.run([sys.executable, "-c", load], check=False, stderr=subprocess.DEVNULL).returncode == 0
    )


def test_a_node_without_a_device_uses_tcp_and_says_why(pool, tier_data):
    devices = Path("/sys/class/infiniband")
    if devices.is_dir() and any(devices.iterdir()):
        pytest.skip("this machine has an RDMA device")
    found = deliver(pool, tier_data.formats["raw"], "raw", [0, 1], epochs=1)
    for one in found:
        assert one["store"]["transport"] == "tcp"
        assert one["store"]["no_ucx"] == "this node has no RDMA device"
    alone = deliver(pool, tier_data.formats["raw"], "raw", [0, 0], epochs=1)
    assert alone[0]["store"]["transport"] is alone[0]["store"]["no_ucx"] is None


@pytest.mark.parametrize("kind", ["raw", "lmdb", "tfrecord"])
def test_batches_over_ucx_are_those_over_tcp(tier_data, plain, forcing_ucx, kind):
    nodes = [0, 0, 1, 2]
    found = forcing_ucx("any", tier_data.formats[kind], kind, nodes)
    assert [one["steps"] for one in found] == plain(kind, "shuffle", nodes)
    for one in found:
        if has_ucx():
            assert (one["store"]["transport"], one["store"]["no_ucx"]) == ("ucx", None)
            assert one["store"]["ucx_transports"]
        else:
            assert one["store"]["transport"] == "tcp"
            assert "libucp.so.0 cannot be loaded" in one["store"]["no_ucx"]


def test_ucx_without_rdma_is_refused_with_its_transports(tier_data, plain, forcing_ucx):
    if not has_ucx():
        pytest.skip("the UCX library is not installed")
    found = forcing_ucx("load", tier_data.formats["raw"], "raw", [0, 1])
    assert [one["steps"] for one in found] == plain("raw", "shuffle", [0, 1])
    for one in found:
        assert one["store"]["transport"] == "tcp"
        assert re.search(r"UCX would use .*tcp.*, and no rc or dc", one["store"]["no_ucx"])


@pytest.mark.parametrize("differs", ["bytes", "records"])
def test_datasets_that_differ_between_nodes_are_refused(pool, tier_data, tmp_path, differs):
    path = tier_data.formats["raw"]
    other = tmp_path / path.name
    data = bytearray(path.read_bytes())
    if differs == "records":
        del data[-SAMPLE_BYTES:]
    else:
        data[SAMPLE_BYTES] ^= 1
    other.write_bytes(data)
    options = {"batch_size": 6, "order": "shuffle", "node_memory": MEMORY, "store": "auto"}
    options |= {"timeout": 30}
    ranks = pool.begin(
        2,
        tiers.deliver,
        lambda rank: {"path": str((path, other)[rank])},
        nodes=[0, 1],
        over="tcp",
        opening=opening("raw"),
        options=options,
    )
    for outcome in pool.outcomes(ranks):
        assert isinstance(outcome, Raised), outcome
        assert outcome.kind == "RendezvousError", outcome.trace
        assert "the ranks disagree on dataset" in outcome.message


def test_a_state_goes_on_with_a_store_on_other_nodes(pool, tier_data, plain):
    path = tier_data.formats["raw"]
    first = deliver(pool, path, "raw", [0, 0, 1, 1], stop=5)
    whole = plain("raw", "shuffle", [0, 1, 2, 3])
    rest = deliver(pool, path, "raw", [0, 1, 2, 3], state=first[0]["state"])
    assert [one["steps"] for one in rest] == [steps[5:] for steps in whole]


def test_checksums_are_compared(pool, tier_data, plain):
    path = tier_data.formats["tfrecord"]
    found = deliver(pool, path, "tfrecord", [0, 1], options={"checksums": True})
    assert [one["steps"] for one in found] == plain("tfrecord", "shuffle", [0, 1])


@pytest.fixture
def losing(monkeypatch):
    """Give fresh processes; each leader withdraws its share after 4 batches."""
    pool = Pool()
    monkeypatch.setenv("FOREBAY_FAILPOINT", "share:lose:4")
    yield partial(deliver, pool)
    pool.end()


def test_a_lost_share_is_an_error_that_names_node_and_step(tier_data, losing):
    arguments = {"path": tier_data.formats["raw"], "kind": "raw", "nodes": [0, 1], "epochs": 3}
    with pytest.raises(AssertionError) as raised:
        losing(**arguments)
    assert "StorageError" in str(raised.value)
    assert re.search(r"fetch step \d+ from node [01]: the connection is lost", str(raised.value))


def test_the_source_takes_the_place_of_a_lost_share(tier_data, plain, losing):
    nodes = [0, 0, 1, 1]
    found = losing(path=tier_data.formats["raw"], kind="raw", nodes=nodes, on_lost="source")
    assert [one["steps"] for one in found] == plain("raw", "shuffle", nodes)
    assert of_level(found, "source") > 1.1 * tier_data.formats["raw"].stat().st_size
    assert any(one["levels"][-1]["peers"]["skipped"] > 0 for one in found)


@pytest.mark.parametrize("on_lost", ["raise", "source"])
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_death_is_told_on_all_nodes(pool, small_lmdb, victim, on_lost):
    nodes = (0, 0, 1, 1)
    store = {"on_lost": on_lost}
    options = {"batch_size": 2, "order": "shuffle", "node_memory": "64MiB", "store": store}
    deaths.assert_told_on_all_nodes(pool, small_lmdb, options, nodes, victim)


def test_a_node_that_is_stopped_for_longer_than_the_timeout_is_named_and_not_lost(pool, tmp_path):
    # Six chunks: both nodes hold some.
    path = support.write_lmdb(tmp_path / "some.lmdb", [bytes([number]) * 65_536 for number in range(96)])
    options = {"batch_size": 1, "order": "shuffle", "node_memory": "64MiB", "store": "auto", "timeout": 1}
    ranks = pool.begin(2, work.patient, nodes=(0, 1), path=str(path), options=options)
    for rank in ranks:
        assert rank.hear() == "walking"
    ranks[0].kill(signal.SIGSTOP)
    assert ranks[1].hear() == "warned"
    # Longer than the timeout.
    time.sleep(2)
    for rank in ranks:
        rank.tell("end")
    ranks[0].kill(signal.SIGCONT)
    found = next(told for told in iter(ranks[1].hear, None) if told != "warned")
    assert not isinstance(found, Raised | Killed), getattr(found, "trace", found)
    assert "the share of node 0, which does not answer" in found["warnings"][0]


def test_options_that_make_no_sense_with_a_store_are_refused(small_lmdb):
    for wrong, words in (
        ({"on_lost": "never"}, "on_lost"),
        ({"size": "much"}, "size"),
        ({"size": 5}, "size"),
        ({"requests_per_node": 0}, "requests_per_node"),
        ({"requests_per_node": 65}, "requests_per_node"),
        ({"requests_per_node": "many"}, "requests_per_node"),
        ({"request_bytes": "1KiB"}, "request_bytes"),
        ({"request_bytes": "2GiB"}, "request_bytes"),
        ({"request_bytes": "small"}, "request_bytes"),
    ):
        with pytest.raises(forebay.OptionError, match=words):
            forebay.Store(**wrong)
    for strategy, words in (
        (forebay.Strategy(access="pread"), "access"),
        (forebay_lab.Strategy(locate="scan"), "locate"),
    ):
        with pytest.raises(forebay.OptionError, match=words):
            forebay.Loader(small_lmdb, 4, order="sequential", strategy=strategy, store="auto")
    for order in ("shuffle", "local-shuffle", "sequential"):
        with pytest.raises(forebay.OptionError, match=r"readers=2\): ranks take samples"):
            forebay.Loader(small_lmdb, 4, order=order, strategy=forebay.Strategy(readers=2), store="auto")
