"""A rank that ends before it makes its loader: lost where its launcher shows it, else missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import support
from support.cluster import mpi

RANKS, EARLY = 4, 2

# Waits until a process watches this one.
_WATCHED = """
import os, time
def wait_until_watched_by(pid):
    mine = f"Pid:\\t{os.getpid()}\\n"
    while True:
        for number in os.listdir(f"/proc/{pid}/fdinfo"):
            try:
                with open(f"/proc/{pid}/fdinfo/{number}") as one:
                    if mine in one.read():
                        return
            except FileNotFoundError:
                pass
        time.sleep(0.01)
"""

# A rank. They make the loader when all others are there; the one that ends early does so once the
# leader has seen it.
_RANK = (
    f"""{_WATCHED}"""
    + """
import json, os, signal, sys, time, warnings
from pathlib import Path
import forebay

place, path, how, rank, world, timeout = Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]), *sys.argv[5:7]
forebay.Loader
def wait_for(name, count):
    while len(list(place.glob(name))) < count:
        time.sleep(0.01)
early, others = int(sys.argv[7]), int(sys.argv[8]) - 1
if rank == early:
    wait_for("here.*", others)
    wait_until_watched_by(int((place / "here.0").read_text()))
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "slow":
        wait_for("said.*", others)
    os._exit(int(how.removeprefix("exit")) if how.startswith("exit") else 0)
(place / f"pid.{rank}").write_text(str(os.getpid()))
(place / f"pid.{rank}").rename(place / f"here.{rank}")
wait_for("here.*", others)
found = {"rank": rank, "pid": os.getpid()}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        forebay.Loader(path, 4, world=eval(world), timeout=float(timeout), node_memory="32MiB")
    except forebay.ForebayError as error:
        found |= {"kind": type(error).__name__, "message": str(error)}
found["warnings"] = [str(one.message) for one in caught]
draft = place / f"draft.{rank}"
draft.write_text(json.dumps(found))
draft.rename(place / f"said.{rank}")
"""
)

# Starts ranks as torchrun's agent does, or as multiprocessing (which says nothing in their
# environment), and waits for all.
_PARENT = """
import json, os, subprocess, sys
program, arguments, environments = json.loads(sys.argv[1])
ranks = [
    subprocess.Popen([sys.executable, "-c", program, *(str(rank) if one == "RANK" else one for one in arguments)],
                     env={**os.environ, **environment})
    for rank, environment in enumerate(environments)
]
print(json.dumps([rank.pid for rank in ranks]), flush=True)
for rank in ranks:
    rank.wait()
"""


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    path = tmp_path_factory.mktemp("samples") / "samples.npy"
    np.save(path, np.zeros((64, 10), np.uint8))
    return str(path)


def begun(place, samples, how, world='"auto"', timeout=60, variables=True):
    """Start ranks under a parent; return the errors of the others, and the processes by rank."""
    place.mkdir()
    arguments = [str(place), samples, how, "RANK", world, str(timeout), str(EARLY), str(RANKS)]
    environments = [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_PORT": "1",
        }
        if variables
        else {}
        for rank in range(RANKS)
    ]
    done = subprocess.run(
        [sys.executable, "-c", _PARENT, json.dumps([_RANK, arguments, environments])],
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=True,
    )
    return said(place), json.loads(done.stdout)


def said(place):
    return sorted((json.loads(one.read_text()) for one in place.glob("said.*")), key=lambda one: one["rank"])


@pytest.mark.parametrize("how", ["exit0", *(["exit3"] if support.LONG else []), "kill"])
def test_a_rank_of_a_launcher_that_ends_before_it_comes_is_named_with_its_process(tmp_path, samples, how):
    told, pids = begun(tmp_path / "job", samples, how)
    assert [one["rank"] for one in told] == [rank for rank in range(RANKS) if rank != EARLY]
    for one in told:
        assert one["kind"] == "PeerLostError", one
        assert f"rank {EARLY} (local rank {EARLY}, process {pids[EARLY]}) ended" in one["message"]


@pytest.mark.full
def test_a_rank_of_a_launcher_that_is_slow_is_a_warning_and_no_loss(tmp_path, samples):
    # It ends when all others have given up.
    told, pids = begun(tmp_path / "job", samples, "slow", timeout=5)
    for one in told:
        assert one["kind"] == "RendezvousError", one
        assert "did not come within 5 s" in one["message"], one
        assert "ended" not in one["message"]
    (warning,) = told[0]["warnings"]
    assert f"rank {EARLY} is process {pids[EARLY]}, which runs" in warning


@pytest.mark.full
def test_a_process_of_a_parent_that_ends_early_is_named_as_missing(tmp_path, samples):
    # No rank knows which one ended: the error names the missing rank and the ended process.
    world = f"forebay.World(rank=rank, size={RANKS})"
    told, pids = begun(tmp_path / "job", samples, "exit3", world, timeout=5, variables=False)
    assert len(told) == RANKS - 1
    for one in told:
        assert one["kind"] == "RendezvousError", one
        assert f"rank {EARLY} (local rank {EARLY}) of this node did not come" in one["message"]
    (warning,) = told[0]["warnings"]
    assert f"for rank {EARLY} (local rank {EARLY})" in warning
    assert f"process {pids[EARLY]}, which the same process" in warning


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["Open MPI", *(["MPICH"] if support.LONG else [])])
def test_a_rank_of_mpiexec_that_returns_early_is_named_where_the_launcher_ends_nobody(
    request, tmp_path, samples, name
):
    chosen = mpi.open_mpi() if name == "Open MPI" else request.getfixturevalue("mpich")
    variable = "OMPI_COMM_WORLD_RANK" if name == "Open MPI" else "PMI_RANK"
    place = tmp_path / "job"
    place.mkdir()
    code = f"sys.argv[4] = os.environ[{variable!r}]\n" + _RANK.replace(
        "import json, os, signal, sys,", "import signal,"
    )
    code = code.replace("from pathlib import Path\nimport forebay\n", "from pathlib import Path\n")
    arguments = [place, samples, "exit0", "RANK", '"auto"', 60, EARLY, RANKS]
    # Not under `python -m mpi4py`: a job of one node needs no MPI, and one that began MPI is ended
    # by its launcher.
    script = tmp_path / "rank.py"
    script.write_text("import json, os, sys\nimport forebay\n" + code)
    options = support.MPI_OPTIONS if name == "Open MPI" else ()
    command = [str(chosen.mpiexec), *options, "-n", str(RANKS), str(chosen.python), str(script)]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, **support.MPI_ENVIRONMENT, "PYTHONPATH": support.PACKAGES},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    told = said(place)
    assert [one["rank"] for one in told] == [rank for rank in range(RANKS) if rank != EARLY], done.stderr
    for one in told:
        assert one["kind"] == "PeerLostError", one
        assert f"rank {EARLY} (local rank {EARLY}, process " in one["message"]


def test_a_rank_that_ends_before_an_exchange_is_named_by_those_of_its_node(tmp_path):
    program = (
        f"""{_WATCHED}"""
        + """
import sys
from pathlib import Path
rank = int(sys.argv[1])
here = Path(sys.argv[3], "here.0")
if rank == 1:
    while not here.exists():
        time.sleep(0.01)
    wait_until_watched_by(int(here.read_text()))
    sys.exit()
here.with_name("pid.0").write_text(str(os.getpid()))
here.with_name("pid.0").rename(here)
import forebay
from forebay import _native
from forebay._job.mpi_wait import Notes, Wait
from forebay._job.processes import Processes
sys.path.insert(0, sys.argv[2])
from support.ranks.nodes import FileComm
comm = FileComm(sys.argv[3], rank, 2)
processes = Processes({}, _native.Siblings("RANK", rank))
try:
    Wait(Notes(comm), 1, "meeting", 60, processes).until(comm.Iallgather(b"", bytearray()), ())
except forebay.PeerLostError as error:
    Path(sys.argv[3], "said").write_text(str(error))
"""
    )
    arguments = ["RANK", str(support.ROOT / "tests"), str(tmp_path)]
    environments = [{"RANK": str(rank)} for rank in range(2)]
    done = subprocess.run(
        [sys.executable, "-c", _PARENT, json.dumps([program, arguments, environments])],
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=True,
    )
    pid = json.loads(done.stdout)[1]
    assert f"rank 1 (process {pid}) of this node has ended" in (tmp_path / "said").read_text()


def test_a_call_that_cannot_be_cancelled_is_reported_with_the_ranks_that_have_ended(tmp_path):
    program = (
        f"""{_WATCHED}"""
        + """
import sys
from pathlib import Path
here, said = Path(sys.argv[2], "here"), Path(sys.argv[2], "said")
if sys.argv[1] == "1":
    while not here.exists():
        time.sleep(0.01)
    wait_until_watched_by(int(here.read_text()))
    os._exit(3)
from forebay import _native
os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
draft = here.with_name("draft")
draft.write_text(str(os.getpid()))
draft.rename(here)
with _native.Watchdog("waiting", 0.2, rank=("RANK", 0)):
    while "rank 1 " not in said.read_text():
        time.sleep(0.01)
"""
    )
    environments = [{"RANK": str(rank)} for rank in range(2)]
    done = subprocess.run(
        [sys.executable, "-c", _PARENT, json.dumps([program, ["RANK", str(tmp_path)], environments])],
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=True,
    )
    assert f"rank 1 (process {json.loads(done.stdout)[1]})" in (tmp_path / "said").read_text()


def test_a_call_that_cannot_be_cancelled_ends_the_process_only_where_that_is_asked_for():
    code = """
import sys, time
from forebay import _native
with _native.Watchdog("waiting", 0.05, end_after_s=float(sys.argv[1]) or None):
    time.sleep(0.3 if sys.argv[1] == "0" else 600)
"""
    assert support.run_python(code, 0).returncode == 0
    assert support.run_python(code, 0.1).returncode == 1
