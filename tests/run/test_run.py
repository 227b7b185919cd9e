"""`forebay run`: the program and its caller notice nothing but the copies."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

import support
from forebay.tools.run.served import LIBRARY
from support import documented_keys
from support.run_session import Runs, a_summary

PYTHON = sys.executable

# Waits for a signal and says which one came.
CATCHER = """
import signal, sys, time
caught = []
for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGTSTP"):
    signal.signal(getattr(signal, name), lambda number, _: caught.append(signal.Signals(number).name))
print("ready", flush=True)
while not caught:
    time.sleep(0.01)
print(*caught, flush=True)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "data"
    directory.mkdir()
    (directory / "a.bin").write_bytes(random.Random(1).randbytes(100_000))
    (directory / "b.txt").write_text("some text\n")
    return directory


@pytest.fixture
def runs(make_copies, source, tmp_path):
    (tmp_path / "tier").mkdir()
    return Runs(make_copies(source), tmp_path / "tier", tmp_path / "log")


def alone(command, **options):
    """Run a program without Forebay."""
    return subprocess.run(command, capture_output=True, timeout=support.DEADLINE_S, check=False, **options)


def test_a_program_gets_copies_its_output_and_status_are_the_same(runs, source):
    command = ["sh", "-c", "cat; cat a.bin b.txt; echo problem >&2; exit 3"]
    expected = alone(command, cwd=source, input=b"in")
    # The first rank of a node would print the summary.
    done = runs.run(*command, cwd=source, stdin=b"in", env={"SLURM_LOCALID": "1"})
    assert (done.stdout, done.stderr, done.returncode) == (expected.stdout, expected.stderr, 3)
    assert runs.copies.counters()[0]["opened"] >= 2
    assert [one["what"] for one in runs.calls()] == ["open", "finish", "close"]


def test_the_options_reach_the_session(runs, source):
    options = ["--frozen", "--check", "--fetch", "whole", "--no-keep"]
    assert runs.run("true", options=options).returncode == 0
    found = runs.calls()[0]
    assert found["tiers"][0]["path"] == str(runs.tier)
    assert found["sources"] == [str(source)]
    assert [found[name] for name in ("frozen", "check", "fetch", "keep")] == [True, True, "whole", False]
    assert found["daemon"] == [PYTHON, "-m", "forebay.tools.tiers"]


@pytest.mark.parametrize("where", ["FOREBAY_TIERS", "--config", "FOREBAY_CONFIG", "FOREBAY_SYSTEM_CONFIG"])
def test_tiers_come_from_where_a_loader_takes_them(runs, source, tmp_path, where):
    tiers = f"{runs.tier}:8MiB"
    (tmp_path / "c.toml").write_text(f'tiers = ["{tiers}"]\n')
    value = tiers if where == "FOREBAY_TIERS" else str(tmp_path / "c.toml")
    command = runs.command("true")
    place = command.index("--tier")
    command[place : place + 2] = [where, value] if where.startswith("--") else []
    environment = os.environ if where.startswith("--") else {**os.environ, where: value}
    assert alone(command, env=environment).returncode == 0
    assert runs.calls()[0]["tiers"][0]["bytes"] == 8 << 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT])
def test_the_signal_that_ends_the_program_ends_the_run(runs, number):
    assert runs.run("sh", "-c", f"ulimit -c 0; kill -{int(number)} $$").returncode == -number


# Not Python, which ignores signals itself.
MASKS = ["grep", "-E", "Sig(Pnd|Blk|Ign|Cgt)", "/proc/self/status"]


def signal_masks(command):
    """Return what a program finds pending, blocked, ignored and caught.

    `posix_spawn` ignores the signals 32 and 33, which belong to the C library.
    """
    masks = [int(line.split()[1], 16) for line in alone(command).stdout.splitlines()]
    assert len(masks) == 4
    return [mask & ~(0b11 << 31) for mask in masks]


def test_signals_masks_group_and_limits_are_those_of_the_caller(runs):
    program = (
        "import os, resource, sys\n"
        "print(os.getpgrp() == int(sys.argv[1]), os.getsid(0), os.getcwd(), os.umask(0))\n"
        "print(sorted(os.listdir('/proc/self/fd')), resource.getrlimit(resource.RLIMIT_CORE))\n"
    )
    assert signal_masks(runs.command(*MASKS)) == signal_masks(MASKS)
    command = [PYTHON, "-c", program, str(os.getpgrp())]
    done = runs.run(*command)
    assert done.stdout == alone(command).stdout
    assert b"True" in done.stdout


def test_an_ignored_interrupt_stays_ignored_and_a_broken_pipe_ends_the_program(runs):
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    assert signal_masks([*command, *runs.command(*MASKS)]) == signal_masks([*command, *MASKS])
    done = alone(["bash", "-c", '"$@" | head -c 1; echo "${PIPESTATUS[0]}"', "bash", *runs.command("yes")])
    assert done.stdout.split() == [b"y141"] or done.stdout == b"y141\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGTSTP"])
def test_signals_are_forwarded(runs, name):
    with subprocess.Popen(runs.command(PYTHON, "-c", CATCHER), stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(getattr(signal, name))
        assert process.stdout.read().decode().split() == [name]
    assert process.returncode == 0


class Terminal:
    """An interactive shell on a terminal."""

    def __init__(self):
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(PS1="$ ", TERM="dumb")
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.shown = ""

    def write(self, text):
        os.write(self._terminal, text.encode())

    def wait_for(self, pattern):
        """Wait until this appears; forget what came before it."""
        end = time.monotonic() + support.DEADLINE_S
        while not (match := re.search(pattern, self.shown)):
            left = max(end - time.monotonic(), 0)
            ready, _, _ = select.select([self._terminal], [], [], left)
            assert ready, f"waited for {pattern}, found: {self.shown}"
            with suppress(OSError):
                self.shown += os.read(self._terminal, 4096).decode(errors="replace")
        self.shown = self.shown[match.end() :]

    def close(self):
        os.close(self._terminal)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal():
    shell = Terminal()
    yield shell
    shell.close()


def test_a_shell_stops_and_resumes_the_job_and_interrupts_the_program_once(runs, terminal, tmp_path):
    program = """
import signal, sys, time, os
signal.signal(signal.SIGINT, lambda *_: print("inter" + "rupted", flush=True))
print("on a terminal:", sys.stdin.isatty(), flush=True)
for line in sys.stdin:
    print("got " + line.strip().upper(), flush=True)
"""
    script = tmp_path / "command"
    script.write_text("exec " + " ".join(map(quoted, runs.command(PYTHON, "-c", program))))
    terminal.write(f"bash {script}\n")
    terminal.wait_for("on a terminal: True")
    terminal.write("one\n")
    terminal.wait_for("got ONE")
    terminal.write("\x1a")
    terminal.wait_for("Stopped")
    terminal.write("fg\n")
    terminal.write("two\n")
    terminal.wait_for("got TWO")
    terminal.write("\x03")
    terminal.wait_for("interrupted")
    terminal.write("three\n")
    terminal.wait_for("got THREE")
    terminal.write("\x04")
    terminal.write("echo status=$?\n")
    terminal.wait_for("status=0")


def test_a_program_gets_each_signal_of_the_terminal_once(runs, terminal, tmp_path):
    program = """
import signal, sys, time
caught = []
for number in (signal.SIGTSTP, signal.SIGQUIT):
    signal.signal(number, lambda number, _: caught.append(number))
print("be" + "gun", flush=True)
for line in sys.stdin:
    print("caught", sorted(caught), flush=True)
"""
    script = tmp_path / "command"
    script.write_text("exec " + " ".join(map(quoted, runs.command(PYTHON, "-c", program))))
    terminal.write(f"bash {script}\n")
    terminal.wait_for("begun")
    terminal.write("\x1a")
    terminal.write("\x1c")
    terminal.write("\n")
    terminal.wait_for(r"caught \[3, 20\]")
    terminal.write("\n")
    terminal.wait_for(r"caught \[3, 20\]")


def test_an_interrupt_ends_program_and_run(runs, terminal, tmp_path):
    script = tmp_path / "command"
    script.write_text(
        "exec " + " ".join(map(quoted, runs.command("sh", "-c", "echo be''gun; exec sleep 1000")))
    )
    terminal.write(f"bash {script}\n")
    terminal.wait_for("begun")
    terminal.write("\x03")
    terminal.write("echo status=$?\n")
    terminal.wait_for("status=130")


def quoted(word):
    return "'" + word.replace("'", "'\\''") + "'"


@pytest.mark.parametrize("name", ["no-such-program", "./missing", "/", "", "plain-file"])
def test_a_command_that_cannot_run_has_the_status_of_a_shell(runs, tmp_path, name):
    (tmp_path / "plain-file").write_text("")
    path = f"{tmp_path}:{os.environ['PATH']}"
    expected = alone(["env", name], env={**os.environ, "PATH": path}, cwd=tmp_path)
    done = runs.run(name, env={"PATH": path}, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (expected.returncode, b"")
    assert done.returncode in (126, 127)
    assert runs.calls() == []


def test_a_script_without_an_interpreter_runs_as_in_a_shell(runs, tmp_path):
    script = tmp_path / "script"
    script.write_text('echo "$0" "$@"\n')
    script.chmod(0o755)
    assert runs.run(script, "a b").stdout.decode() == f"{script} a b\n"


def test_preloaded_libraries_stay_and_come_first(runs):
    show = [PYTHON, "-c", "import os; print(os.environ['LD_PRELOAD'], os.environ['FOREBAY_TABLE'])"]
    libc = "libc.so.6"
    assert runs.run(*show).stdout.decode().split() == [str(LIBRARY), str(runs.copies.table)]
    done = runs.run(*show, env={"LD_PRELOAD": libc})
    assert done.stdout.decode().split() == [libc, str(LIBRARY), str(runs.copies.table)]
    done = runs.run(*show, env={"LD_PRELOAD": f"{LIBRARY}:{libc}"})
    assert done.stdout.decode().split()[0] == f"{LIBRARY}:{libc}"


def test_a_run_inside_a_run_joins_it(runs, source):
    inner = [PYTHON, "-m", "forebay", "run", "--", "sh", "-c", "cat a.bin; exit 4"]
    done = runs.run(*inner, cwd=source)
    assert (done.stdout, done.returncode) == ((source / "a.bin").read_bytes(), 4)
    assert [one["what"] for one in runs.calls()].count("open") == 1
    inner = [PYTHON, "-m", "forebay", "run", "--", *MASKS]
    assert signal_masks(runs.command(*inner)) == signal_masks(MASKS)
    assert runs.copies.counters()[0]["opened"] >= 1


def test_a_program_runs_if_the_daemon_cannot_be_reached(runs, source):
    done = runs.run("cat", "a.bin", cwd=source, fails="it did not start")
    assert (done.stdout, done.returncode) == ((source / "a.bin").read_bytes(), 0)
    assert b"it did not start" in done.stderr


def test_a_program_runs_if_a_tier_of_the_system_cannot_be_used(runs, tmp_path):
    (tmp_path / "system.toml").write_text('tiers = ["/no/such/directory:8MiB"]\n')
    command = runs.command("true")
    place = command.index("--tier")
    del command[place : place + 2]
    done = alone(command, env={**os.environ, "FOREBAY_SYSTEM_CONFIG": str(tmp_path / "system.toml")})
    assert (done.returncode, b"/no/such/directory" in done.stderr) == (0, True)
    environment = {**os.environ, "FOREBAY_TIERS": "/no/such/directory:8MiB"}
    assert alone(command, env=environment).returncode == 2


def test_a_library_that_cannot_be_loaded_is_not_preloaded(runs, source, tmp_path):
    (tmp_path / "libforebay_preload.so").write_text("no library")
    code = "from forebay.tools.run import main, served; import pathlib; "
    code += f"main.LIBRARY = served.LIBRARY = pathlib.Path({str(tmp_path / 'libforebay_preload.so')!r})\n"
    command = runs.command("cat", "a.bin")
    command[command.index("-c") + 1] = code + command[command.index("-c") + 1]
    done = alone(command, cwd=source)
    assert (done.stdout, done.returncode) == ((source / "a.bin").read_bytes(), 0)
    assert done.stderr.count(b"cannot be preloaded") == 1


def test_staging_comes_first_and_says_how_far_it_is(runs):
    done = runs.run("echo", "begun", options=["--stage"])
    assert (done.stdout, done.returncode) == (b"begun\n", 0)
    assert b"3 of 3 files, 3 MiB of 3 MiB" in done.stderr
    assert [one["what"] for one in runs.calls()] == ["open", "stage", "finish", "close"]
    done = runs.run("echo", "begun", options=["--stage"], problem="/data/x: Permission denied")
    assert (done.stdout, b"/data/x: Permission denied" in done.stderr) == (b"begun\n", True)


def test_a_program_runs_if_the_daemon_is_lost_while_files_are_staged(runs):
    done = runs.run("echo", "begun", options=["--stage"], loses="it has ended")
    assert (done.stdout, done.returncode, b"it has ended" in done.stderr) == (b"begun\n", 0, True)


def test_staging_shows_a_bar_on_a_terminal_and_stops_with_the_job(runs, terminal, tmp_path):
    script = tmp_path / "command"
    command = runs.command("echo", "program", options=["--stage"], steps=30)
    script.write_text("exec " + " ".join(map(quoted, command)))
    terminal.write(f"bash {script}\n")
    terminal.wait_for(r"\[#+\.+\] staging: \d of 30 files")
    terminal.write("\x1a")
    terminal.wait_for("Stopped")
    terminal.write("fg\n")
    terminal.wait_for("program")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_staging_and_no_program_starts(runs, number, tmp_path):
    file = tmp_path / "summary.json"
    command = runs.command("echo", "begun", options=["--stage", "--json", file], steps=10**9)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        support.wait_until(lambda: any(one["what"] == "stage" for one in runs.calls()), "staging to begin")
        process.send_signal(number)
        assert process.stdout.read() == b""
    assert process.returncode == -number
    assert [one["what"] for one in runs.calls()[-2:]] == ["stage", "close"]
    written = json.loads(file.read_text())
    assert (written["signal"], written["exit_status"], written["run"]) == (number, None, a_summary())


A_LEVEL = {
    "name": "/tier",
    "path": "/tier/forebay-0/v1",
    "opens": 5,
    "bytes": 5 << 20,
    "copies": 5,
    "copied_bytes": 1 << 20,
    "quota_bytes": 1 << 30,
    "taken_bytes": 1 << 20,
    "state": "open",
}


def test_a_summary_goes_to_stderr_of_the_first_rank_of_a_node(runs):
    unseen = runs.run("true", summary=a_summary(sources=["/data/x"])).stderr.decode()
    assert ("/data/x" in unseen, "static" in unseen) == (True, True)
    served = a_summary(opens=7, opens_served=5, levels=[A_LEVEL], not_copied={"no_room": 3})
    told = runs.run("true", summary=served).stderr.decode()
    assert "5 of 7 opens" in told
    assert "5 MiB" in told
    assert "3 files: no room" in told
    assert runs.run("true", summary=served, env={"SLURM_LOCALID": "1"}).stderr == b""
    none = runs.run("true", summary=a_summary(opens=7, counters={"unknown": 7})).stderr.decode()
    assert "--stage" in none


@pytest.mark.parametrize(("files", "opens", "is_named"), [(1, 1, True), (3, 3, True), (3, 7, False)])
def test_the_largest_file_is_named_if_each_was_opened_once_and_nothing_was_served(
    runs, files, opens, is_named
):
    largest = {"path": "/data/large", "bytes": 80 << 30}
    found = a_summary(
        opens=opens, counters={"unknown": opens}, requested_files=files, largest_requested=largest
    )
    told = runs.run("true", summary=found).stderr.decode()
    assert ("/data/large" in told, "80 GiB" in told, "--stage" in told) == (is_named, is_named, True)


@pytest.mark.parametrize("opens", [0, 7])
def test_a_daemon_that_was_started_again_is_told_of(runs, tmp_path, opens):
    file = tmp_path / "summary.json"
    found = a_summary(sources=["/data/x"], opens=opens, opens_served=opens)
    told = runs.run("true", options=["--json", file], summary=found, restarts=2).stderr.decode()
    assert ("2 times" in told, "/data/x" in told) == (True, False)
    assert json.loads(file.read_text())["daemon_restarts"] == 2


def test_json_has_the_documented_keys(runs, tmp_path):
    found = a_summary(levels=[A_LEVEL])
    file = tmp_path / "summary.json"
    done = runs.run("sh", "-c", "exit 5", options=["--json", file], summary=found)
    assert done.returncode == 5
    written = json.loads(file.read_text())
    assert list(written) == documented_keys("`forebay run --json FILE`")
    assert (written["exit_status"], written["signal"], written["run"]) == (5, None, found)
    assert documented_keys("A run of programs") == list(found)
    assert documented_keys("A tier of a run") == list(A_LEVEL)
    runs.run("sh", "-c", "kill -9 $$", options=["--json", file])
    assert json.loads(file.read_text())["signal"] == 9
    assert [one.name for one in tmp_path.glob("summary*")] == ["summary.json"]
    assert json.loads(runs.run("true", options=["--json", "/dev/stdout"]).stdout)["exit_status"] == 0


@pytest.mark.parametrize(("status", "expected"), [(0, 1), (3, 3)])
def test_a_copy_that_differs_is_a_failure(runs, status, expected):
    found = a_summary(differences=[{"path": "/data/a", "offset": 4096}])
    done = runs.run("sh", "-c", f"exit {status}", options=["--check"], summary=found)
    assert done.returncode == expected
    assert b"/data/a" in done.stderr
    assert b"4,096" in done.stderr


def test_a_check_that_was_not_made_is_a_failure(runs):
    assert runs.run("true", options=["--check"], fails="it did not start").returncode == 1


def test_a_run_imports_neither_click_nor_numpy_nor_rich(runs):
    command = runs.command("true")
    place = command.index("-c") + 1
    end = "status = main(sys.argv[2:])\nprint({'click', 'numpy', 'rich'} & sys.modules.keys())\nsys.exit(status)"
    command[place] = command[place].replace("sys.exit(main(sys.argv[2:]))", end)
    assert alone(command).stdout == b"set()\n"


def test_closed_streams_are_no_trouble(runs):
    done = subprocess.run(
        ["bash", "-c", '"$@" <&- >&-', "bash", *runs.command("sh", "-c", "exit 3")],
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 3


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compile the smallest program with options of gcc."""
    directory = tmp_path_factory.mktemp("programs")
    (directory / "a.c").write_text("int main(void) { return 0; }\n")

    def compile(name, *options):
        subprocess.run(["gcc", "a.c", "-o", name, *options], cwd=directory, check=True)
        return directory / name

    return compile


def outlook(path, environment=None):
    from forebay.tools.run.program import outlook

    return outlook(str(path), (str(path),), environment or {"PATH": os.environ["PATH"]})


def test_a_static_program_runs_and_is_named(runs, compiled):
    for name, option in (("static", "-static"), ("static-pie", "-static-pie")):
        found = outlook(compiled(name, option))
        assert found.can_preload
        assert "static" in found.notes[0]
    done = runs.run(compiled("static", "-static"))
    assert (done.returncode, b"static program" in done.stderr) == (0, True)


def test_a_program_of_another_libc_or_machine_is_not_preloaded(compiled, tmp_path):
    plain = compiled("plain")
    assert outlook(plain) == (True, (), None)
    assert not outlook(compiled("musl", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")).can_preload
    other = bytearray(plain.read_bytes())
    other[18] = 0xF3
    (tmp_path / "other").write_bytes(other)
    found = outlook(tmp_path / "other")
    assert (found.can_preload, len(found.notes)) == (False, 1)
    (tmp_path / "cut").write_bytes(plain.read_bytes()[:70])
    assert outlook(tmp_path / "cut").can_preload


def test_a_program_with_address_sanitizer_is_refused(runs, compiled, tmp_path):
    library = compiled("libasan.so.99", "-shared", "-fPIC", "-Wl,-soname,libasan.so.99")
    program = compiled("asan", "-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{library.parent}")
    assert outlook(program).refusal is not None
    assert outlook(program, {"ASAN_OPTIONS": "verify_asan_link_order=0"}).refusal is None
    done = runs.run(program)
    assert (done.returncode, b"ASAN_OPTIONS" in done.stderr) == (1, True)


def test_a_privileged_program_is_named(compiled, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    program = shutil.copy(compiled("plain"), tmp_path / "privileged")
    os.chown(program, 1, 1)
    program.chmod(0o4755)
    assert "setuid" in outlook(program).notes[0]


def test_the_interpreter_of_a_script_is_looked_at(compiled, tmp_path):
    static = compiled("static", "-static")
    for number, line in enumerate((f"#!{static}", f"#!/usr/bin/env -S {static}", f"#! {static} -x")):
        script = tmp_path / f"script-{number}"
        script.write_text(f"{line}\n")
        assert str(static) in outlook(script).notes[0]


@pytest.mark.parametrize(("name", "words"), [("mpiexec", "other nodes"), ("apptainer", "container")])
def test_launchers_whose_programs_may_not_be_served_are_named(runs, tmp_path, name, words):
    launcher = tmp_path / name
    launcher.write_text("#!/bin/sh\nexit 0\n")
    launcher.chmod(0o755)
    done = runs.run(launcher)
    assert (done.returncode, words in done.stderr.decode()) == (0, True)
