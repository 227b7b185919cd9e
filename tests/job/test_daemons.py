"""Daemons: where their sockets are, how they are asked, and how they start, fail, die and end."""

from __future__ import annotations

import ctypes.util
import fcntl
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import support
from forebay import _native
from forebay._core import OptionError, StorageError, StorageTimeout
from forebay._daemon import GoneError, Kind, directory, kind
from forebay._daemon.kind import log_of
from support import DEADLINE_S

ECHO = Kind(prefix="echo-", name="the echo", module="support.echo_daemon", hint="start an echo")


# --- the runtime directory ---


def test_the_runtime_directory_is_made_for_us_alone(monkeypatch, short_path):
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", str(short_path / "made"))
    path = directory.runtime_directory()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert directory.runtime_directory() == path
    place = ECHO.socket(b"/data")
    assert place.parent == path
    assert place.name.startswith("echo-")
    assert ECHO.socket(b"/other") != place


def test_a_runtime_directory_that_others_can_reach_is_refused(monkeypatch, tmp_path, says):
    path = tmp_path / "open"
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", str(path))
    with says(OptionError, "0700", "0755", 700):
        directory.runtime_directory()
    path.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(path)
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", str(link))
    with says(OptionError):
        directory.runtime_directory()
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", "relative")
    with says(OptionError):
        directory.runtime_directory()
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", str(tmp_path / "no" / "such"))
    with says(OptionError):
        directory.runtime_directory()


def test_the_runtime_directory_follows_xdg_only_where_that_is_there(monkeypatch, tmp_path):
    monkeypatch.delenv("FOREBAY_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert directory.runtime_directory() == tmp_path / "forebay"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere/at/all")
    assert _native.runtime_directory(make=False) == Path(f"/tmp/forebay-{os.geteuid()}")


def test_a_runtime_directory_too_long_for_a_socket_is_refused(monkeypatch, short_path):
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", str(short_path / ("x" * 100)))
    with pytest.raises(StorageError, match=r"\b107 bytes"):
        ECHO.socket(b"/data")


def test_only_a_socket_of_ours_is_ever_removed(tmp_path):
    # Another user may have written what the mount table holds.
    kept = tmp_path / "echo-kept.sock"
    kept.write_text("not a socket")
    elsewhere = tmp_path / "other.sock"
    left = tmp_path / "echo-left.sock"
    for path in (elsewhere, left):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    log_of(left).write_text("messages")
    for path in (kept, elsewhere, left, tmp_path / "none"):
        ECHO.forget(path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file() or path.is_socket()) == [
        "echo-kept.sock",
        "other.sock",
    ]


# --- talking to a server that is not what it should be ---


class Impostor:
    """Listens on a socket and treats one connection as told."""

    def __init__(self, path, behave):
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, args=(behave,))
        self._thread.start()

    def _serve(self, behave):
        connection, _ = self._listener.accept()
        with connection:
            behave(connection)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._thread.join(DEADLINE_S)
        self._listener.close()


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        (b"", ()),
        (b'{"ok": true, "pid"', ()),
        (b"hello\n", ("JSON",)),
        (b"[1]\n", ()),
        (b'{"pid": 3}\n', ()),
        (b'{"ok": false, "error": "server 9: expected 0 to 3"}\n', (9, 0, 3)),
    ],
)
def test_an_answer_that_is_none_is_an_error_that_says_so(tmp_path, answer, values, says):
    def behave(connection):
        connection.recv(1000)
        connection.sendall(answer)

    path = tmp_path / "s"
    with Impostor(path, behave), says(StorageError, *values):
        ECHO.ask(path, {"command": "ping"})


def test_an_answer_in_pieces_is_put_together(tmp_path):
    value = {"ok": True, "events": [[0.5, 0, "a", 0, 4096, 0.001]] * 10_000}

    def behave(connection):
        request = connection.recv(1000)
        value["asked"] = json.loads(request)
        connection.sendall(json.dumps(value).encode() + b"\n")

    path = tmp_path / "s"
    with Impostor(path, behave):
        answer = ECHO.ask(path, {"command": "events", "since": 3})
    assert answer["asked"] == {"command": "events", "since": 3}
    assert len(answer["events"]) == 10_000
    assert "ok" not in answer


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(tmp_path, says):
    over = threading.Event()
    path = tmp_path / "s"
    with Impostor(path, lambda _: over.wait(DEADLINE_S)):
        with says(StorageError, "0.2"):
            ECHO.ask(path, {"command": "ping"}, within_s=0.2)
        over.set()


def test_nobody_there_is_an_error_of_its_own(tmp_path, says):
    with says(GoneError):
        ECHO.ask(tmp_path / "none", {"command": "ping"})


# --- daemons that start, fail, die and end ---


def launch(socket, *, fails=None, is_up=lambda facts: True):
    with ECHO.locked():
        configuration = {"socket": str(socket), "fails": fails}
        ECHO.launch(configuration, socket, attempt="start an echo", is_up=is_up)


@pytest.fixture
def echo(short_path, monkeypatch):
    """A socket for an echo daemon, which is ended after the test."""
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", str(short_path / "run"))
    # The process finds its module here.
    monkeypatch.setenv("PYTHONPATH", str(support.TESTS))
    socket = ECHO.socket(b"x")
    yield socket
    with suppress(StorageError):
        ECHO.ask(socket, {"command": "end"})


def is_running(pid):
    # A zombie is no process of this one, so it would be reaped.
    return Path(f"/proc/{pid}").exists()


def test_a_daemon_outlives_its_caller_answers_and_ends(echo):
    launch(echo)
    facts = ECHO.ask(echo, {"command": "ping"})
    assert facts["pid"] != os.getpid()
    assert os.getsid(facts["pid"]) == facts["pid"], "it leads a session of its own"
    assert Path(f"/proc/{facts['pid']}/cwd").readlink() == Path("/")
    assert ECHO.sockets() == [echo]
    ECHO.ask(echo, {"command": "end"})
    support.wait_until(lambda: not is_running(facts["pid"]), "the end of the daemon")
    assert list(echo.parent.iterdir()) == [], "an empty log is removed"
    with pytest.raises(GoneError):
        ECHO.ask(echo, {"command": "ping"})


def test_a_daemon_that_cannot_start_is_an_error_with_the_end_of_its_log(echo, says):
    with says(StorageError):
        launch(echo, fails="no room for an echo")
    assert list(echo.parent.iterdir()) == []


def test_a_daemon_that_is_not_up_in_time_is_an_error_and_is_ended(echo, monkeypatch):
    monkeypatch.setattr(kind, "_UP_WITHIN_S", 0.5)
    pids = []

    def is_up(facts):
        pids.append(facts["pid"])
        return False

    with pytest.raises(StorageTimeout):
        launch(echo, is_up=is_up)
    support.wait_until(lambda: not is_running(pids[0]), "the end of the daemon")


def test_what_a_killed_daemon_left_does_not_hinder_the_next(echo):
    launch(echo)
    first = ECHO.ask(echo, {"command": "ping"})["pid"]
    os.kill(first, signal.SIGKILL)
    support.wait_until(lambda: not is_running(first), "the end of the daemon")
    assert ECHO.sockets() == [echo], "its socket is left"
    with pytest.raises(GoneError):
        ECHO.ask(echo, {"command": "ping"})
    launch(echo)
    assert ECHO.ask(echo, {"command": "ping"})["pid"] != first
    os.kill(ECHO.ask(echo, {"command": "ping"})["pid"], signal.SIGKILL)
    ECHO.forget(echo)
    assert list(echo.parent.iterdir()) == []


def test_only_one_process_starts_daemons_at_a_time(echo):
    entered = threading.Event()

    def other():
        with ECHO.locked():
            entered.set()

    with ECHO.locked():
        thread = threading.Thread(target=other)
        thread.start()
        assert not entered.wait(0.2)
    assert entered.wait(DEADLINE_S)
    thread.join()


# What a job that starts a daemon may have: an open lock, bound to a core, niced, limited.
STARTER = """
import fcntl, os, resource, signal, subprocess, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
os.set_inheritable(lock, True)
os.dup2(lock, 50, inheritable=True)
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
os.nice(5)
os.umask(0)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
os.environ["LD_PRELOAD"] = sys.argv[2]
if sys.argv[3] == "echo":
    import json
    from tests.job.test_daemons import ECHO
    configuration = {"fails": None, "socket": str(ECHO.socket(b"/data"))}
    ECHO.launch(configuration, ECHO.socket(b"/data"), attempt="start", is_up=bool)
else:
    subprocess.run([sys.executable, "-m", *sys.argv[3:]], check=True, close_fds=False)
"""


def status_of(pid):
    """Return the lines of /proc/PID/status by name."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines)


@pytest.mark.parametrize(
    "command", [["echo"], ["forebay.tools.tiers"], ["forebay.tools.store", "1048576", "60"]]
)
@pytest.mark.full
def test_a_daemon_keeps_nothing_of_the_job_that_starts_it(monkeypatch, short_path, command):
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", str(short_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    library = ctypes.util.find_library("m")
    lock = short_path / "lock"
    # A daemon that kept the output would keep the job waiting.
    done = subprocess.run(
        [sys.executable, "-c", STARTER, str(lock), library, *command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours = f"FOREBAY_RUNTIME_DIR={short_path}".encode()
    (pid,) = (
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and ours in environment_of(process)
        if int(process.name) != os.getpid()
    )
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        names = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
        assert str(lock) not in names
        found = status_of(pid)
        assert len(os.sched_getaffinity(pid)) == len(os.sched_getaffinity(0))
        assert found["Umask"].strip() == "0077"
        blocked, ignored = (int(found[name], 16) for name in ("SigBlk", "SigIgn"))
        assert blocked == 0
        assert not ignored >> (signal.SIGUSR1 - 1) & 1
        for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
            soft, hard = resource.prlimit(pid, limit)
            assert soft == hard
        if os.geteuid() == 0:
            assert os.getpriority(os.PRIO_PROCESS, pid) == 0
        assert b"LD_PRELOAD" not in (Path(f"/proc/{pid}") / "environ").read_bytes()
    finally:
        os.kill(pid, signal.SIGTERM)
        support.wait_until(lambda: not is_running(pid), "the daemon to end")


def environment_of(process):
    """Return the variables of a process; none for one that is not ours or has ended."""
    with suppress(OSError):
        return (process / "environ").read_bytes().split(b"\0")
    return []
