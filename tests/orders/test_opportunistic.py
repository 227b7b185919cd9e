"""The order ``opportunistic``: what nodes keep, and what they stream once per epoch."""

from __future__ import annotations

import re

import numpy as np
import pytest

import forebay
import forebay_lab
from support.ranks import deaths, tiers
from support.ranks.pool import Raised
from support.tiering import BAD, FORMATS, MEMORY, SAMPLE_BYTES, SAMPLES, opening, write

LARGE_SAMPLES = 1500
LARGE_BYTES = LARGE_SAMPLES * SAMPLE_BYTES
# Nodes of each rank.
SHAPES = ([0], [0, 0, 0], [0, 1], [0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 0, 1], [1, 0, 1, 0])


def begin(pool, path, kind, nodes, *, order="opportunistic:entropy=0.5", store="1MiB", batch=12, **more):
    """Begin epochs on these nodes."""
    options = {"batch_size": batch // len(nodes), "order": order, "node_memory": MEMORY, "store": store}
    options["strategy"] = forebay.Strategy(**more.pop("strategy", {}))
    options |= more.pop("options", {})
    arguments = {"path": str(path), "opening": opening(kind), "options": options, **more}
    where = {} if len(set(nodes)) == 1 else {"nodes": nodes, "over": "tcp"}
    return pool.begin(len(nodes), tiers.deliver, **where, **arguments)


def deliver(pool, path, kind, nodes, **more):
    """Go through epochs on these nodes; return what each rank found."""
    found = pool.outcomes(begin(pool, path, kind, nodes, **more))
    for one in found:
        assert not isinstance(one, Raised), one.trace
        assert one["warnings"] == []
    return found


def refusals(pool, path, kind, nodes, **more):
    """Return the messages with which each rank refuses to go on."""
    found = pool.outcomes(begin(pool, path, kind, nodes, **more))
    for one in found:
        assert isinstance(one, Raised), one
        assert one.kind == "OptionError", one.trace
    return [one.message for one in found]


def ids_of(found):
    """Return the ids of each epoch, of all ranks."""
    steps = found[0]["order"]["steps"]
    epochs = range(0, len(found[0]["steps"]), steps)
    return [
        [number for one in found for ids, _ in one["steps"][first : first + steps] for number in ids]
        for first in epochs
    ]


def of_level(found, name, epoch=None):
    """Return the bytes of a level, of all ranks."""
    if epoch is None:
        return sum(one["levels"][-1][name]["bytes"] for one in found)
    return sum(one["by_epoch"][epoch][name] for one in found)


@pytest.fixture(scope="module")
def digests(pool, tier_data):
    """Give the digest of each sample, as the plain loader delivers it."""
    known = {}

    def of_format(kind):
        if kind not in known:
            options = {"batch_size": 1, "order": "sequential", "node_memory": MEMORY}
            arguments = {"path": str(tier_data.formats[kind]), "opening": opening(kind)}
            (one,) = pool.run(1, tiers.deliver, options=options, epochs=1, **arguments)
            known[kind] = {ids[0]: digest for ids, digest in one["steps"]}
        return known[kind]

    return of_format


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Write data of many units; return its path."""
    values = np.random.default_rng(5).integers(0, 256, (LARGE_SAMPLES, SAMPLE_BYTES), "uint8")
    return write(tmp_path_factory.mktemp("large"), "raw", values)


@pytest.mark.sweep(together=1)
@pytest.mark.parametrize("nodes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", FORMATS)
def test_each_sample_comes_once_per_epoch_as_it_is(pool, tier_data, digests, kind, nodes):
    # With one sample per rank and step, a digest is that of a sample.
    found = deliver(
        pool, tier_data.formats[kind], kind, nodes, batch=len(nodes), options={"last_batch": "partial"}
    )
    assert len({len(one["steps"]) for one in found}) == 1
    expected = digests(kind)
    for one in found:
        for ids, digest in one["steps"]:
            # What fills no step makes some of the last batches longer.
            assert len(ids) in (1, 2)
            assert len(ids) == 2 or digest == expected[ids[0]]
    for ids in ids_of(found):
        assert sorted(ids) == list(range(SAMPLES))
    streaming = found[0]["order"]["streaming"]
    assert streaming["resident_share"] > 0
    assert ids_of(found)[0] != ids_of(found)[1]


@pytest.mark.parametrize("nodes", [[0], [0, 1], [0, 0, 1, 1]], ids=str)
def test_one_reader_per_node_in_turns_reads_the_same(pool, large, nodes):
    more = {"batch": 40, "options": {"seed": 4}}
    plain = deliver(pool, large, "raw", nodes, **more)
    turns = deliver(pool, large, "raw", nodes, strategy={"readers": 1, "stagger": len(nodes)}, **more)
    assert [one["steps"] for one in turns] == [one["steps"] for one in plain]
    assert of_level(turns, "source", 1) == of_level(plain, "source", 1)


@pytest.mark.parametrize("last", ["fill", "drop", "partial"])
@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 0, 0, 1]], ids=str)
def test_an_epoch_ends_as_asked(pool, tier_data, nodes, last):
    found = deliver(pool, tier_data.formats["raw"], "raw", nodes, options={"last_batch": last}, epochs=3)
    steps = SAMPLES // 12 if last == "drop" else -(-SAMPLES // 12)
    assert {len(one["steps"]) for one in found} == {3 * steps}
    for ids in ids_of(found):
        if last == "partial":
            assert sorted(ids) == list(range(SAMPLES))
        elif last == "drop":
            assert len(ids) == len(set(ids)) == steps * 12
        else:
            assert set(ids) == set(range(SAMPLES))
            assert len(ids) == steps * 12


@pytest.mark.parametrize("nodes", [[0], [0, 0, 1, 1], [0, 1, 2], [0, 0, 0, 1]], ids=str)
@pytest.mark.parametrize("times", [1, 2, 4])
def test_what_is_not_kept_is_read_once_per_epoch(pool, large, nodes, times):
    store = LARGE_BYTES // (times * len(set(nodes))) if times > 1 else "64MiB"
    more = {
        "options": {"last_batch": "partial", "expected_epochs": 3},
        "epochs": 3,
        "store": store,
        "batch": 36,
    }
    found = deliver(pool, large, "raw", nodes, **more)
    streaming = found[0]["order"]["streaming"]
    kept = streaming["resident_share"]
    if times == 1:
        # Units with which a node would keep more than its ranks take are streamed nonetheless.
        assert kept > 0.9
    elif len(set(nodes)) == len(nodes):
        assert kept == pytest.approx(1 / times, abs=0.08)
    streamed = (1 - kept) * LARGE_BYTES
    assert streaming["streamed_bytes"] == pytest.approx(streamed, rel=1e-6)
    loaded = sum(found[nodes.index(node)]["order"]["streaming"]["loaded_bytes"] for node in set(nodes))
    for epoch in range(3):
        source = of_level(found, "source", epoch) - (loaded if epoch == 0 else 0)
        assert source == pytest.approx(streamed, rel=0.01, abs=1)
        assert of_level(found, "share", epoch) == pytest.approx(kept * LARGE_BYTES, rel=1e-6)
    assert of_level(found, "peers") == 0


@pytest.mark.parametrize("nodes", [[0], [0, 0, 1, 1], [0, 0, 0, 1]], ids=str)
def test_a_state_goes_on_on_the_same_nodes(pool, large, nodes):
    more = {"store": LARGE_BYTES // 4, "batch": 36, "epochs": 2}
    whole = deliver(pool, large, "raw", nodes, **more)
    steps = whole[0]["order"]["steps"]
    for stop in np.random.default_rng(3).integers(1, 2 * steps, 3):
        first = deliver(pool, large, "raw", nodes, stop=int(stop), **more)
        assert [one["steps"] for one in first] == [one["steps"][:stop] for one in whole]
        rest = deliver(
            pool, large, "raw", nodes, state=first[0]["state"], **more | {"epochs": 2 - int(stop) // steps}
        )
        assert [one["steps"] for one in rest] == [one["steps"][stop:] for one in whole]


def test_a_state_inside_an_epoch_is_refused_on_other_nodes(pool, large):
    more = {"store": LARGE_BYTES // 4, "batch": 36}
    first = deliver(pool, large, "raw", [0, 0, 1, 1], stop=7, **more)
    for nodes, store in (([0, 1, 2, 3], LARGE_BYTES // 4), ([0, 0, 1, 1], LARGE_BYTES // 8)):
        for message in refusals(
            pool, large, "raw", nodes, state=first[0]["state"], **more | {"store": store}
        ):
            assert re.search(r"step 0 or \d+, where an epoch begins", message)
    steps = first[0]["order"]["steps"]
    ended = deliver(pool, large, "raw", [0, 0, 1, 1], stop=steps, **more)
    rest = deliver(pool, large, "raw", [0, 1, 2, 3], state=ended[0]["state"], **more)
    assert set(ids_of(rest)[0]) == set(range(LARGE_SAMPLES))


def test_the_window_of_a_state_goes_on(pool, large):
    more = {"store": LARGE_BYTES // 4, "batch": 36}
    whole = deliver(pool, large, "raw", [0, 0], order="opportunistic:window=3", **more)
    first = deliver(pool, large, "raw", [0, 0], order="opportunistic:window=3", stop=9, **more)
    rest = deliver(pool, large, "raw", [0, 0], order="opportunistic", state=first[0]["state"], **more)
    assert rest[0]["order"]["streaming"]["window_units"] == 3
    assert [one["steps"] for one in rest] == [one["steps"][9:] for one in whole]
    order = "opportunistic:window=4"
    for message in refusals(pool, large, "raw", [0, 0], order=order, state=first[0]["state"], **more):
        assert "forebay.Opportunistic(window=3)" in message


@pytest.mark.parametrize("nodes", [[0, 0], [0, 1]], ids=str)
def test_bad_samples_are_replaced(pool, tier_data, nodes):
    options = {"bad_samples": "skip", "last_batch": "partial"}
    arguments = {
        "opening": {"schema": "caffe-datum"},
        "options": {"batch_size": 6, "node_memory": MEMORY, **options},
    }
    arguments["options"] |= {"order": "opportunistic:entropy=0.5", "store": 1 << 20}
    where = {} if len(set(nodes)) == 1 else {"nodes": nodes, "over": "tcp"}
    found = pool.run(len(nodes), tiers.deliver, path=str(tier_data.damaged), epochs=1, **where, **arguments)
    assert {number for one in found for number, _ in one["bad"]} == BAD
    assert sum(len(ids) for one in found for ids, _ in one["steps"]) == SAMPLES


def test_more_windows_are_read_ahead_where_memory_allows(pool, large):
    more = {"store": LARGE_BYTES // 4, "batch": 36, "epochs": 1, "order": "opportunistic:window=3"}
    (two,) = deliver(pool, large, "raw", [0], **more)
    (four,) = deliver(pool, large, "raw", [0], strategy={"prefetch_windows": 4}, **more)
    assert four["steps"] == two["steps"]
    assert four["memory"]["staging_bytes"] > 1.5 * two["memory"]["staging_bytes"]
    (coalesced,) = deliver(pool, large, "raw", [0], strategy={"coalesce": 4}, **more)
    assert coalesced["fallbacks"] == ["coalesce"]


def test_an_epoch_that_was_left_is_followed_by_the_next(large):
    options = {"order": "opportunistic:window=3", "node_memory": MEMORY, "last_batch": "partial"}
    options["store"] = LARGE_BYTES // 4
    dataset = forebay.open(large, **opening("raw"))
    with forebay.Loader(dataset, 36, **options) as loader:
        whole = [[tiers.step(batch) for batch in loader] for _ in range(3)]
    with forebay.Loader(dataset, 36, **options) as loader:
        for _, batch in zip(range(5), loader, strict=False):
            del batch
        assert [tiers.step(batch) for batch in loader] == whole[1]
        assert [tiers.step(batch) for batch in loader] == whole[2]


def test_a_bound_decides_the_window(pool, large):
    more = {"store": LARGE_BYTES // 4, "batch": 36, "epochs": 1}
    windows = []
    for entropy in (0.5, 0.7, 0.8):
        found = deliver(pool, large, "raw", [0, 1], order=forebay.Opportunistic(entropy=entropy), **more)
        streaming = found[0]["order"]["streaming"]
        assert streaming["order_entropy"] >= entropy == streaming["entropy_bound"]
        assert streaming["order_entropy"] == found[0]["order"]["shuffle_quality"]["order_entropy"]
        windows.append(streaming["window_units"])
        window = forebay.Opportunistic(window=windows[-1])
        same = deliver(pool, large, "raw", [0, 1], order=window, **more)
        assert [one["steps"] for one in same] == [one["steps"] for one in found]
        assert same[0]["order"]["streaming"]["entropy_bound"] is None
    assert windows == sorted(windows)
    assert windows[0] < windows[-1]


def test_a_bound_out_of_reach_names_numbers_that_work(pool, large):
    more = {"store": LARGE_BYTES // 4, "batch": 36, "epochs": 1, "options": {"node_memory": "8MiB"}}
    (message,) = refusals(pool, large, "raw", [0], order="opportunistic:entropy=0.85", **more)
    works = re.search(
        r"at most (\d+) units; entropy=([\d.]+) or (?:entropy=[\d.]+ with )?a window of (\d+) units", message
    )
    assert works, message
    memory = re.search(r'give node_memory="(\d+MiB)"', message)
    for order, options in (
        (f"opportunistic:entropy={works[2]}", {}),
        (f"opportunistic:window={works[1]}", {}),
        ("opportunistic:entropy=0.85", {"node_memory": memory[1]}),
    ):
        found = deliver(pool, large, "raw", [0], order=order, **more | {"options": more["options"] | options})
        assert set(ids_of(found)[0]) == set(range(LARGE_SAMPLES))
    (message,) = refusals(pool, large, "raw", [0], order="opportunistic:window=40", **more)
    memory = re.search(r'give node_memory="(\d+MiB)"', message)
    options = {"node_memory": memory[1]}
    deliver(pool, large, "raw", [0], order="opportunistic:window=40", **more | {"options": options})


def test_without_a_bound_memory_decides_how_far_it_goes(pool, large):
    more = {"store": LARGE_BYTES // 4, "batch": 36, "epochs": 1, "order": "opportunistic"}
    (much,) = deliver(pool, large, "raw", [0], **more)
    streaming = much["order"]["streaming"]
    assert streaming["order_entropy"] >= streaming["entropy_bound"] == 0.85
    (little,) = deliver(pool, large, "raw", [0], **more, options={"node_memory": "6MiB"})
    best = little["order"]["streaming"]
    assert best["order_entropy"] < 0.85
    assert best["entropy_bound"] is None
    assert best["window_units"] < streaming["window_units"]
    assert set(ids_of([little])[0]) == set(range(LARGE_SAMPLES))


@pytest.mark.parametrize("nodes", [[0], [0, 1]], ids=str)
def test_units_are_as_long_as_asked(pool, large, nodes):
    more = {"store": LARGE_BYTES // 4, "batch": 36, "epochs": 2}
    found = {}
    for unit in ("64KiB", 300_000, "1GiB"):
        order = forebay.Opportunistic(window=2, unit=unit)
        ranks = deliver(pool, large, "raw", nodes, order=order, **more)
        found[unit] = ranks[0]["order"]["streaming"]
        for ids in ids_of(ranks):
            assert set(ids) == set(range(LARGE_SAMPLES))
    assert [one["unit_bytes"] for one in found.values()][:2] == [64 << 10, 512 << 10]
    # 16 units of each node are left.
    assert LARGE_BYTES / found["1GiB"]["unit_bytes"] >= 16 * len(nodes)
    assert all(one["units"] >= LARGE_BYTES // one["unit_bytes"] for one in found.values())
    first = deliver(pool, large, "raw", nodes, order="opportunistic:window=2,unit=64KiB", stop=7, **more)
    for message in refusals(
        pool, large, "raw", nodes, order="opportunistic:window=2,unit=512KiB", state=first[0]["state"], **more
    ):
        assert "other units" in message


def test_a_window_and_a_section_are_all_that_memory_needs(pool, large):
    # The least memory that a loader names works, and reads nothing twice.
    more = {"store": LARGE_BYTES // 4, "batch": 36, "order": "opportunistic:window=3"}
    (found,) = deliver(pool, large, "raw", [0], **more)
    options = {"node_memory": found["memory"]["minimum_bytes"], "last_batch": "partial", "expected_epochs": 2}
    least = deliver(pool, large, "raw", [0], **more | {"options": options})
    streamed = least[0]["order"]["streaming"]["streamed_bytes"]
    assert of_level(least, "source", 1) == streamed
    assert least[0]["memory"]["budget_bytes"] == found["memory"]["minimum_bytes"]


def test_checksums_are_compared(pool, tier_data, digests):
    options = {"checksums": True, "last_batch": "partial"}
    found = deliver(pool, tier_data.formats["tfrecord"], "tfrecord", [0, 1], batch=2, options=options)
    expected = digests("tfrecord")
    # The digest of a batch of one sample is that of the sample.
    steps = [(ids, digest) for one in found for ids, digest in one["steps"] if len(ids) == 1]
    assert len(steps) > SAMPLES // 2
    assert all(digest == expected[ids[0]] for ids, digest in steps)


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_death_is_told_on_all_nodes(pool, small_lmdb, victim):
    nodes = (0, 0, 1, 1)
    options = {"batch_size": 2, "order": "opportunistic", "node_memory": "64MiB", "store": "auto"}
    deaths.assert_told_on_all_nodes(pool, small_lmdb, options, nodes, victim)


def test_parameters_that_make_no_sense_are_refused(tier_data):
    for wrong in (
        {"entropy": 1.5}, {"entropy": -0.1}, {"entropy": "much"}, {"window": 0}, {"window": 2.5},
        {"unit": 65_535}, {"unit": "a lot"}, {"unit": 2.5},
    ):  # fmt: skip
        with pytest.raises(forebay.OptionError, match=next(iter(wrong))):
            forebay.Opportunistic(**wrong)
    path = str(tier_data.formats["npy"])
    for options, words in (
        ({}, "needs a store"),
        ({"store": "auto", "tiers": ["/dev/shm:1GiB"]}, "tiers="),
        ({"strategy": forebay_lab.strategy("lmdb")}, "store"),
    ):
        with pytest.raises(forebay.OptionError, match=words):
            forebay.Loader(path, 4, order="opportunistic", **options)
    for text, words in (("opportunistic:steps=3", "order="), ("opportunistic:entropy=2", "entropy=")):
        with pytest.raises(forebay.OptionError, match=words):
            forebay.Loader(path, 4, order=text, store="auto")
