"""Loaders of several ranks that find each other by what a launcher leaves in the environment.

The promises that hold for any ranks are in test_promises.py and test_deaths.py, those of real MPI
launches in test_mpi.py.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time

import pytest

import support

# Ranks of one job share a port; torchrun's would be a real one, ours only has to be different.
PORTS = itertools.count(20000 + os.getpid() % 10000 * 1000)

RANK = """
import json, os, sys
import forebay
path, options = sys.argv[1], json.loads(sys.argv[2])
epochs, stop = options.pop("epochs", 1), options.pop("stop", None)
group = options.pop("group", None)
if group is not None:
    options["order"] = forebay.Group(**group)
state = options.pop("state", None)
with forebay.Loader(path, node_memory="32MiB", **options) as loader:
    if state is not None:
        loader.load_state_dict(state)
    found = []
    for epoch in range(epochs):
        steps = []
        for batch in loader:
            for row, number in zip(batch["data"], batch.indices):
                assert bytes(row[:8]) == int(number).to_bytes(8, "little") , number
            steps.append([int(number) for number in batch.indices])
            if stop is not None and len(steps) == stop:
                break
        found.append(steps)
    result = {"rank": loader.world.rank, "found": found, "state": loader.state_dict(), "stats": loader.stats()}
    print("RESULT", json.dumps(result))
"""


@pytest.fixture(scope="module")
def counted_lmdb(tmp_path_factory):
    """240 records of 500 bytes that begin with their number."""
    values = [number.to_bytes(8, "little") + support.record(number, 492) for number in range(240)]
    return support.write_lmdb(tmp_path_factory.mktemp("counted") / "counted.lmdb", values)


def torchrun_environment(rank, size, port):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }


def start(size, path, options, code=RANK, each=None):
    """Start ranks with torchrun's variables; each group is a job of its own."""
    port = next(PORTS)
    ranks = []
    for rank in range(size):
        told = json.dumps({**options, **(each(rank) if each else {})})
        environment = torchrun_environment(rank, size, port)
        ranks.append(support.Process(code, path, told, environment=environment))
    return ranks


def finish(ranks):
    """Wait for ranks; return (exit code, stdout, stderr) of each; end all that remain."""
    end = time.monotonic() + support.DEADLINE_S
    try:
        return [rank.finish(end - time.monotonic()) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def results(size, path, options, **more):
    """Run ranks to their end and return what each found, by rank."""
    found = []
    for returncode, out, err in finish(start(size, path, options, **more)):
        assert returncode == 0, err
        found.append(json.loads(out.split("RESULT ", 1)[1]))
    assert [one["rank"] for one in found] == list(range(size))
    return found


def global_steps(found, epoch=0):
    """Global batches: what the ranks got at each step, in the order of the ranks."""
    steps = [one["found"][epoch] for one in found]
    assert len({len(own) for own in steps}) == 1
    return [[number for own in steps for number in own[step]] for step in range(len(steps[0]))]


@pytest.mark.parametrize("order", ["sequential", "contiguous", "shuffle", "group"])
def test_ranks_get_every_sample_once_together(counted_lmdb, order):
    found = results(3, counted_lmdb, {"batch_size": 8, "order": order, "epochs": 2})
    for epoch in (0, 1):
        numbers = [number for step in global_steps(found, epoch) for number in step]
        assert sorted(numbers) == list(range(240))


def test_a_state_that_these_ranks_cannot_continue_names_those_that_can(counted_lmdb):
    state = results(4, counted_lmdb, {"global_batch": 16, "order": "group", "stop": 1})[0]["state"]
    options = {"batch_size": 5, "order": "group", "state": state}
    for returncode, _, err in finish(start(3, counted_lmdb, options)):
        assert returncode == 1
        assert f"3 ranks cannot share the {state['lanes']} lanes of the state" in err
        assert "hint: numbers of ranks that can: 1, 2, 4" in err


def test_the_node_reads_each_page_once_per_epoch(counted_lmdb):
    group = {"samples": 60, "window": 1, "lanes": 4}
    found = results(4, counted_lmdb, {"batch_size": 6, "group": group, "strategy": "pread", "epochs": 2})
    # Reading ahead belongs to the epoch it is for; the last one may be under way.
    epochs = {epoch for one in found for epoch in one["stats"]["read_bytes_by_epoch"]}
    read = [sum(one["stats"]["read_bytes_by_epoch"].get(epoch, 0) for one in found) for epoch in epochs]
    assert 240 * 500 <= max(read) <= 1.02 * (counted_lmdb / "data.mdb").stat().st_size
    assert sum(one["stats"]["samples"] for one in found) == 480


def test_two_jobs_of_one_user_do_not_meet(counted_lmdb):
    one = start(2, counted_lmdb, {"batch_size": 4, "seed": 1, "order": "shuffle"})
    two = start(2, counted_lmdb, {"batch_size": 6, "seed": 2, "order": "shuffle"})
    for returncode, _, err in finish(one) + finish(two):
        assert returncode == 0, err


def test_validation_on_one_rank_while_all_train(counted_lmdb):
    code = """
import forebay, json, sys
path = sys.argv[1]
training = forebay.Loader(path, 8, order="shuffle", node_memory="32MiB")
found = 0
for step, batch in enumerate(training):
    if step == 3 and training.world.rank == 0:
        with forebay.Loader(path, 16, order="sequential", world="single", name="validation", node_memory="8MiB") as validation:
            found = sum(len(one.indices) for one in validation)
training.close()
print("RESULT", json.dumps({"rank": training.world.rank, "found": found}))
"""
    found = results(2, counted_lmdb, {}, code=code)
    assert [one["found"] for one in found] == [240, 0]


def test_two_loaders_of_one_job_are_told_apart_by_name(counted_lmdb):
    code = """
import forebay, json, sys
path = sys.argv[1]
training = forebay.Loader(path, 8, order="shuffle")
validation = forebay.Loader(path, 8, order="sequential", name="validation")
found = []
for one, two in zip(training, validation, strict=True):
    found.append([list(map(int, one.indices)), list(map(int, two.indices))])
print("RESULT", json.dumps({"rank": training.world.rank, "found": found}))
"""
    found = results(2, counted_lmdb, {}, code=code)
    for kind in (0, 1):
        numbers = [number for one in found for step in one["found"] for number in step[kind]]
        assert sorted(numbers) == list(range(240))


# Here the warnings are what is looked at.
WARNED = 'import warnings\nwarnings.simplefilter("always")\n'


def test_a_rank_that_does_not_come_is_an_error_that_names_it(counted_lmdb):
    options = {"batch_size": 4, "timeout": 2}
    processes = start(3, counted_lmdb, options, code=WARNED + RANK)
    processes[1].kill()
    found = finish([processes[0], processes[2]])
    for returncode, _, err in found:
        assert returncode == 1
        assert "RendezvousError" in err
    assert re.search(r"this is local rank 0, and has waited for \d+ s for ranks? 1\b", found[0][2]), found[0][
        2
    ]


def test_a_follower_is_told_that_its_leader_has_not_come(counted_lmdb):
    processes = start(2, counted_lmdb, {"batch_size": 4, "timeout": 2}, code=WARNED + RANK)
    processes[0].kill()
    ((returncode, _, err),) = finish(processes[1:])
    assert returncode == 1
    assert "RuntimeWarning: job" in err
    wanted = r"this is local rank 1, and has waited for \d+ s for local rank 0 \(rank 0\); after 2 s that is an error"
    assert re.search(wanted, err), err


# --- MPI ---

MPI_RANK = """
import forebay
with forebay.Loader(sys.argv[1], 5, order=sys.argv[2], node_memory="32MiB", world=sys.argv[3]) as loader:
    steps = [[int(number) for number in batch.indices] for _ in range(2) for batch in loader]
    emit([loader.world.rank, loader.world.size, steps])
"""


@pytest.mark.mpi
def test_mpi_ranks_on_emulated_nodes_get_every_sample_once_together(counted_lmdb):
    code = 'os.environ["FOREBAY_NODE"] = str(int(os.environ["OMPI_COMM_WORLD_RANK"]) // 2)\n' + MPI_RANK
    found = support.run_mpi(4, code, counted_lmdb, "group", "mpi")
    numbers = [number for _, _, own in found for step in own[:12] for number in step]
    assert sorted(numbers) == list(range(240))


@pytest.mark.mpi
def test_nodes_that_disagree_are_told_at_the_start_on_what(counted_lmdb):
    code = """
import forebay
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
os.environ["FOREBAY_NODE"] = str(rank)
try:
    forebay.Loader(sys.argv[1], 5, seed=rank, node_memory="32MiB")
except forebay.RendezvousError as error:
    emit(str(error).splitlines()[0])
"""
    assert (
        support.run_mpi(2, code, counted_lmdb) == ["the ranks disagree on seed: 0 on rank 0, 1 on rank 1"] * 2
    )
