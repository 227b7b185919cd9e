"""LMDBIO's steps on several nodes: equal samples, traffic between nodes, roots that go on."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import lmdb
import pytest

import forebay
import support
from forebay_lab import PRESETS, _native
from support import histories
from support.ranks import plain, work
from support.ranks.pool import Killed, Pool, Raised

LMDBIO_STEPS = [name for name in PRESETS if name.startswith("lm")]
# The node of each rank: one to eight ranks, as many on each node and not, in blocks and dealt out.
LAYOUTS = [
    (0,),
    (0, 1),
    (0, 0, 1),
    (0, 1, 2),
    (0, 0, 0, 1, 2),
    (0, 1, 0, 1, 1),
    (0, 0, 0, 0, 0, 1, 2, 2),
    (0, 1, 2, 1, 1, 0, 1, 1),
]
SAMPLES = 1200
BATCH = 4


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Records inline and in pages of their own, in a tree of three levels."""
    rng = random.Random(7)
    values = [support.record(number, rng.choice([200, 700, 1900, 5000])) for number in range(SAMPLES)]
    return str(support.write_lmdb(tmp_path_factory.mktemp("several") / "several.lmdb", values))


def begin(pool, nodes, path, preset, each=lambda rank: {}, function=work.deliver, more=None, **arguments):
    options = {
        "batch_size": BATCH,
        "order": "sequential",
        "strategy": preset,
        "node_memory": "16MiB",
        "last_batch": "fill",
        **(more or {}),
    }
    return pool.begin(len(nodes), function, each, nodes=nodes, path=path, options=options, **arguments)


def check(outcomes):
    for one in outcomes:
        assert not isinstance(one, (Raised, Killed)), getattr(one, "trace", one)
    return outcomes


def steps_of(ranks):
    """The steps of an epoch, by rank; the last one begins anew."""
    steps = -(-SAMPLES // (BATCH * ranks))
    place = lambda step, rank, slot: (step * ranks + rank) * BATCH + slot  # noqa: E731
    return [
        [[place(step, rank, slot) % SAMPLES for slot in range(BATCH)] for rank in range(ranks)]
        for step in range(steps)
    ]


def record(path):
    """Look for the recipe of a database, and keep that alone: places are computed or not known."""
    found = _native.build_with_recipe(forebay.open(path).native_of(_native))
    assert found["recipe"]["verified"]
    Path(found["sidecar"]).unlink()
    return Path(found["recipe"]["path"])


@pytest.mark.parametrize("nodes", LAYOUTS)
@pytest.mark.full
def test_every_lmdbio_step_and_the_default_deliver_the_same_samples_on_any_nodes(pool, several, nodes):
    record(several)
    wanted = [*LMDBIO_STEPS, "forebay"]
    ranks = begin(pool, nodes, several, None, function=work.deliver_each, strategies=wanted)
    found = check(pool.outcomes(ranks))
    for name in wanted:
        for epoch in range(2):
            assert plain.together([one[name] for one in found], epoch) == steps_of(len(nodes)), name
        if "prov" in name:
            assert found[nodes.index(0)][name]["config"].index.source == "recipe"
            for one in found:
                assert "recipe" not in [fallback.wanted for fallback in one[name]["config"].fallbacks], name


@pytest.mark.parametrize("nodes", [(0, 0, 0), (0, 0, 1)])
def test_a_recipe_that_does_not_lead_to_the_file_is_refused_on_every_node(pool, several, nodes):
    kept = record(several)
    content = bytearray(kept.read_bytes())
    content[34] ^= 1  # in the digest
    kept.write_bytes(histories.repaired(content))
    wanted = ["lmm-dio-prov", "lmm-dio-prov-coal-stag", "forebay"]
    found = check(
        pool.outcomes(begin(pool, nodes, several, None, function=work.deliver_each, strategies=wanted))
    )
    for name in wanted:
        assert plain.together([one[name] for one in found], 1) == steps_of(len(nodes))
    for node in set(nodes):
        fallbacks = found[nodes.index(node)]["lmm-dio-prov"]["config"].fallbacks
        assert [fallback.wanted for fallback in fallbacks] == ["recipe"]


def test_cursors_go_from_root_to_root_and_are_as_small_as_their_tree(pool, several):
    ranks = begin(pool, (0, 0, 1, 2), several, "lmm-dm", more={"expected_epochs": 1})
    stats = [one["stats"] for one in check(pool.outcomes(ranks))]
    steps = len(steps_of(4))
    for leader in (0, 2, 3):
        sent = stats[leader]["messages_sent"]
        # One for each step; one more of those that came when it was not needed any more is no harm.
        assert steps - 1 <= sent <= steps + 1
        # Shard and next sample are 12 bytes; the cursor in a tree of three levels is 47.
        assert stats[leader]["cursor_bytes"] == sent * (12 + 47)
        assert stats[leader]["guess_hits"] > stats[leader]["guess_misses"]
    assert stats[1]["messages_sent"] == stats[1]["cursor_bytes"] == 0


def test_one_process_of_the_job_scans_and_tells_the_others(pool, several):
    ranks = begin(pool, (0, 0, 1, 2), several, "lmm-dio")
    found = check(pool.outcomes(ranks))
    assert [one["stats"]["messages_sent"] for one in found] == [2, 0, 0, 0]
    assert [one["stats"]["messages_received"] for one in found] == [0, 0, 1, 1]


@pytest.mark.parametrize("preset", ["lmm", "lmm-dio-prov-coal", "pread"])
def test_other_strategies_send_nothing(pool, several, preset):
    found = check(pool.outcomes(begin(pool, (0, 1, 1), several, preset)))
    assert [one["stats"]["messages_sent"] for one in found] == [0, 0, 0]


def test_a_guess_that_is_always_wrong_is_only_slow(several, monkeypatch):
    monkeypatch.setenv("FOREBAY_FAILPOINT", "guess:wrong")
    # Processes of its own: a drill is looked at once.
    pool = Pool()
    try:
        found = check(pool.outcomes(begin(pool, (0, 0, 1), several, "lmm-dm")))
    finally:
        pool.end()
    assert plain.together(found, 0) == steps_of(3)
    for leader in (0, 2):
        stats = found[leader]["stats"]
        assert stats["guessed_pages"] > 0
        assert stats["guess_misses"] > 20 * stats["guess_hits"]


def test_a_drill_that_is_not_understood_is_refused(several, monkeypatch):
    monkeypatch.setenv("FOREBAY_FAILPOINT", "stop:nowhere")
    pool = Pool()
    try:
        (outcome,) = pool.outcomes(pool.begin(1, work.made, path=several, options={"batch_size": 4}))
    finally:
        pool.end()
    assert outcome.kind == "OptionError"
    assert (
        "FOREBAY_FAILPOINT: expected guess:wrong, share:lose:N, ucx:any, ucx:load, or stop:PLACE[:N]"
        in outcome.message
    )


def test_a_database_in_random_order_is_guessed_badly_and_read_well(pool, tmp_path):
    # Written in random order, so that neighbours lie anywhere in the file.
    path = tmp_path / "x.lmdb"
    numbers = list(range(SAMPLES))
    random.Random(3).shuffle(numbers)
    with lmdb.open(str(path), map_size=1 << 28, sync=False) as environment:
        for number in numbers:
            with environment.begin(write=True) as transaction:
                transaction.put(b"%08d" % number, support.record(number, 9000))
    found = check(pool.outcomes(begin(pool, (0, 1), str(path), "lmm-dm")))
    assert plain.together(found, 0) == steps_of(2)
    for one in found:
        assert one["stats"]["guess_misses"] > one["stats"]["guess_hits"]


@pytest.mark.parametrize("leaves", [0, 2])
def test_a_root_that_says_goodbye_is_passed_over(pool, several, leaves):
    each = lambda rank: {"stop": 5 if rank == leaves else None, "epochs": 2}  # noqa: E731
    found = check(pool.outcomes(begin(pool, (0, 0, 1, 1, 2), several, "lmm-dm", each)))
    for rank, one in enumerate(found):
        own = [step[rank] for step in steps_of(5)]
        assert one["found"] == ([own[:5]] if rank == leaves else [own, own])


def test_nodes_do_not_wait_for_one_that_rests_or_jumps(pool, several):
    # Rank 1 is a node of its own: it breaks off early and rests; the others go on to the end of the
    # epoch by themselves.
    actions = {0: [{"stop": None}, {"epoch": 0}], 1: [{"stop": 2}, {"epoch": 0}]}
    ranks = begin(pool, (0, 1), several, "lmm-dm", lambda rank: {"actions": actions[rank]}, function=work.act)
    for rank, passes in enumerate(check(pool.outcomes(ranks))):
        own = [step[rank] for step in steps_of(2)]
        assert [steps for _, _, steps in passes] == [own[:2] if rank == 1 else own, own]


@pytest.mark.parametrize("victim", [0, 2, 3])
def test_the_death_of_a_root_is_told_to_all(pool, several, victim):
    ranks = begin(pool, (0, 0, 1, 2), several, "lmm-dm", function=work.walk)
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "walking"
    ranks[victim].kill()
    for number, outcome in enumerate(pool.outcomes(ranks)):
        if number == victim:
            assert outcome == Killed(-signal.SIGKILL)
        else:
            assert f"rank {victim} " in outcome["message"]


# --- turns ---


@pytest.mark.parametrize("stagger", ["auto", 1, 2, 3, 9])
def test_turns_change_nothing_but_when_something_is_read(pool, several, stagger):
    strategy = {"access": "pread", "readers": 2, "coalesce": 2, "stagger": stagger}
    ranks = begin(pool, (0, 0, 1, 2), several, strategy, lambda rank: {"epochs": 3})
    found = check(pool.outcomes(ranks))
    for epoch in range(3):
        assert plain.together(found, epoch) == steps_of(4)
    for rank in (0, 2, 3):
        assert sum(found[one]["stats"]["stagger_tokens"] for one in range(4) if (one < 2) == (rank == 0)) > 0
    # A turn costs two messages to the keeper, none from it to itself, and one from it to every
    # other node.
    stats = found[2]["stats"]
    assert 2 * stats["stagger_tokens"] // 2 - 2 <= stats["messages_sent"] <= 2 * stats["stagger_tokens"] + 2


@pytest.mark.parametrize("leaves", [0, 1, 2])
def test_a_node_that_says_goodbye_gives_its_turn_up(pool, several, leaves):
    strategy = {"access": "pread", "readers": "per_node", "coalesce": 1, "stagger": 3}
    each = lambda rank: {"stop": 5 if rank == leaves else None, "epochs": 2}  # noqa: E731
    found = check(pool.outcomes(begin(pool, (0, 1, 2), several, strategy, each)))
    for rank, one in enumerate(found):
        own = [step[rank] for step in steps_of(3)]
        assert one["found"] == ([own[:5]] if rank == leaves else [own, own])


def test_nodes_that_jump_and_rest_do_not_keep_their_turn(pool, several):
    strategy = {"access": "pread", "readers": "per_node", "coalesce": 1, "stagger": 2}
    actions = {0: [{}, {"epoch": 5}, {"epoch": 0}], 1: [{"stop": 2}, {"epoch": 5}, {"epoch": 0, "stop": 7}]}
    each = lambda rank: {"actions": actions[rank]}  # noqa: E731
    ranks = begin(pool, (0, 1), several, strategy, each, function=work.act)
    for rank, passes in enumerate(check(pool.outcomes(ranks))):
        own = [step[rank] for step in steps_of(2)]
        stops = [action.get("stop") for action in actions[rank]]
        assert [steps for _, _, steps in passes] == [own[:stop] for stop in stops]


def test_the_number_of_groups_can_be_changed_in_mid_run(pool, several):
    strategy = {"access": "pread", "readers": "per_node", "coalesce": 1, "stagger": 1}
    ranks = begin(
        pool, (0, 1, 2), several, strategy, function=work.staggered, groups=3, more={"node_memory": "512KiB"}
    )
    for rank in ranks:
        assert rank.hear() == "half"
    ranks[0].tell("go")
    assert ranks[0].hear() == "set"
    for rank in ranks:
        rank.tell("go")
    for one in check(pool.outcomes(ranks)):
        assert one["before"] == 1
        assert one["after"] == 3
        assert one["steps"] == 2 * len(steps_of(3))


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_node_that_may_have_the_turn_is_told(pool, several, victim):
    strategy = {"access": "pread", "readers": "per_node", "coalesce": 1, "stagger": 2}
    ranks = begin(pool, (0, 1), several, strategy, function=work.walk)
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "walking"
    ranks[victim].kill()
    outcomes = pool.outcomes(ranks)
    assert f"rank {victim} " in outcomes[1 - victim]["message"]
