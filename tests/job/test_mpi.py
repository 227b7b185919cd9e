"""Ranks under MPI, by Open MPI's wheel and MPICH's: detected on one node and on several.

Together they deliver each sample once. A death or an error ends the job; a launcher of another MPI
is an error.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

import support
from support import cluster as nodes
from support.cluster import mpi
from support.cluster.mpi import emitted

pytestmark = pytest.mark.mpi

SAMPLES = 101


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    values = [support.record(number, 2000) for number in range(SAMPLES)]
    return support.write_lmdb(tmp_path_factory.mktemp("mpi") / "records.lmdb", values)


EPOCHS = """
options = json.loads(sys.argv[2])
with forebay.Loader(sys.argv[1], node_memory="32MiB", **options) as loader:
    found = [[[int(number) for number in batch.indices] for batch in loader] for _ in range(2)]
    world = loader.world
    emit([world.rank, world.size, list(world.local_ranks), world.source, "mpi4py.MPI" in sys.modules, found])
"""


@pytest.fixture(params=["Open MPI", "MPICH"])
def either(request):
    """Open MPI's wheel, then MPICH's."""
    return mpi.open_mpi() if request.param == "Open MPI" else request.getfixturevalue("mpich")


def start(path, ranks, code, *arguments):
    """Run code on ranks of one node under the embedded MPI."""
    return mpi.open_mpi().run(path, [ranks], code, *arguments)


@pytest.mark.sweep(together=1)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("order", ["group", "shuffle"])
def test_ranks_find_each_other_and_get_every_sample_once_together(tmp_path, records, ranks, order):
    options = {"batch_size": 6, "order": order, "last_batch": "partial", "world": "auto"}
    done = start(tmp_path, ranks, EPOCHS, records, json.dumps(options))
    assert done.returncode == 0, done.stderr
    found = emitted(done)
    assert [one[:2] for one in found] == [[rank, ranks] for rank in range(ranks)]
    for _, _, local_ranks, source, imported, _ in found:
        assert local_ranks == list(range(ranks))
        assert "Open MPI" in source
        # On one node the environment says it all.
        assert not imported
    for epoch in (0, 1):
        steps = [one[-1][epoch] for one in found]
        assert len({len(own) for own in steps}) == 1
        assert sorted(number for own in steps for step in own for number in step) == list(range(SAMPLES))


# On several nodes; each rank tells where it is.
ON_NODES = """
import socket
options = json.loads(sys.argv[2])
with forebay.Loader(sys.argv[1], node_memory="32MiB", **options) as loader:
    found = [[[int(number) for number in batch.indices] for batch in loader] for _ in range(2)]
    world = loader.world
    emit([world.rank, socket.gethostname(), list(world.local_ranks), found])
"""


@pytest.mark.sweep(together=1)
@nodes.needs_nodes
@pytest.mark.parametrize("per_node", [[2, 2], [3, 1, 1]], ids=["2x2", "3+1+1"])
@pytest.mark.full
def test_ranks_on_nodes_find_those_of_their_own_and_get_every_sample_once_together(
    tmp_path, records, either, per_node
):
    options = {"batch_size": 6, "order": "shuffle", "last_batch": "partial"}
    done = either.run(tmp_path, per_node, ON_NODES, records, json.dumps(options))
    assert done.returncode == 0, done.stderr
    found = emitted(done)
    first, expected = 0, []
    for node, count in enumerate(per_node):
        local_ranks = list(range(first, first + count))
        expected += [[rank, f"node{node}", local_ranks] for rank in local_ranks]
        first += count
    assert [one[:3] for one in found] == expected
    for epoch in (0, 1):
        steps = [one[-1][epoch] for one in found]
        assert len({len(own) for own in steps}) == 1
        assert sorted(number for own in steps for step in own for number in step) == list(range(SAMPLES))


def test_ranks_under_mpich_find_each_other_on_one_node(tmp_path, records, mpich):
    options = {"batch_size": 6, "order": "group", "last_batch": "partial"}
    done = mpich.run(tmp_path, [3], EPOCHS, records, json.dumps(options))
    assert done.returncode == 0, done.stderr
    found = emitted(done)
    assert [one[:3] for one in found] == [[rank, 3, [0, 1, 2]] for rank in range(3)]
    assert all("MPICH" in one[3] for one in found)
    steps = [one[-1][0] for one in found]
    assert sorted(number for own in steps for step in own for number in step) == list(range(SAMPLES))


def test_the_launcher_of_another_mpi_is_an_error_that_names_both_sizes(tmp_path, records, mpich):
    script = tmp_path / "rank.py"
    script.write_text("import sys, forebay\nfrom mpi4py import MPI\nforebay.Loader(sys.argv[1], 4)\n")
    command = ["timeout", "-s", "KILL", str(support.DEADLINE_S), mpich.mpiexec, "-n", "2", sys.executable]
    done = subprocess.run(
        [*command, "-m", "mpi4py", script, records],
        env={**os.environ, **support.MPI_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode not in (0, 137)
    assert "the launcher of MPICH or Intel MPI started 2 ranks" in done.stderr
    assert "(Open MPI" in done.stderr
    assert "says 1" in done.stderr


@nodes.needs_nodes
@pytest.mark.full
def test_the_bench_starts_its_ranks_with_the_launcher_of_mpich(tmp_path, records, mpich):
    command = [
        mpich.python,
        "-c",
        "from forebay_lab.cli.bench import command; command()",
        records,
        "--ranks-per-node",
        "2,1",
        "--batch-size",
        "4",
        "--steps",
        "3",
    ]
    done = subprocess.run(
        [*command, "--repetitions", "1", "--strategies", "forebay@sequential", "--launcher", "mpi", "--json"],
        env={**os.environ, "PYTHONPATH": support.PACKAGES},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["launcher"], result["node_emulation"]["by"]) == ("mpi", "namespaces")


def test_an_error_of_one_rank_ends_the_job(tmp_path, records):
    code = """
loader = forebay.Loader(sys.argv[1], 4, node_memory="32MiB")
for step, batch in enumerate(loader):
    if step == 2 and loader.world.rank == 1:
        raise ValueError("the training script failed")
loader.close()
"""
    done = start(tmp_path, 3, code, records)
    assert done.returncode not in (0, -9, 137)
    assert "the training script failed" in done.stderr


def test_a_killed_rank_is_named_before_the_launcher_ends_the_job_or_by_it(tmp_path, records):
    code = """
import signal
# The launcher ends the job with SIGTERM; the survivors are to tell what they saw first.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
loader = forebay.Loader(sys.argv[1], 4, node_memory="32MiB")
try:
    while True:
        for step, batch in enumerate(loader):
            if step == 2 and loader.world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
except forebay.PeerLostError as error:
    emit(str(error))
    os._exit(3)
"""
    done = start(tmp_path, 3, code, records)
    assert done.returncode != 0
    told = emitted(done)
    assert all("rank 1" in text for text in told), told
    assert told or "rank 1" in done.stderr, done.stderr


TRY_TWICE = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
world = forebay.World(rank=comm.rank, size=comm.size, comm=comm, node=comm.rank // 2)
told = []
for path in ("no.lmdb" if comm.rank == 2 else sys.argv[1], sys.argv[1]):
    try:
        with forebay.Loader(path, 4, node_memory="32MiB", world=world) as loader:
            told.append(len(list(loader)))
    except forebay.ForebayError as error:
        told.append(f"{type(error).__name__} {error}")
emit([comm.rank, *told])
"""


@nodes.needs_nodes
def test_a_rank_that_cannot_open_its_data_tells_all_why_and_they_can_try_again(tmp_path, records, either):
    done = either.run(tmp_path, [2, 1, 1], TRY_TWICE, records)
    assert done.returncode == 0, done.stderr
    for rank, (_, first, second) in enumerate(emitted(done)):
        assert second == 7
        assert "no.lmdb" in first
        # Rank 2 may be ahead: its word can come while the others still wait for the exchange
        # before, which it has left.
        gave_up = re.match(
            r"RendezvousError (meeting the other ranks|comparing options): rank 2 gave up: ", first
        )
        assert bool(gave_up) == (rank != 2), first


def test_a_rank_that_is_late_to_start_mpi_is_reported_and_ends_no_process(tmp_path, records):
    code = """
import time
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
os.environ["FOREBAY_NODE"] = f"n{rank // 2}"
# Later than the limit of the others, which holds for all waits but this one.
time.sleep(4 if rank == 1 else 0)
try:
    forebay.Loader(sys.argv[1], 4, node_memory="32MiB", timeout=1)
except (forebay.RendezvousError, forebay.PeerLostError):
    # On a busy machine a second may be too short for what comes then.
    pass
emit([rank, "mpi4py.MPI" in sys.modules])
"""
    done = start(tmp_path, 3, code, records)
    assert done.returncode == 0, done.stderr
    assert emitted(done) == [[rank, True] for rank in range(3)]
    assert "MPI_Init: has waited" in done.stderr


@pytest.mark.full
def test_a_rank_that_never_starts_mpi_ends_the_others_where_that_is_asked_for(tmp_path, records):
    code = """
import time
os.environ["FOREBAY_NODE"] = f"n{int(os.environ['OMPI_COMM_WORLD_RANK']) // 2}"
os.environ["FOREBAY_MPI_INIT_TIMEOUT"] = "4"
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    time.sleep(60)
forebay.Loader(sys.argv[1], 4, node_memory="32MiB", timeout=4)
"""
    done = start(tmp_path, 3, code, records)
    assert done.returncode != 0
    waited = "3 MPI ranks on several nodes: MPI_Init: has waited for {} s for other ranks"
    assert waited.format(2) in done.stderr
    assert waited.format(4) in done.stderr


def test_an_mpi_that_survives_deaths_is_asked_who_died(tmp_path, records):
    code = """
import signal
from mpi4py import MPI
comm = MPI.COMM_WORLD
# Every rank is a node of its own, so that no rank watches the other's process.
world = forebay.World(rank=comm.rank, size=comm.size, comm=comm, node=comm.rank)
if comm.rank == 1:
    module = importlib.import_module("forebay.loader")
    module.open = lambda path: os.kill(os.getpid(), signal.SIGKILL)
try:
    forebay.Loader(sys.argv[1], 4, node_memory="32MiB", world=world)
except forebay.PeerLostError as error:
    emit([comm.rank, str(error)])
# MPI_Finalize waits for dead ranks; a rank that ends first must not count as dead.
open(f"{sys.argv[2]}.{comm.rank}", "w").close()
while not all(os.path.exists(f"{sys.argv[2]}.{rank}") for rank in (0, 2)):
    time.sleep(0.01)
os._exit(0)
"""
    script = tmp_path / "rank.py"
    script.write_text("import importlib, time\n" + mpi.PRELUDE + code)
    command = ["timeout", "-s", "KILL", str(support.DEADLINE_S), str(support.MPIEXEC), "--with-ft", "ulfm"]
    done = subprocess.run(
        [
            *command,
            *support.MPI_OPTIONS,
            "-n",
            "3",
            sys.executable,
            str(script),
            str(records),
            str(tmp_path / "told"),
        ],
        env={**os.environ, **support.MPI_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    told = emitted(done)
    assert [rank for rank, _ in told] == [0, 2], done.stderr
    assert all("rank 1 failed: MPI reports: " in text for _, text in told), told


def test_two_jobs_at_once_do_not_meet(tmp_path, records):
    command = ["timeout", "-s", "KILL", str(support.DEADLINE_S), str(support.MPIEXEC), *support.MPI_OPTIONS]
    script = tmp_path / "rank.py"
    script.write_text(mpi.PRELUDE + EPOCHS)
    jobs = []
    for batch in (5, 6):
        options = {"batch_size": batch, "order": "shuffle", "last_batch": "partial", "seed": batch}
        jobs.append(
            subprocess.Popen(
                [
                    *command,
                    "-n",
                    "2",
                    sys.executable,
                    "-m",
                    "mpi4py",
                    str(script),
                    str(records),
                    json.dumps(options),
                ],
                env={**os.environ, **support.MPI_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for batch, job in zip((5, 6), jobs, strict=True):
        out, err = job.communicate()
        assert job.returncode == 0, err
        found = emitted(subprocess.CompletedProcess([], 0, out, err))
        assert [len(one[-1][0][0]) for one in found] == [batch, batch]
        assert sorted(number for one in found for step in one[-1][0] for number in step) == list(
            range(SAMPLES)
        )
