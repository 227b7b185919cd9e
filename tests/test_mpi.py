"""Ranks under the embedded MPI: found by themselves, every sample once together, a death or an error ends the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import support

pytestmark = pytest.mark.mpi

SAMPLES = 101


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    values = [support.record(number, 2000) for number in range(SAMPLES)]
    return support.write_lmdb(tmp_path_factory.mktemp("mpi") / "records.lmdb", values)


PRELUDE = """
import json, os, sys
import forebay
def emit(value):
    # One write call per line, so that lines of several ranks do not mix.
    os.write(1, f"EMIT {json.dumps(value)}\\n".encode())
"""

EPOCHS = """
options = json.loads(sys.argv[2])
with forebay.Loader(sys.argv[1], memory="32MiB", **options) as loader:
    found = [[[int(number) for number in batch.indices] for batch in loader] for _ in range(2)]
    world = loader.world
    emit([world.rank, world.size, list(world.local_ranks), world.source, "mpi4py.MPI" in sys.modules, found])
"""


def start(path, ranks, code, *arguments):
    """Run code as ``python -m mpi4py`` under the mpiexec beside this Python; killed when it hangs."""
    script = path / "rank.py"
    script.write_text(PRELUDE + code)
    command = ["timeout", "-s", "KILL", str(support.DEADLINE_S), str(support.MPIEXEC), *support.MPI_OPTIONS]
    command += ["-n", str(ranks), sys.executable, "-m", "mpi4py", str(script), *map(str, arguments)]
    return subprocess.run(
        command,
        env={**os.environ, **support.MPI_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def emitted(done):
    lines = [line for line in done.stdout.splitlines() if line.startswith("EMIT ")]
    return sorted((json.loads(line.removeprefix("EMIT ")) for line in lines), key=json.dumps)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("order", ["group", "shuffle"])
def test_ranks_find_each_other_and_get_every_sample_once_together(tmp_path, records, ranks, order):
    options = {"batch_size": 6, "order": order, "last": "short", "world": "auto"}
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


def test_an_error_of_one_rank_ends_the_job(tmp_path, records):
    code = """
loader = forebay.Loader(sys.argv[1], 4, memory="32MiB")
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
loader = forebay.Loader(sys.argv[1], 4, memory="32MiB")
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


def test_two_jobs_at_once_do_not_meet(tmp_path, records):
    command = ["timeout", "-s", "KILL", str(support.DEADLINE_S), str(support.MPIEXEC), *support.MPI_OPTIONS]
    script = tmp_path / "rank.py"
    script.write_text(PRELUDE + EPOCHS)
    jobs = []
    for batch in (5, 6):
        options = {"batch_size": batch, "order": "shuffle", "last": "short", "seed": batch}
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
