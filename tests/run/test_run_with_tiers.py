"""`forebay run` with the tier daemon: what is read again comes from copies."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import support
from support.tiering import settle

FILES, FILE_BYTES = 5, 200_000
DAMAGED_AT = 123_457
ROUNDS = """
import hashlib, pathlib, sys
for _ in range(int(sys.argv[2])):
    print([hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(pathlib.Path(sys.argv[1]).iterdir())])
"""
# Reads all files until so many opens of one round were served.
UNTIL_SERVED = """
import pathlib, sys, time
from forebay import _native
source = pathlib.Path(sys.argv[1])
def served():
    return sum(run["opens_served"] for run in _native.run_usage())
while True:
    before = served()
    for path in source.iterdir():
        path.read_bytes()
    if served() - before >= int(sys.argv[2]):
        break
    time.sleep(0.05)
print("served", flush=True)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files that are old enough to be copied."""
    directory = tmp_path_factory.mktemp("served") / "data"
    directory.mkdir()
    for number in range(FILES):
        (directory / f"{number}.bin").write_bytes(random.Random(number).randbytes(FILE_BYTES))
    settle([directory])
    return directory


@pytest.fixture
def tier(tmp_path):
    path = tmp_path / "tier"
    path.mkdir()
    return path


@pytest.fixture
def forebay_run(daemon, data, tier, tmp_path):
    """Run a program under `forebay run`; return its output and the JSON of the run."""

    def run(*command, options=(), expected=0):
        summary = tmp_path / "summary.json"
        done = subprocess.run(
            [*command_line(tier, data), "--json", summary, *options, "--", *command],
            capture_output=True,
            text=True,
            timeout=support.DEADLINE_S,
            check=False,
        )
        assert done.returncode == expected, done.stderr
        return done.stdout, json.loads(summary.read_text())

    return run


def command_line(tier, data):
    return [sys.executable, "-m", "forebay", "run", "--tier", f"{tier}:64MiB", "--source", data]


def test_copies_follow_reads_and_serve_later_opens_and_jobs(forebay_run, data):
    expected = subprocess.run(
        [sys.executable, "-c", ROUNDS, data, "1"], capture_output=True, text=True
    ).stdout
    output, found = forebay_run(sys.executable, "-c", UNTIL_SERVED, data, str(FILES))
    assert output == "served\n"
    assert found["run"]["copied_bytes"] == FILES * FILE_BYTES
    output, found = forebay_run(sys.executable, "-c", ROUNDS, data, "1", options=["--check"])
    assert output == expected
    run = found["run"]
    assert (run["opens"], run["opens_served"], run["copied_files"]) == (FILES, FILES, 0)
    assert (run["differences"], run["compared_files"]) == ([], FILES)
    assert sum(level["bytes"] for level in run["levels"]) == FILES * FILE_BYTES
    assert set(run) == set(support.documented_keys("A run of programs"))
    assert set(run["levels"][0]) == set(support.documented_keys("A tier of a run"))


@pytest.mark.parametrize("options", [("--stage",), ("--stage", "--frozen")])
def test_a_staged_source_is_served_from_the_first_open_on(forebay_run, data, options):
    _, found = forebay_run(sys.executable, "-c", ROUNDS, data, "2", options=options)
    run = found["run"]
    assert (run["copied_files"], run["opens"], run["opens_served"]) == (FILES, 2 * FILES, 2 * FILES)
    assert run["counters"]["frozen"] == (2 * FILES if "--frozen" in options else 0)


def test_a_link_that_is_a_frozen_source_stays_a_link(daemon, tier, data, tmp_path):
    link, summary = tmp_path / "link", tmp_path / "summary.json"
    link.symlink_to(data / "1.bin")
    program = (
        "import os, stat, sys; print(stat.S_ISLNK(os.lstat(sys.argv[1]).st_mode))\n"
        "try: os.open(sys.argv[1], os.O_NOFOLLOW)\nexcept OSError as error: print(error.errno)\n"
        "print(len(open(sys.argv[1], 'rb').read()))"
    )
    command = [sys.executable, "-c", program, link]
    expected = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    options = ["--stage", "--frozen", "--json", summary]
    done = subprocess.run(
        [*command_line(tier, link), *options, "--", *command], capture_output=True, text=True, check=True
    )
    assert done.stdout == expected == f"True\n40\n{FILE_BYTES}\n"
    assert json.loads(summary.read_text())["run"]["opens_served"] == 1


# Reads so many MiB of a file, and waits until the daemon has done with it. It goes from the end to
# the front: the kernel reads ahead, but nothing beyond the end.
READ_PART = """
import os, sys, time
from forebay import _native
file = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
end = os.fstat(file).st_size
for number in range(1, int(sys.argv[2]) + 1):
    os.pread(file, 1 << 20, end - (number << 20))
def is_done():
    (run,) = _native.run_usage()
    return run["copied_files"] or run["not_copied"]
while not is_done():
    time.sleep(0.05)
"""
LONG_MIB = 25


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    """A file of which nothing is in the page cache."""
    path = tmp_path_factory.mktemp("long") / "data" / "long.bin"
    path.parent.mkdir()
    path.write_bytes(random.Random(1).randbytes(1 << 20) * LONG_MIB)
    settle([path.parent])
    return path


def drop_from_memory(path):
    """Drop a file from the page cache; skip the test where that cannot be."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(descriptor, [bytearray(1)], path.stat().st_size - 1, os.RWF_NOWAIT)
        except BlockingIOError:
            return
        except OSError:
            pass
    finally:
        os.close(descriptor)
    pytest.skip("the file system keeps files in memory, or does not tell")


@pytest.mark.parametrize(
    ("options", "read_mib", "copied", "fetched_mib"),
    [
        # One MiB of 25 is less than 5 %.
        ((), LONG_MIB - 1, 1, 1),
        ((), LONG_MIB // 2, 0, 0),
        (("--fetch", "none"), LONG_MIB - 1, 0, 0),
        (("--fetch", "none"), LONG_MIB, 1, 0),
        (("--fetch", "whole"), 0, 1, LONG_MIB),
    ],
)
def test_of_what_no_program_reads_only_a_share_is_read(
    options, read_mib, copied, fetched_mib, daemon, tier, long_file, tmp_path
):
    drop_from_memory(long_file)
    summary = tmp_path / "summary.json"
    words = [*command_line(tier, long_file.parent), *options, "--json", summary, "--"]
    command = [*words, sys.executable, "-c", READ_PART, long_file, str(read_mib)]
    subprocess.run(command, check=True, timeout=support.DEADLINE_S)
    run = json.loads(summary.read_text())["run"]
    assert (run["copied_files"], run["fetched_bytes"]) == (copied, fetched_mib << 20)
    assert run["not_copied"] == ({} if copied else {"not_in_memory": 1})
    assert run["requested_bytes"] == LONG_MIB << 20


# Opens a file until the daemon has begun a copy of it more than once.
OPEN_AGAIN = """
import os, sys, time
from forebay import _native
size = os.stat(sys.argv[1]).st_size
while True:
    os.close(os.open(sys.argv[1], os.O_RDONLY))
    (run,) = _native.run_usage()
    if run["requested_bytes"] > size:
        break
    time.sleep(0.05)
"""


def test_a_file_that_was_not_copied_counts_once_however_often_it_was_opened(
    daemon, tier, long_file, tmp_path
):
    drop_from_memory(long_file)
    summary = tmp_path / "summary.json"
    words = [*command_line(tier, long_file.parent), "--fetch", "none", "--json", summary, "--"]
    command = [*words, sys.executable, "-c", OPEN_AGAIN, long_file]
    subprocess.run(command, check=True, timeout=support.DEADLINE_S)
    run = json.loads(summary.read_text())["run"]
    assert (run["not_copied"], run["requested_files"]) == ({"not_in_memory": 1}, 1)
    assert run["largest_requested"] == {"path": str(long_file), "bytes": LONG_MIB << 20}
    assert run["requested_bytes"] > LONG_MIB << 20


def test_copies_that_are_not_kept_are_gone(forebay_run, tier, data):
    forebay_run("true", options=["--stage", "--no-keep"])
    files = tier / f"forebay-{os.geteuid()}" / "v1" / "files"
    support.wait_until(lambda: list(files.iterdir()) == [], "copies to be deleted")


def test_runs_of_a_node_share_a_daemon_and_its_copies(daemon, tier, data, monkeypatch):
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    program = "import pathlib, sys; [one.read_bytes() for one in pathlib.Path(sys.argv[1]).iterdir()]"
    command = [*command_line(tier, data), "--stage", "--", sys.executable, "-c", program, data]
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(support.DEADLINE_S) for process in processes] == [0, 0, 0]
    files = tier / f"forebay-{os.geteuid()}" / "v1" / "files"
    assert len(list(files.iterdir())) == FILES
    assert len(daemon.pids()) == 1


@pytest.mark.mpi
def test_ranks_of_mpiexec_share_a_daemon_and_one_of_them_sums_up(daemon, tier, data, monkeypatch):
    """And each of them ends as its program ends."""
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    program = [sys.executable, "-c", ROUNDS, data, "2"]
    launcher = [support.MPIEXEC, *support.MPI_OPTIONS, "-n", "4"]
    done = subprocess.run(
        [*launcher, *command_line(tier, data), "--stage", "--", *program],
        env={**os.environ, **support.MPI_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    alone = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert sorted(done.stdout.splitlines()) == sorted(alone.splitlines() * 4)
    assert done.stderr.count("opens of sources got a copy") == 1
    assert len(daemon.pids()) == 1
    assert len(list((tier / f"forebay-{os.geteuid()}" / "v1" / "files").iterdir())) == FILES


TASKS = 3


def test_tasks_of_srun_share_a_daemon_and_the_first_of_the_node_sums_up(
    daemon, tier, data, tmp_path, monkeypatch
):
    """On the second node of a job, which has no task with rank 0."""
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    program = [sys.executable, "-c", ROUNDS, data, "2"]
    tasks = []
    for task in range(TASKS):
        of_slurm = {
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_ID": "0",
            "SLURM_NTASKS": str(2 * TASKS),
            "SLURM_NNODES": "2",
            "SLURM_NODEID": "1",
            "SLURM_PROCID": str(TASKS + task),
            "SLURM_LOCALID": str(task),
        }
        options = ["--stage", "--json", tmp_path / f"{task}.json"]
        command = [*command_line(tier, data), *options, "--", *program]
        tasks.append(
            subprocess.Popen(
                command,
                env={**os.environ, **of_slurm},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [task.communicate(timeout=support.DEADLINE_S) for task in tasks]
    assert [task.returncode for task in tasks] == [0] * TASKS, told
    alone = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert [output for output, _ in told] == [alone] * TASKS
    assert ["opens of sources got a copy" in errors for _, errors in told] == [True, False, False]
    assert len(daemon.pids()) == 1
    assert len(list((tier / f"forebay-{os.geteuid()}" / "v1" / "files").iterdir())) == FILES
    found = [json.loads((tmp_path / f"{task}.json").read_text())["run"] for task in range(TASKS)]
    assert all(one["opens_served"] == one["opens"] >= 2 * FILES for one in found)


def test_the_daemon_that_a_run_has_started_ends_by_sigterm(daemon, tier, data, monkeypatch):
    """`forebay run` holds signals back while it starts the daemon."""
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    subprocess.run([*command_line(tier, data), "--", "true"], check=True, timeout=support.DEADLINE_S)
    assert len(daemon.pids()) == 1
    daemon.kill(signal.SIGTERM)


def test_a_program_outlives_the_daemon(daemon, tier, data):
    program = """
import pathlib, sys
files = sorted(pathlib.Path(sys.argv[1]).iterdir())
print("begun", flush=True)
sys.stdin.read()
print([one.stat().st_size == len(one.read_bytes()) for one in files])
"""
    command = [*command_line(tier, data), "--stage", "--", sys.executable, "-c", program, data]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"begun\n"
        daemon.kill(signal.SIGKILL)
        output, errors = process.communicate(timeout=support.DEADLINE_S)
    assert (process.returncode, output) == (0, f"{[True] * FILES}\n".encode()), errors


def test_top_shows_a_run_while_it_runs(forebay_run, data):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'forebay', 'top', '--json'])"
    output, _ = forebay_run(sys.executable, "-c", code)
    (run,) = json.loads(output)["runs"]
    assert run["sources"] == [str(data)]


def test_the_cache_of_another_user_is_refused(daemon, tier, data):
    cache = tier / f"forebay-{os.geteuid()}"
    cache.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(cache, 1, 1)
    else:
        cache.chmod(0o777)
    done = subprocess.run(
        [*command_line(tier, data), "--", "touch", tier / "begun"],
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
    )
    assert done.returncode == 2
    assert str(tier) in done.stderr
    assert not Path(tier / "begun").exists()


def test_the_cache_lists_verifies_and_clears_copies_of_files(forebay_run, daemon, tier, data):
    def cache(*words, status=0):
        done = subprocess.run(
            [sys.executable, "-m", "forebay", "cache", *words, tier, "--json"],
            capture_output=True,
            text=True,
            timeout=support.DEADLINE_S,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    def held():
        (level,) = cache("ls")["levels"]
        return [(root["path"], root["files"], root["bytes"], root["is_used"]) for root in level["roots"]]

    everything = [(str(data), FILES, FILES * FILE_BYTES, False)]
    forebay_run("true", options=["--stage"])
    assert held() == everything
    daemon.end()
    assert held() == everything
    assert list(cache("verify")["tiers"].values()) == [
        {"pieces": FILES, "bytes": FILES * FILE_BYTES, "damaged": [], "lost_log_bytes": 0}
    ]
    path = min((tier / f"forebay-{os.geteuid()}" / "v1" / "files").iterdir())
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    ((found,),) = (one["damaged"] for one in cache("verify", status=1)["tiers"].values())
    assert (found["slab"], found["offset"], found["bytes"]) == (str(path), 0, FILE_BYTES)
    assert Path(found["source"]).parent == data
    assert cache("clear")["freed_bytes"] >= FILES * FILE_BYTES
    assert cache("ls")["levels"][0]["roots"] == []
    assert list(path.parent.iterdir()) == []


def test_a_check_finds_the_byte_of_a_copy_that_differs(forebay_run, tier, data):
    forebay_run("true", options=["--stage"])
    copies = tier / f"forebay-{os.geteuid()}" / "v1" / "files"
    damaged = min(copies.iterdir())
    times = damaged.stat()
    damaged.chmod(0o600)
    with damaged.open("r+b") as copy:
        copy.seek(DAMAGED_AT)
        byte = copy.read(1)[0]
        copy.seek(DAMAGED_AT)
        copy.write(bytes([byte ^ 1]))
    os.utime(damaged, ns=(times.st_atime_ns, times.st_mtime_ns))
    _, found = forebay_run(sys.executable, "-c", ROUNDS, data, "1", options=["--check"], expected=1)
    run = found["run"]
    # The program opens the file, which may be copied and compared anew.
    assert run["compared_files"] in (FILES, FILES + 1)
    ((path, offset),) = ((one["path"], one["offset"]) for one in run["differences"])
    assert (Path(path).parent, offset) == (data, DAMAGED_AT)
