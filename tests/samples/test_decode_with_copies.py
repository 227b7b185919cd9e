"""``decode=`` with tiers and with the store: the pixels are those of a loader without them."""

from __future__ import annotations

import pytest
from tests.samples.test_decode import ALL, SAMPLES, members, write_tar

import forebay
import support
from support.ranks import tiers
from support.ranks.pool import Raised
from support.tiering import MEMORY, settle, tier

DECODE = {name: decoder for name, decoder in ALL.items() if name != "json"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A tar file of images that is old enough to be copied."""
    path = tmp_path_factory.mktemp("levels") / "images.tar"
    write_tar(path, map(members, range(SAMPLES)))
    settle([path])
    return path


def deliver(pool, path, nodes, **options):
    """Go through two epochs with a rank on each of these nodes; return what each rank found."""
    options = {
        "batch_size": 12 // len(nodes),
        "order": "shuffle",
        "seed": 9,
        "node_memory": MEMORY,
        **options,
    }
    where = {} if len(set(nodes)) == 1 else {"nodes": nodes, "over": "tcp"}
    arguments = {"path": str(path), "opening": {"decode": DECODE}, "options": options, **where}
    found = pool.outcomes(pool.begin(len(nodes), tiers.deliver, **arguments))
    for one in found:
        assert not isinstance(one, Raised), one.trace
        assert one["warnings"] == []
    return found


@pytest.fixture(scope="module")
def plain(pool, images):
    """Give the steps of each rank without tiers or a store."""
    known = {}

    def steps(nodes):
        if tuple(nodes) not in known:
            known[tuple(nodes)] = [one["steps"] for one in deliver(pool, images, nodes)]
        return known[tuple(nodes)]

    return steps


def of_level(found, name):
    """Return the bytes that a level delivered in both epochs."""
    return sum(epoch[name]["bytes"] for one in found for epoch in one["levels"])


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("level", ["disk", "memory"])
def test_tiers_deliver_the_same_pixels(pool, shared_daemon, tmp_path, in_memory, images, plain, level, ranks):
    where = in_memory if level == "memory" else tmp_path / "tier"
    nodes = [0] * ranks
    # What one job has copied serves the next one; on a busy machine not all at once.
    for _ in range(1 + support.TRIES):
        found = deliver(pool, images, nodes, tiers=[tier(where)], strategy=forebay.Strategy(access="pread"))
        assert [one["steps"] for one in found] == plain(nodes)
        if of_level(found, "source") == 0:
            break
    assert of_level(found, "source") == 0
    assert of_level(found, str(where)) > 0


@pytest.mark.parametrize("nodes", [[0, 1], [0, 0, 1, 1]], ids=str)
def test_a_store_of_two_nodes_delivers_the_same_pixels(pool, images, plain, nodes):
    found = deliver(pool, images, nodes, store="auto")
    assert [one["steps"] for one in found] == plain(nodes)
    assert of_level(found, "peers") > 0
    assert of_level(found, "share") > 0
