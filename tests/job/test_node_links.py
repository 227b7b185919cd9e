"""Several nodes: deaths are told across them, slowness is not one, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

import support
from forebay_lab.cluster import Cluster
from support import cluster as nodes
from support.ranks import work
from support.ranks.pool import Killed, Raised

NODES = (0, 0, 1, 1, 2)
LEADERS = (0, 2, 4)
OPTIONS = {"batch_size": 4, "order": "shuffle"}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """300 records of 20 KB."""
    values = [support.record(number, 20_000) for number in range(300)]
    return str(support.write_lmdb(tmp_path_factory.mktemp("records") / "records.lmdb", values))


@pytest.fixture(autouse=True)
def nothing_stays():
    """Check at the end that the ranks' directory is empty and no shared memory has a name."""
    yield
    place = Path(os.environ["FOREBAY_RUNTIME_DIR"])
    assert sorted(one.name for one in place.iterdir()) == [] if place.exists() else True
    assert not [one for one in Path("/dev/shm").iterdir() if "forebay" in one.name]


@pytest.fixture(params=["mpi", "tcp"])
def over(request):
    """What the ranks agree over before there are links."""
    return request.param


def begin(pool, function, each=lambda rank: {}, *, on=NODES, **arguments):
    arguments = {"options": OPTIONS, **arguments}
    return pool.begin(len(on), function, each, nodes=on, **arguments)


def check_told(outcomes, victim, found_key="message"):
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            assert outcome == Killed(-signal.SIGKILL)
        else:
            assert not isinstance(outcome, (Raised, Killed)), getattr(outcome, "trace", outcome)
            assert f"rank {victim} " in outcome[found_key], outcome


@pytest.mark.parametrize("on", [NODES, (0, 1), (0, 1, 0, 1, 1)])
def test_ranks_of_several_nodes_share_an_epoch_and_send_no_message_for_it(pool, records, on, over):
    found = pool.outcomes(begin(pool, work.deliver, on=on, path=records, epochs=2, over=over))
    for one in found:
        assert not isinstance(one, (Raised, Killed)), one
    steps = -(-300 // (4 * len(on)))
    for epoch in range(2):
        assert all(len(one["found"][epoch]) == steps for one in found)
        ids = [number for one in found for step in one["found"][epoch] for number in step]
        assert set(ids) == set(range(300))
    for one in found:
        assert one["stats"]["messages_sent"] == one["stats"]["node"]["messages_received"] == 0


def test_nodes_that_set_different_epochs_are_all_told(pool, records):
    # Nodes do not wait for each other, so the epoch takes long enough for what they tell each
    # other.
    each = lambda rank: {"actions": [{}, {"epoch": 5 + (NODES[rank] == 1), "pause": 0.15}]}  # noqa: E731
    for one in pool.outcomes(begin(pool, work.act, each, path=records)):
        assert isinstance(one, Raised), one
        assert one.kind == "RendezvousError"
        assert "ranks disagree on the iteration start: rank" in one.message
        assert ", node " in one.message


# --- deaths ---


@pytest.mark.parametrize("victim", [0, 1, 3, 4])
def test_a_death_between_two_steps_is_told_on_all_nodes(pool, records, victim, over):
    ranks = begin(pool, work.walk, path=records, over=over)
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "walking"
    ranks[victim].kill()
    outcomes = pool.outcomes(ranks, support.TOLD_WITHIN_S)
    check_told(outcomes, victim)
    check_told(outcomes, victim, "again")
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome["memory"] == []
            there = "local rank" if NODES[rank] == NODES[victim] else f"node {NODES[victim]}"
            assert there in outcome["message"]


@pytest.mark.parametrize("victim", [1, 2])
def test_a_death_at_the_end_of_an_epoch_is_told_on_all_nodes(pool, records, victim):
    ranks = begin(pool, work.walk, path=records, stop=15)
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "resting"
    ranks[victim].kill()
    time.sleep(0.5)
    for number, rank in enumerate(ranks):
        if number != victim:
            rank.tell("go")
    check_told(pool.outcomes(ranks, support.TOLD_WITHIN_S), victim)


@pytest.mark.parametrize("victim", [0, 3, 4])
@pytest.mark.full
def test_a_death_while_the_index_is_built_is_told_on_all_nodes(pool, records, victim):
    ranks = begin(pool, work.building, path=records, pause=2.0)
    for leader in LEADERS:
        assert ranks[leader].hear() == "building"
    ranks[victim].kill()
    check_told(pool.outcomes(ranks, support.TOLD_WITHIN_S), victim)


def test_a_node_that_cannot_make_the_loader_says_so_to_all(pool, records):
    ranks = begin(pool, work.building, lambda rank: {"fails": rank == 2}, path=records, pause=0.2)
    for leader in LEADERS:
        assert ranks[leader].hear() == "building"
    outcomes = pool.outcomes(ranks, support.TOLD_WITHIN_S)
    assert outcomes[2]["message"] == "on purpose"
    for rank in (0, 1, 4):
        assert "rank 2 (the leader of node 1" in outcomes[rank]["message"], outcomes[rank]
    assert all(outcome["steps"] == 0 for outcome in outcomes)


def names_more(texts, expected):
    """Return whether texts name more missing ranks than expected, as on a busy machine."""
    named = [set(re.findall(r"\d+", re.search(r"ranks? ([\d, -]+)", text)[1])) for text in texts]
    assert all(names >= expected or any("-" in text for text in texts) for names in named), texts
    return any(names != expected for names in named)


@pytest.mark.parametrize("absent", [1, 0])
def test_a_rank_that_does_not_come_is_an_error_after_the_timeout(pool, records, absent):
    options = {**OPTIONS, "timeout": 2}
    for _ in range(support.TRIES):
        ranks = pool.begin(
            3, work.meeting, nodes=(0, 1, 1), absent=[absent], path=records, options=options, warn_after=0.5
        )
        there = [ranks[rank] for rank in range(3) if rank != absent]
        for rank in there:
            assert rank.hear() == "meeting"
        outcomes = []
        for rank in there:
            assert rank.hear() == "warned"
            outcomes += rank.hear()
        for outcome in outcomes:
            assert outcome["kind"] == "RendezvousError"
        warned = [
            warning.split("has waited for ")[1] for outcome in outcomes for warning in outcome["warnings"]
        ]
        assert len(warned) == len(there)
        # Rank 0 finds out who is missing.
        missing = [outcome["message"].rpartition("missing: ")[2] for outcome in outcomes]
        if names_more([text.split(" for ", 1)[1] for text in warned] + missing, {str(absent)}):
            continue
        assert all("not all of the 3 ranks came within 2 s" in outcome["message"] for outcome in outcomes)
        return
    raise AssertionError(outcomes)


def test_ranks_that_come_late_are_warned_of_and_waited_for(pool, records, over):
    late = (1, 4)
    for _ in range(support.TRIES):
        ranks = begin(
            pool, work.meeting, lambda rank: {"holds": rank in late}, path=records, warn_after=0.5, over=over
        )
        for number, rank in enumerate(ranks):
            assert rank.hear() == "meeting"
            assert rank.hear() == ("opening" if number in late else "warned")
        for number in late:
            ranks[number].tell("go")
        outcomes = [outcome for (outcome,) in pool.outcomes(ranks)]
        assert [outcome["steps"] for outcome in outcomes] == [15] * len(NODES)
        assert [len(outcome["warnings"]) for outcome in outcomes] == [rank not in late for rank in range(5)]
        warned = [warning.split(" s for ")[1] for outcome in outcomes for warning in outcome["warnings"]]
        if not names_more(warned, {"1", "4"}):
            return
    raise AssertionError(warned)


@pytest.mark.parametrize("victim", [0, 3])
def test_a_rank_that_cannot_open_its_data_tells_all_why_and_they_can_try_again(pool, records, victim, over):
    tries = lambda rank: {"tries": ["no.lmdb" if rank == victim else records, records]}  # noqa: E731
    ranks = begin(pool, work.meeting, tries, path=records, over=over)
    for rank in ranks:
        assert rank.hear() == "meeting"
    for number, (first, second) in enumerate(pool.outcomes(ranks)):
        if number == victim:
            assert "no.lmdb" in first["message"]
            assert first["kind"] == "StorageError"
        else:
            assert first["kind"] == "RendezvousError"
            assert f"rank {victim} gave up: " in first["message"]
            assert "no.lmdb" in first["message"]
        assert second["steps"] == 15


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_death_before_there_are_links_is_told_by_the_node(pool, records, victim, over):
    ranks = begin(pool, work.meeting, lambda rank: {"holds": rank == victim}, path=records, over=over)
    for rank in ranks:
        assert rank.hear() == "meeting"
    assert ranks[victim].hear() == "opening"
    ranks[victim].kill()
    for number, outcome in enumerate(pool.outcomes(ranks, support.TOLD_WITHIN_S)):
        if number == victim:
            assert outcome == Killed(-signal.SIGKILL)
        else:
            process = f" (process {ranks[victim].pid}) of this node" if over == "mpi" else ""
            assert f"rank {victim}{process} has ended" in outcome[0]["message"]


def test_the_first_of_several_deaths_is_named_by_all_that_are_left(pool, records):
    ranks = begin(pool, work.walk, path=records)
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "walking"
    ranks[3].kill()
    for rank in (0, 1, 2, 4):
        assert "rank 3 " in ranks[rank].hear(support.TOLD_WITHIN_S)["message"]


def test_a_forked_child_of_a_dead_leader_does_not_hide_its_death(pool, records):
    ranks = begin(pool, work.walk_with_child, on=(0, 1), path=records)
    children = [rank.hear() for rank in ranks]
    ranks[0].kill()
    try:
        assert "rank 0 " in ranks[1].hear(support.TOLD_WITHIN_S)["message"]
    finally:
        os.kill(children[0], signal.SIGKILL)


# --- no deaths ---


@pytest.mark.full
def test_a_leader_that_is_stopped_for_a_while_is_warned_of_and_not_dead(pool, records):
    ranks = begin(pool, work.patient, path=records)
    for rank in ranks:
        assert rank.hear() == "walking"
    ranks[2].kill(signal.SIGSTOP)
    try:
        for leader in (0, 4):
            assert ranks[leader].hear() == "warned"
    finally:
        ranks[2].kill(signal.SIGCONT)
    for rank in ranks:
        rank.tell("end")
    outcomes = pool.outcomes(ranks)
    for leader in (0, 4):
        (warning,) = outcomes[leader]["warnings"]
        assert "rank 2 (the leader of node 1" in warning
        assert 'loader "train"' in warning
    assert outcomes[1] == {"warnings": []}
    assert outcomes[2]["warnings"] == []


@pytest.mark.parametrize("first", [0, 3])
def test_a_rank_that_closes_and_ends_is_no_loss_on_any_node(pool, records, first):
    ranks = begin(pool, work.deliver, lambda rank: {"epochs": 1 if rank == first else 4}, path=records)
    assert len(ranks[first].hear()["found"]) == 1
    ranks[first].kill()
    ranks[first].process.join()  # or the next test would take it for alive
    for one in pool.outcomes([rank for rank in ranks if rank is not ranks[first]]):
        assert not isinstance(one, (Raised, Killed)), one
        assert [len(steps) for steps in one["found"]] == [15] * 4


def test_an_interface_that_is_not_there_is_told_to_all_ranks(pool, records, monkeypatch):
    monkeypatch.setenv("FOREBAY_INTERFACE", "none0")
    for outcome in pool.outcomes(begin(pool, work.made, path=records)):
        assert outcome.kind == "OptionError"
        assert "rank 0, which leads its node: FOREBAY_INTERFACE: no interface none0" in outcome.message
    monkeypatch.setenv("FOREBAY_INTERFACE", "lo")
    for outcome in pool.outcomes(begin(pool, work.made, path=records)):
        assert outcome.order.steps == 15


# --- a network that fails ---

# A rank of a node of its own; says "walking", then how it ended.
WALK = """
import os, sys, time, warnings
sys.path.insert(0, sys.argv[1])
import forebay
from support.ranks.nodes import FileComm
rank, size, told = int(sys.argv[4]), 3, int(sys.argv[5])
world = forebay.World(rank=rank, size=size, comm=FileComm(sys.argv[3], rank, size), node=f"node{rank}")
loader = forebay.Loader(sys.argv[2], 4, node_memory="32MiB", order="shuffle", world=world)
print("walking", flush=True)
end = time.monotonic() + told
try:
    while time.monotonic() < end:
        for batch in loader:
            time.sleep(0.005)
    print("well", flush=True)
except forebay.PeerLostError as lost:
    print(lost, flush=True)
loader.close()
"""


def walk_on_nodes(emulated, records, place, walk_s):
    """Start a rank on each of three nodes, and wait until they walk."""
    place.mkdir()
    tests = support.TESTS
    programs = [
        nodes.Program(
            emulated.on(
                rank,
                [sys.executable, "-W", "error", "-c", WALK, *map(str, (tests, records, place, rank, walk_s))],
            )
        )
        for rank in range(3)
    ]
    end = time.monotonic() + nodes.WITHIN_S
    while not all(program.said("walking") for program in programs):
        assert time.monotonic() < end, "they do not walk"
        time.sleep(0.05)
    return programs


@nodes.needs_nodes
@pytest.mark.full
def test_a_node_that_is_cut_off_for_a_few_seconds_is_no_loss(records, tmp_path):
    # A link is lost after seven seconds. What was to be three can be more on a busy machine; then
    # it shows nothing.
    for turn in range(support.TRIES):
        with Cluster(3) as emulated:
            programs = walk_on_nodes(emulated, records, tmp_path / f"exchange-{turn}", 6)
            begun = time.monotonic()
            emulated.unplug(1)
            time.sleep(3)
            emulated.plug(1)
            taken_s = time.monotonic() - begun
            ends = [program.finish() for program in programs]
        if taken_s < 5:
            assert ends == [(0, "walking\nwell\n", "")] * 3
            return
    raise AssertionError(f"three seconds took {taken_s} s")


# --- MPI ---

MPI = """
import forebay
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
world = forebay.World(rank=rank, size=MPI.COMM_WORLD.size, comm=MPI.COMM_WORLD, node=rank // 2)
found = []
for name in ("train", "test"):
    with forebay.Loader(sys.argv[1], 4, node_memory="32MiB", order="shuffle", world=world, name=name) as loader:
        found.append(sorted(int(number) for batch in loader for number in batch.indices))
child = os.fork()
if child == 0:
    try:
        forebay.Loader(sys.argv[1], 4, world=world)
        os._exit(1)
    except forebay.OptionError as error:
        os._exit(0 if "was forked from one that uses MPI" in str(error) else 2)
found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
comm = MPI.COMM_WORLD.Dup()
with forebay.Loader(sys.argv[1], 4, node_memory="32MiB", world=forebay.World(rank=rank, size=comm.size, comm=comm)) as loader:
    found.append(len(list(loader)))
comm.Free()
emit(found)
"""


@pytest.mark.mpi
def test_loaders_over_several_nodes_find_each_other_over_a_communicator(records):
    found = support.run_mpi(5, MPI, records)
    for loader in (0, 1):
        assert {number for one in found for number in one[loader]} == set(range(300))
    assert [one[2:] for one in found] == [[0, 15]] * 5
