"""Failures on emulated nodes: survivors name the lost, a stall is no loss, nothing is left.

Ranks are processes in namespaces, uneven numbers of them on three nodes, joined by a communicator
that no launcher stands behind: nothing ends the survivors but what they are told.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import support
from forebay_lab import pfs
from forebay_lab.cluster import Cluster
from support import cluster as nodes
from support import emulator
from support.emulator import remove_all

pytestmark = nodes.needs_nodes

PER_NODE = (3, 1, 2)
NODE_OF = [node for node, count in enumerate(PER_NODE) for _ in range(count)]
FIRST_OF = [NODE_OF.index(node) for node in range(len(PER_NODE))]

# Where the ranks of a node meet: in the memory of the node alone.
MEETING_PLACE = "/dev/shm/forebay"

PROGRAM = support.TESTS / "support/cluster/drill_rank.py"

# Strategies in which nodes need each other in different ways: not at all, for the index, for
# cursors, for turns.
CROSSING = ["forebay", "lmm", "lmm-dio", "lmm-dm", "lmm-dio-prov-coal-stag"]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """300 records of 20 KB."""
    values = [support.record(number, 20_000) for number in range(300)]
    return support.write_lmdb(tmp_path_factory.mktemp("records") / "records.lmdb", values)


@dataclass
class Drill:
    """Ranks on nodes, how far they are, and what becomes of them."""

    cluster: Cluster
    place: Path
    paths: Sequence[Path]
    options: dict[str, Any]
    wait: Sequence[str] = ()
    epochs: int = 1000
    pause: float = 0.005
    absent: Sequence[int] = ()
    drills: Mapping[int, str] = field(default_factory=dict)
    programs: dict[int, nodes.Program] = field(default_factory=dict)

    def begin(self) -> None:
        """Start the ranks."""
        (self.place / "comm").mkdir(parents=True)
        for rank, node in enumerate(NODE_OF):
            if rank in self.absent:
                continue
            wanted = {
                "place": str(self.place),
                "path": str(self.paths[node]),
                "rank": rank,
                "size": len(NODE_OF),
                "options": {"batch_size": 4, **self.options},
                "wait": list(self.wait),
                "epochs": self.epochs,
                "pause": self.pause,
            }
            command = self.cluster.on(node, [sys.executable, str(PROGRAM), json.dumps(wanted)])
            variables = {"FOREBAY_RUNTIME_DIR": MEETING_PLACE, "FOREBAY_FAILPOINT": self.drills.get(rank, "")}
            self.programs[rank] = nodes.Program(command, **variables)

    def said(self, rank: int) -> list[dict[str, Any]]:
        """All that a rank has said, by whole lines."""
        try:
            text = (self.place / f"said.{rank}").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(
        self, what: str, ranks: Sequence[int], within_s: float = nodes.WITHIN_S
    ) -> list[dict[str, Any]]:
        """Wait until ranks have said something, and return what they said with it."""
        end = time.monotonic() + within_s
        while True:
            found = [next((one for one in self.said(rank) if one["what"] == what), None) for rank in ranks]
            if None not in found:
                return [one for one in found if one is not None]
            assert time.monotonic() < end, (
                f"waiting for {what!r}: { ({rank: self.said(rank)[-1:] for rank in ranks}) }"
            )
            time.sleep(0.02)

    def go(self, stage: str) -> None:
        """Let the ranks go on that wait at a stage."""
        (self.place / f"go.{stage}").touch()

    def wait_for_stop(self, rank: int) -> None:
        """Wait until a rank has stopped itself where its drill says."""
        (start,) = self.wait_for("start", [rank])
        end = time.monotonic() + nodes.WITHIN_S
        while True:
            stat = self.cluster.call(NODE_OF[rank], "cat", f"/proc/{start['pid']}/stat")
            if stat[stat.rindex(")") + 2] == "T":
                return
            assert time.monotonic() < end, f"rank {rank} did not come to {self.drills[rank]}: {stat}"
            time.sleep(0.02)

    def kill_rank(self, rank: int) -> None:
        """Kill one process, by the number that it has on its node."""
        self.cluster.call(NODE_OF[rank], "kill", "-9", str(self.said(rank)[0]["pid"]))

    def check_told(self, lost: Sequence[int], dead: Sequence[int]) -> None:
        """Check that live ranks reported a lost one, ended well, and left nothing on their node."""
        alive = [rank for rank in self.programs if rank not in dead]
        begun = time.monotonic()
        for rank, told in zip(alive, self.wait_for("lost", alive, support.TOLD_WITHIN_S), strict=True):
            message = told["message"]
            assert any(f"rank {one} " in message for one in lost), (rank, message)
        print(f"told {time.monotonic() - begun:.1f} s after the last kill")
        self.finish(alive)

    def finish(self, alive: Sequence[int]) -> None:
        """Wait for the end of ranks and look what is left on their nodes."""
        for rank in alive:
            code, _, err = self.programs[rank].finish()
            assert code == 0, err
        for node in {NODE_OF[rank] for rank in alive}:
            check_clean(self.cluster, node)


def check_clean(cluster: Cluster, node: int) -> None:
    """Check that a node holds no process, shared memory name, listening socket or mount of ours."""
    # The node's first process, nsenter and what runs this.
    commands = cluster.call(node, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "drill_rank" not in commands, commands
    assert cluster.call(node, "find", "/dev/shm", "-mindepth", "1", "-not", "-path", MEETING_PLACE) == ""
    listening = cluster.call(node, "sh", "-c", "cat /proc/net/tcp /proc/net/tcp6")
    assert not [line for line in listening.splitlines() if line.split()[3] == "0A"], listening


@pytest.fixture
def drill(tmp_path, records):
    """Begin a drill; its cluster goes at the end, with all that is left in it."""
    begun: list[Drill] = []

    def begin(options: dict[str, Any] | None = None, **more: Any) -> Drill:
        mounts = more.pop("mounts", None)
        cluster = Cluster(len(PER_NODE), mounts)
        paths = more.pop("paths", [records] * len(PER_NODE))
        begun.append(Drill(cluster, tmp_path / "drill", paths, options or {}, **more))
        begun[-1].begin()
        return begun[-1]

    yield begin
    for one in begun:
        one.cluster.close()
        for program in one.programs.values():
            program.drop()


def lose(drill: Drill, victim: str) -> tuple[list[int], list[int]]:
    """Kill a rank, a leader or a node; return which ranks may be named, and which are dead."""
    if victim == "a node":
        ranks = [rank for rank, node in enumerate(NODE_OF) if node == 2]
        drill.cluster.kill(2)
        return ranks, ranks
    rank = {"a rank": 1, "the first leader": FIRST_OF[0], "a leader": FIRST_OF[2]}[victim]
    drill.kill_rank(rank)
    return [rank], [rank]


VICTIMS = ("a rank", "the first leader", "a leader", "a node")
FEWER = VICTIMS if support.LONG else ("a rank", "a node")

# Who is lost under which strategy.
LOSSES = [
    (victim, name)
    for name in CROSSING
    for victim in (VICTIMS if support.LONG or name == "forebay" else VICTIMS[1:2])
]


@pytest.mark.full
@pytest.mark.parametrize("victim", FEWER)
def test_a_loss_at_the_start_is_told(drill, victim):
    # Rank 3 keeps the others waiting while they make the loader; a rank that was killed before
    # that is a missing rank.
    one = drill({"timeout": 3}, absent=[3])
    one.wait_for("start", list(one.programs))
    lost, dead = lose(one, victim)
    alive = [rank for rank in one.programs if rank not in dead]
    for told in one.wait_for("lost", alive, support.TOLD_WITHIN_S):
        assert (
            any(f"rank {rank} " in told["message"] for rank in lost) or "came within 3 s" in told["message"]
        )
    one.finish(alive)


@pytest.mark.parametrize(("victim", "strategy"), LOSSES)
@pytest.mark.full
def test_a_loss_between_two_steps_is_told(drill, victim, strategy):
    one = drill({"strategy": strategy, "order": "sequential"})
    one.wait_for("walking", range(len(NODE_OF)))
    one.check_told(*lose(one, victim))


# Where a leader is when it dies: place and how often it has been there, who, under which strategy.
EXACT = [
    ("cursor:3", FIRST_OF[0], "lmm-dm"),
    ("cursor:2", FIRST_OF[1], "lmm-dm"),
    ("token:2", FIRST_OF[0], "lmm-dio-prov-coal-stag"),
    ("token:2", FIRST_OF[2], "lmm-dio-prov-coal-stag"),
    ("scan:20", FIRST_OF[0], "lmm-dio"),
    ("broadcast", FIRST_OF[0], "lmm-dio"),
]


@pytest.mark.full
@pytest.mark.parametrize(("place", "victim", "strategy"), EXACT)
def test_a_loss_at_an_exact_place_is_told_and_a_stop_there_is_none(drill, place, victim, strategy):
    one = drill({"strategy": strategy, "order": "sequential"}, drills={victim: f"stop:{place}"})
    one.wait_for_stop(victim)
    time.sleep(1)
    # It holds what the others wait for, and is not taken for dead.
    assert not [said for rank in one.programs for said in one.said(rank) if said["what"] == "lost"]
    one.kill_rank(victim)
    one.programs[victim].wake()
    one.check_told([victim], [victim])


@pytest.mark.full
@pytest.mark.parametrize("victim", FEWER)
def test_a_loss_at_the_end_of_an_epoch_is_told(drill, victim):
    one = drill({"order": "shuffle"}, wait=["end"])
    one.wait_for("end", range(len(NODE_OF)))
    lost, dead = lose(one, victim)
    time.sleep(0.3)
    one.go("end")
    one.check_told(lost, dead)


@pytest.mark.full
def test_a_node_that_is_cut_off_is_told_to_the_others_and_it_is_told_that_it_lost_them(drill):
    one = drill({"order": "shuffle"})
    one.wait_for("walking", range(len(NODE_OF)))
    one.cluster.unplug(2)
    lost = {
        rank: [other for other in FIRST_OF if NODE_OF[other] != NODE_OF[rank]] for rank in range(len(NODE_OF))
    }
    told = one.wait_for("lost", range(len(NODE_OF)), support.TOLD_WITHIN_S)
    for rank, answer in enumerate(told):
        named = FIRST_OF[2:] if NODE_OF[rank] != 2 else lost[rank]
        assert any(f"rank {other} " in answer["message"] for other in named), (rank, answer)
    one.cluster.plug(2)
    one.finish(range(len(NODE_OF)))


# --- on the emulated file system
# ---------------------------------------------------------------------------------------


@pytest.fixture
def storage(tmp_path, records):
    """An emulated file system with a mount for each node; all of a file lies on server 0."""
    points = [tmp_path / f"node{node}" for node in range(len(PER_NODE))]
    for point in points:
        point.mkdir()
    spec = emulator.write_spec(tmp_path / "spec.toml", stripe_count=1)
    yield pfs.Server.start(records.parent, points, spec=spec), points
    remove_all(tmp_path)


@emulator.needs_fuse
@pytest.mark.parametrize("victim", VICTIMS if support.LONG else VICTIMS[1:3])
@pytest.mark.full
def test_a_loss_while_a_container_is_scanned_is_told(storage, drill, records, victim):
    server, points = storage
    paths = [point / records.name for point in points]
    one = drill(
        {"strategy": "lmm-dio", "order": "sequential"},
        wait=["start"],
        mounts=[[p] for p in points],
        paths=paths,
    )
    one.wait_for("start", range(len(NODE_OF)))
    server.reset()
    for number in range(len(server.stats()["servers"])):
        server.stall(number, 4.0)
    one.go("start")
    # The scan has begun: a reader requests data that never arrive.
    end = time.monotonic() + nodes.WITHIN_S
    while sum(node["reads"] for node in server.stats()["nodes"]) == 0:
        assert time.monotonic() < end
        time.sleep(0.02)
    lost, dead = lose(one, victim)
    one.check_told(lost, dead)


@emulator.needs_fuse
@pytest.mark.full
def test_storage_that_stalls_is_a_warning_that_names_the_file_and_the_job_goes_on(storage, drill, records):
    server, points = storage
    paths = [point / records.name for point in points]
    one = drill(
        {"order": "shuffle"}, wait=["made"], mounts=[[p] for p in points], paths=paths, epochs=1, pause=0.0
    )
    one.wait_for("made", range(len(NODE_OF)))
    for number in range(len(server.stats()["servers"])):
        server.stall(number, 600.0)
    one.go("made")
    ranks = range(len(NODE_OF))
    support.wait_until(
        lambda: any(
            "data.mdb" in said["message"]
            for rank in ranks
            for said in one.said(rank)
            if said["what"] == "warned"
        ),
        "a warning that names the file",
    )
    server.clear_faults()
    for said in one.wait_for("finished", ranks):
        assert said["steps"] == -(-300 // (4 * len(NODE_OF)))
    one.finish(ranks)
