"""Batches with storage tiers equal those without, while tiers fill and when they serve."""

from __future__ import annotations

import pytest

import forebay
import support
from support import tiering
from support.ranks import tiers
from support.tiering import FORMATS, MEMORY, opening, tier

ORDERS = ("sequential", "contiguous", "shuffle", "group")


@pytest.fixture(scope="module")
def plain_steps(pool, tier_data):
    """Give the steps of each rank without tiers."""
    known = {}

    def steps(kind, order, ranks, epochs=2):
        key = (kind, order, ranks, epochs)
        if key not in known:
            options = {"batch_size": 12 // ranks, "order": order, "node_memory": MEMORY}
            arguments = {"path": str(tier_data.formats[kind]), "opening": opening(kind), "options": options}
            found = pool.run(ranks, tiers.deliver, epochs=epochs, **arguments)
            known[key] = [one["steps"] for one in found]
        return known[key]

    return steps


def run(pool, data, kind, tier, *, order="shuffle", ranks=1, access="pread", direct=False, **more):
    options = {
        "batch_size": 12 // ranks,
        "order": order,
        "node_memory": MEMORY,
        "strategy": forebay.Strategy(access=access, direct=direct),
        "tiers": tier if isinstance(tier, list) else [tier],
        **more.pop("options", {}),
    }
    return pool.run(
        ranks, tiers.deliver, path=str(data.formats[kind]), opening=opening(kind), options=options, **more
    )


@pytest.mark.sweep(together=2)
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("access", ["pread", "io_uring"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("level", ["disk", "memory"])
def test_batches_are_those_without_tiers_while_they_fill_and_when_they_serve(
    pool,
    shared_daemon,
    tmp_path,
    in_memory,
    tier_data,
    plain_steps,
    level,
    kind,
    order,
    ranks,
    access,
    direct,
):
    where = in_memory if level == "memory" else tmp_path / "tier"
    how = {"order": order, "ranks": ranks, "access": access, "direct": direct}
    found = run(pool, tier_data, kind, tier(where), **how)
    assert [one["steps"] for one in found] == plain_steps(kind, order, ranks)
    assert all(one["copies"] for one in found)
    assert [one["warnings"] for one in found] == [[]] * ranks
    # What one job has copied serves the next one; on a busy machine not all at once.
    for _ in range(support.TRIES):
        found = run(pool, tier_data, kind, tier(where), **how)
        assert [one["steps"] for one in found] == plain_steps(kind, order, ranks)
        assert [one["warnings"] for one in found] == [[]] * ranks
        if sum(one["levels"][-1]["source"]["bytes"] for one in found) == 0:
            break
    assert sum(one["levels"][-1]["source"]["bytes"] for one in found) == 0
    assert sum(one["levels"][-1][str(where)]["bytes"] for one in found) > 0


@pytest.mark.parametrize("kind", ["lmdb", "hdf5", "folder"])
@pytest.mark.parametrize("order", ["sequential", "shuffle"])
def test_a_tier_with_room_for_half_serves_half_in_any_number_of_epochs(
    pool, shared_daemon, tmp_path, in_memory, tier_data, plain_steps, kind, order
):
    places = [in_memory, tmp_path / "tier"]
    for _ in range(support.TRIES):
        found = run(
            pool, tier_data, kind, [tier(place, "1MiB") for place in places], order=order, ranks=2, epochs=4
        )
        assert [one["steps"] for one in found] == plain_steps(kind, order, 2, epochs=4)
        assert [one["warnings"] for one in found] == [[], []]
        served = [sum(one["levels"][-1][str(place)]["bytes"] for one in found) for place in places]
        if min(served) > 0:
            break
    # On a busy machine all epochs are read before anything is copied.
    assert min(served) > 0
    taken = {level["name"]: level["taken_bytes"] for level in shared_daemon.usage()["levels"]}
    assert [taken[str(place)] for place in places] == [1 << 20, 1 << 20]


@pytest.mark.parametrize("order", ORDERS)
def test_a_loader_that_goes_on_from_a_state_gets_what_an_uninterrupted_one_gets(
    pool, shared_daemon, tmp_path, tier_data, plain_steps, order
):
    whole = plain_steps("tfrecord", order, 2)
    described = tier(tmp_path / "tier", "2MiB")
    for stop in (5, 20):
        first = run(pool, tier_data, "tfrecord", described, order=order, ranks=2, stop=stop)
        assert [one["steps"] for one in first] == [steps[:stop] for steps in whole]
        epochs = 2 if stop < len(whole[0]) // 2 else 1
        rest = run(
            pool,
            tier_data,
            "tfrecord",
            described,
            order=order,
            ranks=2,
            state=first[0]["state"],
            epochs=epochs,
        )
        assert [one["steps"] for one in rest] == [steps[stop:] for steps in whole]


@pytest.mark.parametrize("level", ["disk", "memory"])
def test_bad_samples_are_those_without_tiers(pool, shared_daemon, tmp_path, in_memory, tier_data, level):
    where = in_memory if level == "memory" else tmp_path / "tier"
    options = {"batch_size": 12, "node_memory": MEMORY, "bad_samples": "skip", "strategy": "pread"}
    arguments = {"path": str(tier_data.damaged), "opening": {"schema": "caffe-datum"}, "options": options}
    (plain,) = pool.run(1, tiers.deliver, **arguments)
    assert len(plain["bad"]) == len(tiering.BAD)
    options["tiers"] = [tier(where)]
    for _ in range(2):
        (found,) = pool.run(1, tiers.deliver, **arguments)
        assert (found["steps"], found["bad"]) == (plain["steps"], plain["bad"])
        assert sorted(found["warnings"]) == sorted(plain["warnings"])
    assert found["levels"][-1][str(where)]["bytes"] > 0


@pytest.mark.parametrize("order", ["sequential", "shuffle", "group"])
def test_batches_of_several_nodes_are_those_without_tiers(pool, shared_daemon, tmp_path, tier_data, order):
    options = {
        "batch_size": 3,
        "order": order,
        "node_memory": MEMORY,
        "expected_epochs": 3,
        "strategy": "pread",
    }
    arguments = {"path": str(tier_data.formats["raw"]), "opening": opening("raw"), "epochs": 3}

    def steps(**more):
        ranks = pool.begin(
            4, tiers.deliver, nodes=[0, 0, 1, 1], over="tcp", options={**options, **more}, **arguments
        )
        found = pool.outcomes(ranks)
        assert [one["warnings"] for one in found] == [[]] * 4
        return [one["steps"] for one in found]

    plain = steps()
    # Here both nodes have the same tier.
    for _ in range(2):
        assert steps(tiers=[tier(tmp_path / "tier")]) == plain
