"""Waits: for stalled storage up to the limit; for a slow or stopped rank without limit.

The emulated file system stalls for an hour, so whatever these tests see happens while storage
stalls: they hold no watch.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time

import pytest

import forebay
import support
from forebay_lab import pfs
from support.emulator import needs_fuse, write_spec
from support.ranks import work
from support.ranks.pool import Killed, Raised

HOUR_S = 3600.0
# Records that are read straight into the batch, and records that are read through staging blocks.
SIZES = {"large": 20_000, "small": 3000}
BYTES = 12_000_000
TIMEOUT_S = 3
OPTIONS = {
    "batch_size": 4,
    "order": "shuffle",
    "node_memory": "8MiB",
    "timeout": TIMEOUT_S,
    "expected_epochs": 1,
}


@pytest.fixture
def storage(backing, points, tmp_path):
    """A file system with a small database of each size, and what stalls all its servers."""
    paths = {}
    for name, length in SIZES.items():
        values = [support.record(number, length) for number in range(BYTES // length)]
        support.write_lmdb(backing / f"{name}.lmdb", values)
        paths[name] = str(points[0] / f"{name}.lmdb")
    server = pfs.Server.start(backing, points[:1], spec=write_spec(tmp_path / "spec.toml"))

    def stall(seconds: float) -> None:
        server.drop_caches(points[0])
        for number in range(len(server.stats()["servers"])):
            server.stall(number, seconds)

    yield server, paths, stall
    # Requests that wait already wait on after `clear`; without a mount they fail.
    with contextlib.suppress(forebay.ForebayError):
        server.end()


def go(begun, said):
    """Hear a word from all ranks, and let them go on."""
    for rank in begun:
        assert rank.hear() == said
    for rank in begun:
        rank.tell("go")


def check(outcomes):
    for outcome in outcomes:
        assert not isinstance(outcome, Raised), outcome.trace
        assert not isinstance(outcome, Killed)


@needs_fuse
@pytest.mark.parametrize(
    ("ranks", "size"), [(1, "large"), (4, "small"), *([(1, "small"), (4, "large")] if support.LONG else [])]
)
def test_a_stall_is_an_error_and_the_loader_closes_while_it_lasts(pool, storage, ranks, size):
    _, paths, stall = storage
    begun = pool.begin(ranks, work.stalled, path=paths[size], options=OPTIONS)
    go(begun, "here")
    for rank in begun:
        assert rank.hear() == "begun"
    stall(HOUR_S)
    for rank in begun:
        rank.tell("go")
    outcomes = pool.outcomes(begun)
    check(outcomes)
    for outcome in outcomes:
        assert outcome["kind"] == "StorageTimeout"
        assert "data.mdb" in outcome["message"]
        assert outcome["warnings"]
    # What reads of these processes are under way still share nothing with their next loader.
    local = support.write_lmdb(storage[0].backing.parent / "local.lmdb", [support.record(1, 3000)] * 64)
    found = pool.run(
        ranks, work.deliver, path=str(local), options={**OPTIONS, "timeout": 60, "node_memory": "32MiB"}
    )
    assert sum(len(step) for one in found for step in one["found"][0]) == 64


PROGRAM = """
import sys, forebay
loader = forebay.Loader(sys.argv[1], 4, order="shuffle", node_memory="8MiB", world="single", timeout=float(sys.argv[2]))
batches = iter(loader)
next(batches)
print("begun", flush=True)
sys.stdin.readline()
print("waits", flush=True)
for batch in batches:
    pass
"""


@needs_fuse
@pytest.mark.parametrize(("timeout_s", "expected"), [(1, "StorageTimeout"), (600, "KeyboardInterrupt")])
def test_a_program_ends_while_storage_stalls(storage, timeout_s, expected):
    _, paths, stall = storage
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, paths["large"], str(timeout_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        stall(HOUR_S)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "waits\n"
        if expected == "KeyboardInterrupt":
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        try:
            # Storage would answer in an hour.
            _, err = process.communicate(timeout=support.DEADLINE_S)
        finally:
            process.kill()
    assert expected in err
    assert process.returncode != 0


@needs_fuse
def test_a_loader_is_not_made_while_storage_stalls_and_all_ranks_are_told(pool, storage):
    _, paths, stall = storage
    begun = pool.begin(4, work.made_in_a_stall, path=paths["small"], options=OPTIONS)
    for rank in begun:
        assert rank.hear() == "opened"
    stall(HOUR_S)
    for rank in begun:
        rank.tell("go")
    outcomes = pool.outcomes(begun)
    check(outcomes)
    assert [outcome["kind"] for outcome in outcomes] == ["StorageTimeout"] * 4
    assert all(f"nothing has moved for {TIMEOUT_S} s" in outcome["message"] for outcome in outcomes)


def stalled(server) -> int:
    """How many of the servers stall; the first of them ends a little before the last."""
    return len(server.stats()["faults"]["stalled"])


def is_stalled(server) -> bool:
    """Whether nothing has been answered yet."""
    return stalled(server) == len(server.stats()["servers"])


@needs_fuse
def test_a_rank_that_closes_in_a_stall_hands_its_readers_on_when_storage_has_answered(pool, storage):
    server, paths, stall = storage
    options = {**OPTIONS, "timeout": 60, "strategy": {"access": "pread", "readers": 4}}
    for seconds in (4.0, 16.0):
        begun = pool.begin(
            4, work.stalled, lambda rank: {"leaves": rank == 1}, path=paths["small"], options=options
        )
        go(begun, "here")
        for rank in begun:
            assert rank.hear() == "begun"
        stall(seconds)
        for rank in begun:
            rank.tell("go")
        left = begun[1].hear()
        in_the_stall = is_stalled(server)
        outcomes = [left, *pool.outcomes([begun[0], *begun[2:]])]
        check(outcomes)
        # The bytes are compared by each rank.
        assert [outcome["kind"] for outcome in outcomes] == ["left", "", "", ""]
        if in_the_stall:
            return
    pytest.fail("closing took as long as storage stalled, twice")


@needs_fuse
def test_a_jump_in_a_stall_waits_for_the_reads_of_the_pass_before_within_the_limit(pool, storage):
    server, paths, stall = storage
    options = {
        **OPTIONS,
        "strategy": {"access": "pread", "readers": 2},
        "expected_epochs": None,
        "timeout": 1,
    }
    for seconds in (4.0, 4.0, 8.0, 16.0):
        (rank,) = pool.begin(1, work.jumps, path=paths["small"], options=options)
        assert rank.hear() == "begun"
        stall(seconds)
        rank.tell("go")
        said = rank.hear()
        in_the_stall = is_stalled(server)
        while stalled(server):
            time.sleep(0.05)
        rank.tell("go")
        outcome = rank.hear()
        check([outcome])
        assert outcome["steps"] == BYTES // SIZES["small"] // 4
        # Where storage keeps only a read into a batch, which nothing else touches, the jump has
        # nothing to wait for.
        assert said in ("StorageTimeout", "nothing")
        if in_the_stall and said == "StorageTimeout":
            # The start that failed counts for nothing.
            assert outcome["epoch"] == 7
            return
    pytest.fail("no jump met a reader that storage kept, and was given up while it did")


@pytest.mark.parametrize("kind", ["stopped", "computing", "late"])
@pytest.mark.full
def test_a_rank_that_keeps_the_others_waiting_is_named_in_warnings_and_nobody_raises(pool, tmp_path, kind):
    values = [support.record(number, 20_000) for number in range(300)]
    path = str(support.write_lmdb(tmp_path / "records.lmdb", values))
    options = {
        **OPTIONS,
        "expected_epochs": None,
        "strategy": {"access": "pread", "readers": 3, "batch_buffers": 2},
        "node_memory": "8MiB",
    }
    slow = 2
    begun = pool.begin(
        4,
        work.paced,
        lambda rank: {"kind": kind if rank == slow and kind != "stopped" else ""},
        path=path,
        options=options,
    )
    go(begun, "here")
    for rank in begun:
        assert rank.hear() == "begun"
    if kind == "stopped":
        begun[slow].kill(signal.SIGSTOP)
    try:
        for rank in begun:
            if rank is not begun[slow] or kind != "stopped":
                rank.tell("go")
        others = [rank for rank in begun if rank is not begun[slow]]
        if kind != "stopped":
            assert begun[slow].hear() == "resting"
        # One after half of the limit, one after all of it, and then more time than is allowed to
        # storage.
        for _ in range(2):
            for rank in others:
                said = rank.hear()
                assert isinstance(said, str), said
                assert f"rank {slow} (local rank {slow}, process" in said
                assert "on node" in said
        time.sleep(TIMEOUT_S / 2)
    finally:
        begun[slow].kill(signal.SIGCONT)
    begun[slow].tell("go")
    for rank in begun:
        # What it says on the way are further warnings.
        while isinstance(said := rank.hear(), str):
            assert f"rank {slow} " in said
        assert said == {"epochs": 3, "steps": 3 * -(-300 // 16)}
