"""`forebay run` under faults: the program reads what it reads without, and ends the same."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

import pytest

import support
from forebay import _native
from forebay.tools.run.command_line import Arguments
from forebay.tools.run.served import open_session, settings
from forebay_lab import pfs
from support import emulator
from support.tiering import settle

FILES = 6
FILE_BYTES = 500_000
BIG_MIB = 16
# What happens to a file that is served.
CHANGES = ("truncated", "replaced", "rewritten", "removed", "older")
# An epoch for each line of stdin: the checksum of each file below the directory, or its error.
READER = """
import os, sys, zlib
for line in sys.stdin:
    for name in sorted(os.listdir(sys.argv[1])):
        try:
            with open(os.path.join(sys.argv[1], name), 'rb', buffering=0) as file:
                size, crc = 0, 0
                while data := file.read(1 << 20):
                    size, crc = size + len(data), zlib.crc32(data, crc)
            print(name, size, crc, end=' ')
        except OSError as error:
            print(name, error.errno, end=' ')
    print(flush=True)
"""


def make_source(path, seed=1):
    path.mkdir()
    for number in range(FILES):
        (path / f"{number}").write_bytes(random.Random(seed + number).randbytes(FILE_BYTES))
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Directories with files that are old enough to be copied; each test may change its own."""
    base = tmp_path_factory.mktemp("faults")
    for name in ("unchanged", "future", *CHANGES):
        make_source(base / name)
    future = time.time_ns() + 3600 * 10**9
    os.utime(base / "future" / "2", ns=(future, future))
    (base / "big").mkdir()
    (base / "big" / "big").write_bytes(random.Random(1).randbytes(1 << 20) * BIG_MIB)
    settle([base / name for name in ("unchanged", "big", *CHANGES)])
    return base


@pytest.fixture
def old_source(sources):
    """Files that no test changes."""
    return sources / "unchanged"


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "tier"
    path.mkdir()
    return path


def words(source, place, *command, size="64MiB", options=()):
    """Return a command line of ``forebay run``."""
    where = ["--tier", f"{place}:{size}", "--source", str(source)]
    run = ["run", *where, *options, "--", *map(str, command)]
    return [sys.executable, "-m", "forebay", *run]


def reader(source):
    return [sys.executable, "-c", READER, str(source)]


def expected(source):
    """Return what an epoch prints."""
    done = subprocess.run(reader(source), input="0\n", capture_output=True, text=True, check=True)
    return done.stdout


class Job:
    """A reader under ``forebay run``, epoch by epoch."""

    def __init__(self, source, place, tmp_path, **more):
        self.json = tmp_path / f"{random.random()}.json"
        more["options"] = (*more.get("options", ()), "--json", str(self.json))
        self.errors = tmp_path / f"{self.json.stem}.errors"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                words(source, place, *reader(source), **more),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def epoch(self):
        print(file=self.process.stdin, flush=True)
        return self.process.stdout.readline()

    def end(self):
        """End it; return the summary of the run, if the daemon gave one."""
        self.process.stdin.close()
        self.process.stdout.close()
        status = self.process.wait(support.DEADLINE_S)
        assert status == 0, self.errors.read_text()
        return json.loads(self.json.read_text())["run"]

    def kill(self):
        """Kill `forebay run`; its program ends with its input."""
        self.process.kill()
        self.process.communicate(timeout=support.DEADLINE_S)


@pytest.fixture
def start(tmp_path, daemon):
    jobs = []

    def begin(source, place, **more):
        jobs.append(Job(source, place, tmp_path, **more))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.process.kill()
        job.process.wait()
        for stream in (job.process.stdin, job.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


STAGED = {"options": ("--stage",)}
WHOLE = {"options": ("--fetch", "whole")}


def copies():
    """Return how many copies there are, and how many are under way."""
    runs = _native.run_usage() or []
    made = sum(level["copies"] for run in runs for level in run["levels"])
    return made, sum(run["waiting_files"] + run["copying_files"] for run in runs)


def test_a_staged_source_is_served_and_serves_the_next_job(start, old_source, place):
    right = expected(old_source)
    for options in (STAGED, {}):
        job = start(old_source, place, **options)
        assert [job.epoch(), job.epoch()] == [right] * 2
        found = job.end()
        assert found["opens_served"] == 2 * FILES
        assert found["differences"] == []


def test_copies_are_made_as_files_are_read(start, old_source, place):
    right = expected(old_source)
    job = start(old_source, place, **WHOLE)
    assert job.epoch() == right
    support.wait_until(lambda: copies() == (FILES, 0), "copies")
    assert job.epoch() == right
    assert job.end()["opens_served"] >= FILES


@pytest.mark.parametrize("when", ["nothing is copied", "files are copied", "copies are served"])
def test_a_daemon_that_is_killed_costs_no_byte(when, start, daemon, old_source, place):
    right = expected(old_source)
    job = start(old_source, place, **(STAGED if when == "copies are served" else WHOLE))
    if when != "nothing is copied":
        assert job.epoch() == right
    else:
        support.wait_until(daemon.pids, "the daemon")
    daemon.kill()
    assert [job.epoch(), job.epoch()] == [right] * 2
    # `forebay run` starts another one, and opens the run with it.
    support.wait_until(daemon.pids, "another daemon")
    assert job.epoch() == right
    job.end()
    again = start(old_source, place, options=("--check",))
    assert [again.epoch(), again.epoch()] == [right] * 2
    assert again.end()["differences"] == []


def test_a_daemon_that_is_killed_while_files_are_staged_is_followed_by_one_that_stages(
    start, daemon, sources, place, tmp_path
):
    """A file that was just changed keeps the staging waiting for two seconds."""
    source = tmp_path / "staged"
    shutil.copytree(sources / "unchanged", source)
    os.utime(source / "0")
    right = expected(source)
    job = start(source, place, **STAGED)
    support.wait_until(daemon.pids, "the daemon")
    support.wait_until(lambda: copies()[1] > 0, "staging to begin")
    daemon.kill()
    assert job.epoch() == right
    assert len(daemon.pids()) == 1
    found = job.end()
    assert found["opens_served"] == FILES
    assert json.loads(job.json.read_text())["daemon_restarts"] == 1


def test_another_daemon_compares_the_copies_if_the_first_one_dies_after_that(
    start, daemon, place, old_source
):
    """The summary of a daemon that has compared nothing would find no difference."""
    start(old_source, place, **STAGED).end()
    damaged = min((place / f"forebay-{os.geteuid()}" / "v1" / "files").iterdir())
    damaged.chmod(0o600)
    with damaged.open("r+b") as copy:
        first = copy.read(1)[0]
        copy.seek(0)
        copy.write(bytes([first ^ 1]))
    arguments = Arguments(tiers=(f"{place}:64MiB",), sources=(str(old_source),), check=True)
    session = open_session(settings(arguments, {}))
    try:
        session.finish(0.0)
        daemon.kill()
        found = session.summary()
        assert session.restarts == 1
    finally:
        session.close()
    assert found["compared_files"] == FILES
    assert [one["offset"] for one in found["differences"]] == [0]


# Numbers of system calls of x86-64 with which a copy is made, and what the daemon makes of it.
WRITES = {"fallocate": 285, "pwrite64": 18, "sync_file_range": 277}


def deny(number):
    """Let a system call of this process and of all that it starts fail with EIO."""
    libc = ctypes.CDLL(None, use_errno=True)

    def statement(code, value, if_true=0, if_false=0):
        return struct.pack("HBBI", code, if_true, if_false, value)

    program = b"".join(
        (
            statement(0x20, 0),  # load the number
            statement(0x15, number, 0, 1),  # is it this one?
            statement(0x06, 0x00050000 | errno.EIO),
            statement(0x06, 0x7FFF0000),  # all others are allowed
        )
    )
    kept = ctypes.create_string_buffer(program, len(program))
    filter_of = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(kept))
    no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    libc.prctl(no_new_privileges, 1, 0, 0, 0)
    if libc.prctl(set_seccomp, mode_filter, filter_of, 0, 0):
        os._exit(SKIPPED)


SKIPPED = 99


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64")
@pytest.mark.parametrize("name", WRITES)
def test_a_tier_that_cannot_be_written_leaves_the_source(name, daemon, tmp_path, old_source, place):
    json_file = tmp_path / "failed.json"
    run = words(old_source, place, *reader(old_source), options=("--stage", "--json", str(json_file)))
    done = subprocess.run(
        run,
        input="0\n0\n",
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
        preexec_fn=lambda: deny(WRITES[name]),
    )
    if done.returncode == SKIPPED:
        pytest.skip("no seccomp here")
    assert (done.stdout, done.returncode) == (expected(old_source) * 2, 0), done.stderr
    found = json.loads(json_file.read_text())
    if found["run"] is None:
        # The tier, or the file table, could not be made.
        assert "Input/output error" in found["notes"][0]
    else:
        assert (found["run"]["opens_served"], found["run"]["levels"][0]["copies"]) == (0, 0)
        assert found["run"]["not_copied"]
    # Nothing half-copied is left for the next job.
    daemon.end()
    again = subprocess.run(
        run, input="0\n0\n", capture_output=True, text=True, timeout=support.DEADLINE_S, check=True
    )
    assert again.stdout == expected(old_source) * 2
    assert json.loads(json_file.read_text())["run"]["opens_served"] == 2 * FILES


def test_a_program_that_is_killed_while_files_are_copied_leaves_no_half_copy(start, sources, place):
    source = sources / "big"
    right = expected(source)
    program = "import os, sys; open(sys.argv[1] + '/big').fileno(); os.kill(os.getpid(), 9)"
    killed = subprocess.run(
        words(source, place, sys.executable, "-c", program, source, **WHOLE), capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    # The whole of `forebay run`, while the copy of the next job is made.
    job = start(source, place, **WHOLE)
    assert job.epoch() == right
    job.kill()
    last = start(source, place, options=("--check",))
    assert [last.epoch(), last.epoch()] == [right] * 2
    assert last.end()["differences"] == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_source_that_changes_is_read_anew(change, start, sources, place, tmp_path):
    source = sources / change
    job = start(source, place, **STAGED)
    first = job.epoch()
    path = source / "3"
    match change:
        case "truncated":
            os.truncate(path, 1000)
        case "replaced":
            (tmp_path / "new").write_bytes(bytes(FILE_BYTES))
            (tmp_path / "new").replace(path)
        case "rewritten":
            path.write_bytes(bytes(FILE_BYTES))
        case "removed":
            path.unlink()
        case "older":
            # As if the clock had gone back between two writes.
            path.write_bytes(bytes(FILE_BYTES))
            os.utime(path, ns=(0, 0))
    right = expected(source)
    assert right != first
    assert [job.epoch(), job.epoch()] == [right] * 2
    assert job.end()["opens_served"] >= 2 * FILES


def test_files_of_the_future_are_read_and_not_copied(start, sources, place):
    """The clock went back since they were written."""
    source = sources / "future"
    right = expected(source)
    job = start(source, place, **STAGED)
    assert [job.epoch(), job.epoch()] == [right] * 2
    assert job.end()["opens_served"] == 2 * (FILES - 1)


def test_two_jobs_at_once_share_the_copies(start, old_source, place):
    right = expected(old_source)
    jobs = [start(old_source, place, **options) for options in (WHOLE, {}, {"options": ("--frozen",)})]
    for _ in range(2):
        assert [job.epoch() for job in jobs] == [right] * 3
    for job in jobs:
        job.end()
    again = start(old_source, place)
    assert again.epoch() == right
    assert again.end()["opens_served"] == FILES


def test_a_quota_that_is_lowered_is_kept(start, old_source, place):
    right = expected(old_source)
    start(old_source, place, **STAGED).end()
    small = start(old_source, place, size="1MiB")
    assert [small.epoch(), small.epoch()] == [right] * 2
    found = small.end()
    again = start(old_source, place, size="1MiB", **STAGED)
    assert again.epoch() == right
    (level,) = again.end()["levels"]
    assert level["taken_bytes"] <= level["quota_bytes"] == 1 << 20
    assert found["differences"] == []


def test_a_tier_that_is_removed_leaves_the_source(start, old_source, place):
    right = expected(old_source)
    job = start(old_source, place, **STAGED)
    assert job.epoch() == right
    shutil.rmtree(place)
    assert [job.epoch(), job.epoch()] == [right] * 2
    job.end()


def run_on_small_disk(place, script):
    """Run a script where a tier is a disk of 4 MiB."""
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    mounting = f"mount -t tmpfs -o size=4m none {place} && {script}"
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mounting],
        input="0\n0\n",
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shell(command):
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in command)


def test_a_disk_that_is_full_takes_what_it_has_room_for(daemon, tmp_path, old_source, place):
    json_file = tmp_path / "full.json"
    fill = f"head -c 2000000 /dev/zero > {place}/other"
    run = words(old_source, place, *reader(old_source), options=("--stage", "--json", str(json_file)))
    assert run_on_small_disk(place, f"{fill}; exec {shell(run)}") == expected(old_source) * 2
    found = json.loads(json_file.read_text())["run"]
    assert 0 < found["opens_served"] < 2 * FILES
    assert found["not_copied"]


def test_a_tier_that_is_unmounted_leaves_the_source(daemon, old_source, place):
    harmed = READER.replace(
        "    print(flush=True)", f"    print(flush=True); os.system('umount -l {place}')", 1
    )
    run = words(old_source, place, sys.executable, "-c", harmed, old_source, options=("--stage",))
    assert run_on_small_disk(place, shell(run)) == expected(old_source) * 2


@pytest.fixture
def mounted(old_source, tmp_path, monkeypatch, tmp_path_factory):
    """A source that can fail; its server shares no directory with a tier daemon."""
    point = tmp_path / "mounted"
    point.mkdir()
    # Paths of sockets are short.
    servers = tmp_path_factory.mktemp("s")
    servers.chmod(0o700)
    spec = emulator.write_spec(tmp_path / "fast.toml", latency_us=1.0, metadata_us=1.0)
    try:
        with monkeypatch.context() as patch:
            patch.setenv("FOREBAY_RUNTIME_DIR", str(servers))
            server = pfs.Server.start(old_source, [point], spec=spec)
        yield server, point
    finally:
        with monkeypatch.context() as patch:
            patch.setenv("FOREBAY_RUNTIME_DIR", str(servers))
            emulator.remove_all(tmp_path)


@emulator.needs_fuse
def test_errors_of_the_source_are_those_of_the_program(start, mounted, place):
    server, source = mounted
    right = expected(source)
    server.fail_range(source / "3", 200_000, 300_000)
    server.drop_caches(source)
    wrong = expected(source)
    assert wrong != right
    server.drop_caches(source)
    job = start(source, place, **WHOLE)
    assert job.epoch() == wrong
    server.clear_faults()
    assert [job.epoch(), job.epoch()] == [right] * 2
    job.end()


@emulator.needs_fuse
def test_copies_serve_a_source_that_was_mounted_anew(start, mounted, place, sources, monkeypatch):
    """Its files have another device number then."""
    server, source = mounted
    right = expected(source)
    start(source, place, **STAGED).end()
    device = source.stat().st_dev
    runtime, spec = server.socket.parent, source.parent / "fast.toml"
    with monkeypatch.context() as patch:
        patch.setenv("FOREBAY_RUNTIME_DIR", str(runtime))
        server.end()
        (source.parent / "other").mkdir()
        pfs.Server.start(sources / "big", [source.parent / "other"], spec=spec)
        pfs.Server.start(sources / "unchanged", [source], spec=spec)
    if source.stat().st_dev == device:
        pytest.skip("another test gave up a mount meanwhile, whose number this one has got")
    job = start(source, place)
    assert job.epoch() == right
    assert job.end()["opens_served"] == FILES


IN_THE_PROGRAM = {
    "clears the environment": "os.execve(sys.executable, [sys.executable, '-c', READ, sys.argv[1]], {})",
    "closes all descriptors": "os.closerange(3, 4096); exec(READ)",
    "runs out of descriptors": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))\n"
        "held = []\ntry:\n    while True: held.append(os.dup(1))\nexcept OSError: os.close(held.pop())\n"
        "exec(READ)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", IN_THE_PROGRAM)
def test_a_program_that_upsets_the_library_reads_the_same(what, daemon, tmp_path, old_source, place):
    read = "import sys, zlib\nfor n in range(6): print(zlib.crc32(open(f'{sys.argv[1]}/{n}', 'rb').read()))"
    program = f"import os, sys\nREAD = {read!r}\n{IN_THE_PROGRAM[what]}"
    command = [sys.executable, "-c", program, str(old_source)]
    right = subprocess.run(command, capture_output=True, check=False)
    json_file = tmp_path / "summary.json"
    options = ("--stage", "--json", str(json_file))
    done = subprocess.run(
        words(old_source, place, *command, options=options), capture_output=True, check=False
    )
    assert (done.stdout, done.returncode) == (right.stdout, right.returncode) == (right.stdout, 0)
    served = json.loads(json_file.read_text())["run"]["opens_served"]
    assert served == (FILES if what == "closes all descriptors" else 0)
