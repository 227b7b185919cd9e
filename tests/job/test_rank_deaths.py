"""Ranks that die, stop or leave at each stage: the others learn which; nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

import support
from support.ranks import work
from support.ranks.pool import Killed, Raised

OPTIONS = {"batch_size": 4, "order": "shuffle"}
READERS = {"access": "pread", "readers": 3}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """300 records of 20 KB: an epoch is larger than the smallest staging ring."""
    values = [support.record(number, 20_000) for number in range(300)]
    return str(support.write_lmdb(tmp_path_factory.mktemp("records") / "records.lmdb", values))


@pytest.fixture
def place():
    """The directory where ranks meet; it must be empty in the end."""
    return Path(os.environ["FOREBAY_RUNTIME_DIR"])


def names(place):
    return sorted(one.name for one in place.iterdir()) if place.exists() else []


def check_told(outcomes, victim, found_key="message"):
    """Every survivor was told who died."""
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            assert isinstance(outcome, Killed)
            assert outcome.exitcode == -signal.SIGKILL
        else:
            assert not isinstance(outcome, Raised), outcome.trace
            assert f"rank {victim}" in outcome[found_key], outcome


def check_next_job(pool, records, job, place):
    """A job of the same name goes well, and leaves nothing."""
    found = pool.outcomes(pool.begin(3, work.deliver, path=records, options=OPTIONS, job=job))
    for one in found:
        assert not isinstance(one, (Raised, Killed)), one
    assert sum(len(step) for one in found for step in one["found"][0]) == 300
    assert names(place) == []


# --- while they meet ---


@pytest.mark.sweep(together=1)
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("when", ["they have met", "they come"])
def test_a_death_while_ranks_meet_is_told_and_the_next_job_overcomes_it(pool, records, place, victim, when):
    job = f"meet-{victim}-{when}"
    options = {**OPTIONS, "timeout": 8}
    # The fourth rank does not come, so the others wait for it.
    ranks = pool.begin(4, work.meeting, path=records, options=options, job=job, absent=[3])[:3]
    for rank in ranks:
        assert rank.hear() == "meeting"
    if when == "they have met":
        # The leader watches each rank that has joined, itself included.
        support.wait_until(lambda: support.pidfds_of(ranks[0].pid) == 3, "three ranks to meet")
    else:
        time.sleep(0.01)
    ranks[victim].kill()
    outcomes = [
        one[0] if isinstance(one, list) else one for one in pool.outcomes(ranks, support.TOLD_WITHIN_S)
    ]
    if when == "they have met":
        check_told(outcomes, victim)
    for rank, outcome in enumerate(outcomes):
        # One that was killed before it came is one that did not come.
        assert isinstance(outcome, Killed) if rank == victim else "rank" in outcome["message"]
    check_next_job(pool, records, job, place)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_death_while_the_leader_builds_the_index_is_told(pool, records, place, victim):
    job = f"build-{victim}"
    ranks = pool.begin(3, work.building, path=records, options=OPTIONS, job=job)
    assert ranks[0].hear() == "building"
    ranks[victim].kill()
    check_told(pool.outcomes(ranks, support.TOLD_WITHIN_S), victim)
    check_next_job(pool, records, job, place)


def test_the_index_is_built_once_by_the_leader(pool, records):
    ranks = pool.begin(3, work.building, path=records, options=OPTIONS, pause=0.0)
    assert ranks[0].hear() == "building"
    assert [one["steps"] for one in pool.outcomes(ranks)] == [25, 25, 25]


# --- while they work ---


@pytest.mark.sweep(together=1)
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("readers", [1, 3])
def test_a_death_between_two_steps_is_told_and_nothing_stays(pool, records, place, victim, readers):
    options = {**OPTIONS, "strategy": {**READERS, "readers": readers}}
    ranks = pool.begin(3, work.walk, path=records, options=options, job=f"walk-{victim}-{readers}")
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
    check_next_job(pool, records, f"walk-{victim}-{readers}", place)


def test_a_death_is_told_where_every_batch_is_ready_and_nobody_waits(pool, records, place):
    # Batches of one resident page at a time, all in memory, and a rank that reads nothing for the
    # others.
    options = {"batch_size": 1, "order": "sequential", "strategy": {"readers": 1}}
    ranks = pool.begin(3, work.walk, path=records, options=options, job="resident")
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "walking"
    ranks[2].kill()
    check_told(pool.outcomes(ranks, support.TOLD_WITHIN_S), 2)
    check_next_job(pool, records, "resident", place)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_death_at_the_same_step_as_all_others_is_told(pool, records, victim):
    ranks = pool.begin(3, work.walk, path=records, options=OPTIONS, stop=3)
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "resting"
    ranks[victim].kill()
    for number, rank in enumerate(ranks):
        if number != victim:
            rank.tell("go")
    check_told(pool.outcomes(ranks, support.TOLD_WITHIN_S), victim)


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_death_while_all_wait_for_a_slow_rank_is_told(pool, records, slow):
    # A slow rank holds up the staging ring, and with it the others.
    options = {**OPTIONS, "strategy": {**READERS, "batch_buffers": 2}, "node_memory": "8MiB"}
    ranks = pool.begin(
        3, work.walk, lambda rank: {"stop": 1 if rank == slow else None}, path=records, options=options
    )
    for number, rank in enumerate(ranks):
        assert rank.hear() == "made"
        assert rank.hear() == ("resting" if number == slow else "walking")
    time.sleep(1)
    victim = (slow + 1) % 3
    third = (slow + 2) % 3
    ranks[victim].kill()
    # The third hears of it while the slow one still rests.
    told = ranks[third].hear(support.TOLD_WITHIN_S)
    assert f"rank {victim}" in told["message"]
    ranks[slow].tell("go")
    assert f"rank {victim}" in ranks[slow].hear(support.TOLD_WITHIN_S)["message"]
    assert ranks[victim].hear() == Killed(-signal.SIGKILL)


def test_the_last_of_many_deaths_is_survived(pool, records):
    ranks = pool.begin(4, work.walk, path=records, options=OPTIONS)
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "walking"
    for victim in (0, 2, 3):
        ranks[victim].kill()
    told = ranks[1].hear(support.TOLD_WITHIN_S)
    assert any(f"rank {victim}" in told["message"] for victim in (0, 2, 3))
    assert told["memory"] == []


@pytest.mark.parametrize("stopped", [0, 1, 2])
@pytest.mark.full
def test_a_rank_that_is_stopped_for_a_while_is_not_dead(pool, records, stopped):
    options = {**OPTIONS, "strategy": READERS, "node_memory": "8MiB"}
    ranks = pool.begin(3, work.rested, path=records, options=options, epochs=40)
    for rank in ranks:
        assert rank.hear() == "resting"
    for rank in ranks:
        rank.tell("go")
    ranks[stopped].kill(signal.SIGSTOP)
    try:
        time.sleep(3)
    finally:
        ranks[stopped].kill(signal.SIGCONT)
    assert pool.outcomes(ranks) == [40 * 25] * 3


# --- while they go ---


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_rank_that_ends_its_process_after_closing_is_no_loss(pool, records, first, place):
    options = {**OPTIONS, "strategy": READERS}
    each = lambda rank: {"epochs": 1 if rank == first else 6}  # noqa: E731
    ranks = pool.begin(3, work.deliver, each, path=records, options=options)
    assert len(ranks[first].hear()["found"]) == 1
    ranks[first].kill()
    ranks[first].process.join()  # or the next test would take it for alive
    found = pool.outcomes([rank for rank in ranks if rank is not ranks[first]])
    for one in found:
        assert not isinstance(one, (Raised, Killed)), one
        assert [len(steps) for steps in one["found"]] == [25] * 6
    assert names(place) == []


def test_nothing_is_left_when_all_die_at_once(pool, records, place):
    ranks = pool.begin(4, work.walk, path=records, options={**OPTIONS, "node_memory": "256MiB"})
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "walking"
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            rank.kill()
    assert pool.outcomes(ranks) == [Killed(-signal.SIGKILL)] * 4
    assert names(place) == []
    assert not [one for one in Path("/dev/shm").iterdir() if "forebay" in one.name]
