"""The order ``local-shuffle``: the samples of ``shuffle``, on nodes that hold them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import forebay
import support
from support.ranks import tiers
from support.ranks.pool import Raised
from support.tiering import FORMATS, MEMORY, SAMPLE_BYTES, SAMPLES, opening, settle, tier, write

LARGE_SAMPLES = 1500
# Nodes of each rank.
SHAPES = ([0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 0, 1], [1, 0, 1, 0])


def deliver(pool, tier_data, kind, nodes, order="local-shuffle", *, each=None, batch=12, **more):
    """Go through epochs on these nodes; return what each rank found."""
    options = {"batch_size": batch // len(nodes), "order": order, "node_memory": MEMORY, "strategy": "pread"}
    options |= more.pop("options", {})
    arguments = {"path": str(tier_data.formats[kind]), "opening": opening(kind), **more}
    ranks = pool.begin(
        len(nodes),
        tiers.deliver,
        lambda rank: {"options": options | (each(rank) if each else {})},
        nodes=nodes,
        over="tcp",
        **arguments,
    )
    found = pool.outcomes(ranks)
    for one in found:
        assert not isinstance(one, Raised), one.trace
    return found


def global_steps(found):
    """Return the ids of each step, of all ranks, and the digest of each sample's batch."""
    return [
        sorted(number for ids, _ in step for number in ids)
        for step in zip(*(one["steps"] for one in found), strict=True)
    ]


@pytest.fixture(scope="module")
def shuffled(pool, tier_data):
    """Return the ids of each step of ``shuffle``, and the digest of each sample alone."""
    options = {"batch_size": 12, "order": "shuffle", "node_memory": MEMORY}
    ids, digests = {}, {}
    for kind in FORMATS:
        arguments = {"path": str(tier_data.formats[kind]), "opening": opening(kind)}
        (one,) = pool.run(1, tiers.deliver, options=options, **arguments)
        ids[kind] = [sorted(step) for step, _ in one["steps"]]
        single = {"batch_size": 1, "order": "sequential", "node_memory": MEMORY}
        (each,) = pool.run(1, tiers.deliver, options=single, epochs=1, **arguments)
        digests[kind] = {step[0]: digest for step, digest in each["steps"]}
    return ids, digests


@pytest.mark.sweep(together=2)
@pytest.mark.parametrize("nodes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", FORMATS)
def test_each_step_has_the_samples_of_shuffle_on_any_nodes(pool, tier_data, shuffled, kind, nodes):
    found = deliver(pool, tier_data, kind, nodes)
    assert global_steps(found) == shuffled[0][kind]
    # A step that 12 samples do not fill is shared out evenly.
    for step in zip(*([len(ids) for ids, _ in one["steps"]] for one in found), strict=True):
        assert max(step) <= min(3, min(step) + 1)
    # With one sample per rank and step, a digest is that of a sample; the last step may have two.
    single = deliver(pool, tier_data, kind, nodes, batch=4, epochs=1)
    for one in single:
        for ids, digest in one["steps"][:-1]:
            assert digest == shuffled[1][kind][ids[0]]


def test_nodes_take_as_many_samples_of_their_own_as_is_forecast(pool, tier_data):
    found = deliver(pool, tier_data, "raw", [0, 0, 1, 1], batch=40, epochs=20)
    local = [one["order"]["local"] for one in found]
    assert [(one["nodes"], one["pool_steps"]) for one in local] == [(2, 1)] * 4
    assert sum(one["held_share"] for one in local[::2]) == pytest.approx(1)
    # A sample that a node takes in most epochs is one that it holds.
    counts = [[0, 0] for _ in range(SAMPLES)]
    for rank, one in enumerate(found):
        for ids, _ in one["steps"]:
            for number in ids:
                counts[number][rank // 2] += 1
    own = sum(max(pair) for pair in counts) / sum(map(sum, counts))
    assert own == pytest.approx(local[0]["local_share"], abs=0.03)
    assert 0.8 < own < 0.95


def test_longer_pools_keep_more_samples_on_their_nodes(pool, tier_data, shuffled):
    order = forebay.LocalShuffle(steps=4)
    found = deliver(pool, tier_data, "raw", [0, 1, 2, 3], order)
    single = deliver(pool, tier_data, "raw", [0, 1, 2, 3])
    shares = [one[0]["order"]["local"]["local_share"] for one in (single, found)]
    assert shares[0] + 0.05 < shares[1] < 1
    steps, expected = global_steps(found), shuffled[0]["raw"]
    assert steps != expected
    per_epoch = len(steps) // 2
    for first in [*range(0, per_epoch, 4), *range(per_epoch, 2 * per_epoch, 4)]:
        end = min(first + 4, per_epoch if first < per_epoch else 2 * per_epoch)
        together = [sorted(itertools.chain(*one[first:end])) for one in (steps, expected)]
        assert together[0] == together[1]
    quality = [one[0]["order"]["shuffle_quality"]["order_entropy"] for one in (single, found)]
    assert quality[0] == 1 > quality[1]


def test_a_state_goes_on_on_other_nodes(pool, tier_data, shuffled):
    expected = shuffled[0]["raw"]
    first = deliver(pool, tier_data, "raw", [0, 0, 1, 1], stop=5)
    for nodes in ([0, 1], [0, 1, 2], [0, 0, 0, 1], [0]):
        rest = deliver(pool, tier_data, "raw", nodes, state=first[0]["state"])
        assert global_steps(rest) == expected[5:]


def test_a_state_inside_a_pool_goes_on_on_the_same_nodes_only(pool, tier_data):
    nodes, order = [0, 0, 1, 1], "local-shuffle:steps=4"
    whole = deliver(pool, tier_data, "raw", nodes, order)
    first = deliver(pool, tier_data, "raw", nodes, order, stop=6)
    rest = deliver(pool, tier_data, "raw", nodes, order, state=first[0]["state"])
    assert [one["steps"] for one in rest] == [one["steps"][6:] for one in whole]
    other = {"nodes": [0, 1, 2, 3], "over": "tcp", "state": first[0]["state"]}
    options = {"batch_size": 3, "order": order, "node_memory": MEMORY}
    arguments = {"path": str(tier_data.formats["raw"]), "opening": opening("raw"), "options": options}
    for one in pool.outcomes(pool.begin(4, tiers.deliver, **arguments, **other)):
        assert isinstance(one, Raised)
        assert one.kind == "OptionError"
        assert "step 4 or 8" in one.message


@pytest.fixture(scope="module", params=["raw", "lmdb", "folder"])
def large(request, tmp_path_factory):
    """Write enough data for units of whole chunks; return path and format."""
    values = np.random.default_rng(5).integers(0, 256, (LARGE_SAMPLES, SAMPLE_BYTES), "uint8")
    path = write(tmp_path_factory.mktemp("large") / request.param, request.param, values)
    settle([path])
    return path, request.param


@pytest.mark.parametrize("quota", ["64MiB", LARGE_SAMPLES * SAMPLE_BYTES // 2], ids=["all", "half"])
@pytest.mark.full
def test_nodes_with_tiers_read_their_own_share_from_them(pool, shared_daemon, tmp_path, large, quota):
    nodes, (path, kind) = [0, 0, 1, 1], large
    places = [tmp_path / f"{kind}-{node}" for node in (0, 1)]

    arguments = {"path": str(path), "opening": opening(kind), "epochs": 3, "waits": True}
    # A segment is half an epoch; its reads join no samples across chunks of the other node.
    options = {"order": "local-shuffle", "node_memory": MEMORY, "strategy": "pread", "batch_size": 16}
    for _ in range(support.TRIES):
        found = pool.run(
            4,
            tiers.deliver,
            lambda rank: {"options": options | {"tiers": [tier(places[nodes[rank]], quota)]}},
            nodes=nodes,
            over="tcp",
            **arguments,
        )
        assert all(one["copies"] for one in found)
        assert [one["warnings"] for one in found] == [[]] * 4
        last = [one["by_epoch"][2] for one in found]
        share = sum(one["source"] for one in last) / sum(sum(one.values()) for one in last)
        if share < 0.15:
            break
    # In shuffle it would be half, as each node holds half of the data.
    assert share < 0.15
    # Units begin where chunks do, so a tier for half of the data has room for a node's share.
    assert found[0]["tiers"]["forecast"][2]["source"] < 0.15 * LARGE_SAMPLES * SAMPLE_BYTES
