"""Loader lives on several ranks: breaks, jumps, forks, interrupts, exits, changed storage."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import pytest

import support
from support.ranks import plain, work
from support.ranks.pool import Killed, Raised


@pytest.mark.parametrize("order", plain.ORDERS)
@pytest.mark.parametrize("seed", range(6 if support.LONG else 3))
def test_ranks_that_break_keep_and_pause_as_they_like_get_what_the_order_says(pool, mixed, order, seed):
    rng = random.Random(f"{order} {seed}")
    ranks = rng.choice([1, 2, 3, 4])
    options = {
        "batch_size": 12 // ranks,
        **plain.ORDERS[order],
        "last_batch": rng.choice(["fill", "drop", "partial"]),
        "seed": seed,
        "strategy": {
            "access": rng.choice(["auto", "mmap", "pread", "io_uring"]),
            "readers": rng.choice([1, 2, 3, 4, 5]),
            "batch_buffers": rng.choice([2, 3, 4]),
        },
    }
    scripts = [[] for _ in range(ranks)]
    epoch = -1
    for _ in range(8):
        jump = rng.choice([None, None, None, rng.randrange(6)])
        epoch = epoch + 1 if jump is None else jump
        for script in scripts:
            script.append(
                {
                    "epoch": jump,
                    "stop": rng.choice([None, None, 1, 2, 3, 8, 9]),
                    "keep": rng.choice([0, 0, 0, 1, 3, 20]),
                    "pause": rng.choice([0, 0, 0, 0.001, 0.005]),
                    "drop": rng.random() < 0.5,
                    "scribble": rng.random() < 0.5,
                }
            )
    expected = plain.expected(mixed, options, ranks, 14, options["last_batch"])
    found = pool.run(ranks, work.act, lambda rank: {"actions": scripts[rank]}, path=mixed, options=options)
    epoch = -1
    for number in range(8):
        jump = scripts[0][number]["epoch"]
        epoch = epoch + 1 if jump is None else jump
        whole = expected[epoch]
        by_rank = [found[rank][number] for rank in range(ranks)]
        for rank, (told, step, steps) in enumerate(by_rank):
            assert (told, step) == (epoch, 0)
            stop = scripts[rank][number]["stop"]
            assert len(steps) == min(len(whole), stop or len(whole))
            if order != "group":
                assert steps == [one[rank] for one in whole[: len(steps)]]
        if order == "group":
            for step, one in enumerate(whole):
                if all(len(steps) > step for _, _, steps in by_rank):
                    assert [number for _, _, steps in by_rank for number in steps[step]] == one


@pytest.mark.parametrize("how", ["close", "break"])
def test_readers_that_move_or_lag_never_write_over_blocks_that_others_wait_for(pool, tmp_path, how):
    # Blocks of one rank each: steps of 1.5 MiB in a region per rank, and a ring that goes round
    # every few steps.
    path = str(
        support.write_lmdb(tmp_path / "x.lmdb", [support.record(number, 48_000) for number in range(1600)])
    )
    options = {
        "batch_size": 16,
        "order": "contiguous",
        "node_memory": "9MiB",
        "strategy": {"access": "pread", "readers": 2, "batch_buffers": 2},
    }
    expected = plain.contiguous(1600, 16, 2, 1, "fill")[0]
    for victim in (0, 1):
        each = lambda rank: {"actions": [{"stop": 2 if rank == victim else None}], "rest": how == "break"}  # noqa: B023, E731
        ranks = pool.begin(2, work.act, each, path=path, options=options)
        if how == "break":
            assert [rank.hear() for rank in ranks] == ["resting"] * 2
            for rank in ranks:
                rank.tell("go")
        found = pool.outcomes(ranks)
        for rank, passes in enumerate(found):
            assert not isinstance(passes, (Raised, Killed)), passes.trace
            assert passes[0][2] == [step[rank] for step in expected[: len(passes[0][2])]]


def test_a_fork_in_any_rank_disturbs_nobody(pool, mixed):
    options = {
        "batch_size": 4,
        "order": "shuffle",
        "strategy": {"access": "pread", "readers": 3, "batch_buffers": 3},
    }
    found = pool.run(3, work.forking, path=mixed, options=options)
    assert [one["codes"] for one in found] == [[4, 4]] * 3
    assert plain.together(found, 0) == plain.expected(mixed, options, 3, 1)[0]


def test_interrupts_at_any_moment_lose_no_place(pool, mixed, tmp_path):
    options = {
        "batch_size": 4,
        "order": "shuffle",
        "strategy": {"access": "pread", "readers": 3, "batch_buffers": 2},
    }
    epochs = 12
    each = lambda rank: {"rests": rank == 0, "tally": str(tmp_path / f"tally.{rank}")}  # noqa: E731
    ranks = pool.begin(3, work.interrupted, each, path=mixed, options=options, epochs=epochs)
    rng = random.Random(5)
    tallies = [tmp_path / "tally.1", tmp_path / "tally.2"]
    for epoch in range(epochs):
        assert ranks[0].hear() == "resting"

        def interrupt():
            time.sleep(rng.choice([0, 0.001, 0.01]))
            ranks[rng.choice([1, 2])].kill(signal.SIGINT)
            return sum(tally.stat().st_size for tally in tallies if tally.exists())

        for _ in range(6):
            interrupt()
        # Of signals that come too fast for a busy machine some are one. In the last epoch the
        # others may be done.
        if epoch + 1 < epochs:
            support.wait_until(lambda: interrupt() >= 2 * (epoch + 1), "two interrupts an epoch")  # noqa: B023
        ranks[0].tell("go")
    found = pool.outcomes(ranks)
    for one in found:
        assert not isinstance(one, (Raised, Killed)), one
    assert found[1]["interrupts"] + found[2]["interrupts"] > epochs
    expected = plain.expected(mixed, options, 3, 2 * epochs + 1)
    for rank, one in enumerate(found):
        for number, steps in enumerate(one["found"]):
            whole = [step[rank] for step in expected[2 * (epochs - number)]]
            # A batch on its way from the call to the variable goes with the interrupt; no batch
            # comes twice or late.
            places = [whole.index(step) for step in steps]
            assert places == sorted(set(places))
            assert rank != 0 or steps == whole


@pytest.mark.parametrize("victim", [0, 2])
def test_a_loader_that_is_collected_says_goodbye(pool, mixed, victim):
    options = {"batch_size": 4, "order": "shuffle", "strategy": {"access": "pread", "readers": 3}}
    ranks = pool.ranks(3)
    job = f"collected-{victim}"
    for number, rank in enumerate(ranks):
        world = {"rank": number, "size": 3, "job": job}
        if number == victim:
            rank.begin(work.collected, world, {"path": mixed, "options": options})
        else:
            rank.begin(work.deliver, world, {"path": mixed, "options": options, "epochs": 5})
    found = pool.outcomes(ranks)
    assert found[victim] == []
    for number in {0, 1, 2} - {victim}:
        assert [len(steps) for steps in found[number]["found"]] == [9] * 5


def test_views_outlive_the_loaders_of_all_ranks_and_the_memory_goes_with_the_last(pool, mixed, even):
    for path in (mixed, even):
        options = {"batch_size": 4, "order": "shuffle", "strategy": {"batch_buffers": 2}}
        for one in pool.run(3, work.views, path=path, options=options):
            assert one["right"]
            assert one["writable"]
            assert one["held"] > 0
            assert one["left"] == []


EXITING = """
import forebay, sys
rank, path, job = int(sys.argv[1]), sys.argv[2], sys.argv[3]
loader = forebay.Loader(path, 4, order="shuffle", node_memory="16MiB", world=forebay.World(rank=rank, size=3, job=job))
iteration = iter(loader)
kept = [next(iteration) for _ in range(2)]
if rank != 1:
    for _ in range(3):
        kept = [sum(1 for _ in loader)]
print("end", kept[0] if rank != 1 else len(kept))
"""


def test_a_rank_that_exits_with_a_loader_alive_leaves_the_others_working(even):
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", EXITING, str(rank), even, f"exit-{os.getpid()}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        found = [
            (*process.communicate(timeout=support.DEADLINE_S), process.returncode) for process in processes
        ]
    finally:
        for process in processes:
            process.kill()
    assert found == [("end 9\n", "", 0), ("end 2\n", "", 0), ("end 9\n", "", 0)]


def start_ranks(pool, size, function, other, **arguments):
    """Start a call on rank 0 and another one on the rest."""
    job = f"{function.__name__}-{os.getpid()}"
    ranks = pool.ranks(size)
    for number, rank in enumerate(ranks):
        world = {"rank": number, "size": size, "job": job}
        rank.begin(other if number else function, world, arguments)
    return ranks


def test_closing_ends_the_wait_of_another_thread(pool, mixed):
    options = {"batch_size": 4, "order": "shuffle", "strategy": {"access": "pread"}}
    ranks = start_ranks(pool, 2, work.closing, work.rested, path=mixed, options=options)
    assert ranks[0].hear() == "waiting"
    # The other rank still rests.
    (ended,) = ranks[0].hear()
    assert "closed" in ended
    assert ranks[1].hear() == "resting"
    ranks[1].tell("go")
    assert ranks[1].hear() == 13


WAITING = """
import forebay, sys, threading, time
rank, path, job = int(sys.argv[1]), sys.argv[2], sys.argv[3]
loader = forebay.Loader(path, 4, order="shuffle", node_memory="16MiB", world=forebay.World(rank=rank, size=2, job=job))
if rank == 0:
    def iterate():
        while True:
            for batch in loader:
                pass
    threading.Thread(target=iterate, daemon=True).start()
    time.sleep(2)
else:
    next(iter(loader))
    time.sleep(60)
"""


def test_a_process_exits_while_a_thread_of_it_waits_for_a_batch(even):
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WAITING, str(rank), even, f"wait-{os.getpid()}"]
        )
        for rank in range(2)
    ]
    try:
        assert processes[0].wait(support.DEADLINE_S) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_ranks_may_be_started_by_any_method_of_multiprocessing(even, method):
    code = """
import forebay, multiprocessing, sys

def rank(number, path):
    loader = forebay.Loader(path, 4, order="shuffle", node_memory="16MiB", world=forebay.World(rank=number, size=2))
    for _ in range(1 if number == 0 else 3):
        assert sum(1 for _ in loader) == 13

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    processes = [context.Process(target=rank, args=(number, sys.argv[2])) for number in range(2)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    print([one.exitcode for one in processes])
"""
    work_file = Path("started.py")
    work_file.write_text(code)
    done = subprocess.run(
        [sys.executable, str(work_file), method, even],
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[0, 0]\n", "")


# --- storage ---


@pytest.mark.parametrize("access", ["pread", "io_uring", "auto", "mmap"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_file_that_is_truncated_under_way_is_an_error_with_file_and_offset(pool, tmp_path, access, ranks):
    path = support.write_lmdb(
        tmp_path / "x.lmdb", [support.record(number, 100_000) for number in range(plain.SAMPLES)]
    )
    strategy = {"access": access, "readers": 2}
    options = {"batch_size": 2, "order": "sequential", "strategy": strategy, "node_memory": "8MiB"}
    work.records(str(path))
    ranks = pool.begin(ranks, work.rested, path=str(path), options=options)
    for rank in ranks:
        assert rank.hear() == "resting"
    data = path / "data.mdb"
    os.truncate(data, 2_000_000)
    for rank in ranks:
        rank.tell("go")
    for one in pool.outcomes(ranks):
        assert isinstance(one, Raised)
        assert one.kind == "StorageError"
        assert str(data) in one.message
        assert re.search(r"offset [0-9]+", one.message), one.message


def test_a_dataset_that_is_written_to_is_an_error_at_the_end_of_the_epoch(pool, tmp_path):
    path = support.write_lmdb(
        tmp_path / "x.lmdb", [support.record(number, 500) for number in range(plain.SAMPLES)]
    )
    ranks = pool.begin(2, work.rested, path=str(path), options={"batch_size": 2, "order": "shuffle"})
    for rank in ranks:
        assert rank.hear() == "resting"
    with lmdb.open(str(path), map_size=1 << 24) as environment:
        for number in range(2):
            with environment.begin(write=True) as transaction:
                transaction.put(b"more", str(number).encode())
    for rank in ranks:
        rank.tell("go")
    for one in pool.outcomes(ranks):
        assert isinstance(one, Raised), one
        assert one.kind == "StorageError"
        assert "data.mdb" in one.message
        assert "transaction" in one.message


@pytest.mark.parametrize(
    ("differ", "name"),
    [
        ({"batch_size": 5}, "batch_size"),
        ({"seed": 1}, "seed"),
        ({"order": "shuffle"}, "order"),
        ({"last_batch": "drop"}, "last_batch"),
        ({"node_memory": "33MiB"}, "node_memory"),
        ({"strategy": {"readers": 3}}, "strategy.readers"),
        ({"strategy": {"access": "pread"}}, "strategy.access"),
        ({"strategy": {"batch_buffers": 3}}, "strategy.batch_buffers"),
        ({"timeout": 60}, "timeout"),
    ],
)
def test_ranks_that_want_different_things_are_all_told_which(pool, even, differ, name):
    options = {"batch_size": 4, "order": "sequential"}
    for odd in (0, 2):
        each = lambda rank: {"options": {**options, **(differ if rank == odd else {})}}  # noqa: B023, E731
        for one in pool.outcomes(pool.begin(3, work.made, each, path=even)):
            assert isinstance(one, Raised), one
            assert one.kind == "RendezvousError"
            assert f"the ranks disagree on {name}" in one.message


def test_ranks_with_different_datasets_are_all_told(pool, even, mixed):
    each = lambda rank: {"path": mixed if rank == 1 else even}  # noqa: E731
    for one in pool.outcomes(pool.begin(3, work.made, each, options={"batch_size": 4})):
        assert isinstance(one, Raised)
        assert one.kind == "RendezvousError"
        assert "the ranks disagree on dataset" in one.message


# --- ranks that wait for each other ---


@pytest.mark.parametrize("taken", [0, 3])
@pytest.mark.full
def test_ranks_that_wait_for_each_other_in_different_loaders_raise_on_both(pool, tmp_path, taken):
    # More than the memory holds: a rank needs blocks that the reader of the other one fills.
    path = str(
        support.write_lmdb(tmp_path / "x.lmdb", [support.record(number, 48_000) for number in range(1600)])
    )
    options = {"batch_size": 16, "order": "contiguous", "timeout": 60}
    options["strategy"] = {"access": "pread", "readers": 2, "batch_buffers": 2}
    ranks = pool.begin(2, work.crossed, path=path, options=options, taken=taken)
    assert [rank.hear() for rank in ranks] == ["failed"] * 2
    for rank in ranks:
        rank.tell("go")
    for number, (said, _) in enumerate(pool.outcomes(ranks)):
        assert f'loader "{"ab"[number]}": this rank waits for rank {1 - number}' in said
        assert "which waits for this rank in another loader" in said
        assert 'world="single"' in said


def test_the_warning_of_a_rank_that_iterates_alone_names_the_way_out(pool, even):
    ranks = pool.begin(2, work.alone, path=even, options={"batch_size": 2, "timeout": 2})
    assert ranks[1].hear() == "resting"
    warned = ranks[0].hear()
    assert "waiting for rank 1" in warned
    assert "if rank 1 does not iterate this loader" in warned
    assert 'world="single"' in warned
    ranks[1].tell("go")
    # It goes on when the other rank has closed its loader, with its own part.
    found = pool.outcomes(ranks)
    assert found == [sum(step[0] for step in plain.sizes(plain.SAMPLES, 2, 2, "partial")), 0]


def test_a_loader_of_one_node_imports_what_it_uses_alone(small_lmdb):
    """Each of these takes milliseconds of a start, and helps other loaders."""
    code = """
import sys, forebay
with forebay.Loader(sys.argv[1], 2) as loader:
    next(iter(loader))
rare = {"multiprocessing", "subprocess", "numpy.random", "hashlib", "secrets", "html", "runpy"}
rare |= {"forebay.config", "forebay._job.tcp", "forebay._job.endpoints", "forebay._samples.processes"}
print(sorted(rare & sys.modules.keys()))
"""
    done = support.run_python(code, small_lmdb)
    assert (done.stdout, done.stderr) == ("[]\n", "")
