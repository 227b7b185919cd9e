"""A mapped file truncated in use is an error; the SIGBUS handlers of others stay."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

import support
from support import run_python

SAMPLES = 2000
SAMPLE_BYTES = 3000

# The handler of a mapping is there once a loader has used one.
_PRELUDE = """
import ctypes, faulthandler, mmap, os, signal, sys, tempfile
import forebay, forebay_lab

def loader(path):
    return forebay.Loader(path, 20, order="sequential", strategy="mmap", world="single", expected_epochs=1)

def foreign_fault():
    file = tempfile.TemporaryFile()
    file.truncate(8192)
    mapped = mmap.mmap(file.fileno(), 8192)
    mapped[5000]
    file.truncate(0)
    mapped[5000]
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    values = [support.record(number, SAMPLE_BYTES) for number in range(SAMPLES)]
    return support.write_lmdb(tmp_path_factory.mktemp("whole") / "x.lmdb", values)


@pytest.fixture
def cut(tmp_path):
    values = [support.record(number, SAMPLE_BYTES) for number in range(SAMPLES)]
    return support.write_lmdb(tmp_path / "x.lmdb", values)


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_python(_PRELUDE + code, *arguments)


_TRUNCATE = """
sys.path.insert(0, sys.argv[5])
from support import record
path, strategy, order, length = sys.argv[1:5]
file = os.path.join(path, "data.mdb")
step = 0
faulthandler.enable()
faulthandler.disable()
if sys.argv[6] == "one core":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if sys.argv[6] == "blocked":
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
try:
    strategy = forebay_lab.strategy(strategy)
    with forebay.Loader(path, 20, order=order, strategy=strategy, seed=1, world="single", expected_epochs=2,
                        node_memory="4MiB") as loader:
        if sys.argv[6] == "late":
            faulthandler.enable()
        for _ in range(2):
            for batch in loader:
                # Nothing of what was lost is ever handed out as zeros.
                assert all(bytes(row) == record(int(number), 3000) for number, row in zip(batch.indices, batch["data"]))
                step += 1
                if step == 6:
                    os.truncate(file, int(length))
except forebay.StorageError as error:
    print(error)
"""

STRATEGIES = [
    ("forebay", "shuffle"),
    ("forebay", "group"),
    ("mmap", "shuffle"),
    ("lmdb", "sequential"),
    ("lmm", "sequential"),
    ("lmm-dm", "sequential"),
]


@pytest.mark.parametrize(
    ("strategy", "order", "where"),
    [
        *((*way, "") for way in STRATEGIES),
        # The thread of the script copies batches itself.
        ("forebay", "shuffle", "one core"),
        ("forebay", "group", "one core"),
    ],
)
def test_a_resident_file_that_is_truncated_between_batches_is_an_error(cut, strategy, order, where):
    data = cut / "data.mdb"
    expected = data.stat().st_size
    # The end of a page, so that no page is left of which a part reads as zeros.
    found = expected // 3 // 4096 * 4096
    done = run(_TRUNCATE, cut, strategy, order, found, support.ROOT / "tests", where)
    assert done.returncode == 0, done.stderr
    message, hint = done.stdout.strip().split("\nhint: ")
    assert message.startswith(f"{data}: read of ")
    assert message.endswith(f"the file is truncated: expected {expected} bytes, file has {found}")
    assert "nobody writes" in hint


def test_a_fault_handler_that_is_enabled_after_the_loader_was_made_does_not_end_the_process(cut):
    done = run(_TRUNCATE, cut, "mmap", "sequential", 0, support.ROOT / "tests", "late")
    assert done.returncode == 0, done.stderr
    assert "the file is truncated" in done.stdout
    assert "Fatal" not in done.stderr


def test_a_program_that_blocks_all_signals_is_not_ended(cut):
    done = run(_TRUNCATE, cut, "mmap", "sequential", 0, support.ROOT / "tests", "blocked")
    assert done.returncode == 0, done.stderr
    assert "the file is truncated" in done.stdout


def test_the_scan_of_a_file_that_is_cut_off_meanwhile_is_an_error(cut):
    # The scan stops at a page; the file is cut off before it goes on.
    code = """
strategy = forebay_lab.strategy("lmm-dio")
with forebay.Loader(sys.argv[1], 20, order="sequential", strategy=strategy, world="single", expected_epochs=1) as loader:
    pass
"""
    process = support.Process(_PRELUDE + code, cut, environment={"FOREBAY_FAILPOINT": "stop:scan:40"})
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        os.truncate(cut / "data.mdb", 8192)
        os.kill(process.pid, signal.SIGCONT)
        returncode, _, stderr = process.finish()
    finally:
        process.kill()
    assert returncode == 1
    assert "StorageError" in stderr
    assert "the file is truncated" in stderr


FIRST = "with loader(sys.argv[1]) as one: next(iter(one))\n"


@pytest.mark.parametrize("fork", [False, True])
def test_a_foreign_fault_ends_the_process_as_without_us(whole, fork):
    code = FIRST + (
        "child = os.fork()\n"
        "if child: sys.exit(0 if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGBUS else 1)\n"
        if fork
        else ""
    )
    done = run(code + "foreign_fault()", whole)
    assert done.returncode == (0 if fork else -signal.SIGBUS), done.stderr


@pytest.mark.parametrize("when", ["before", "after", "meanwhile"])
def test_a_foreign_fault_is_reported_by_the_fault_handler(whole, when):
    enable = "faulthandler.enable()\n"
    code = {
        "before": enable + FIRST,
        "after": FIRST + enable,
        "meanwhile": FIRST + enable + FIRST,
    }[when]
    done = run(code + "foreign_fault()", whole)
    assert done.returncode == -signal.SIGBUS
    assert done.stderr.count("Fatal Python error: Bus error") == 1
    assert "foreign_fault" in done.stderr


@pytest.mark.parametrize("when", ["before", "after", "meanwhile"])
def test_a_handler_of_the_program_gets_the_signals_that_are_sent(whole, when):
    install = "got = []; signal.signal(signal.SIGBUS, lambda *_: got.append(1))\n"
    code = {
        "before": install + FIRST,
        "after": FIRST + install,
        "meanwhile": FIRST + install + FIRST,
    }[when]
    code += """
for _ in range(3):
    os.kill(os.getpid(), signal.SIGBUS)
    with loader(sys.argv[1]) as one: next(iter(one))
assert got == [1, 1, 1], got
"""
    done = run(code, whole)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("disposition", "returncode"), [("SIG_IGN", 0), ("SIG_DFL", -signal.SIGBUS)])
def test_a_signal_that_is_sent_is_ignored_or_ends_the_process_as_the_program_wants(
    whole, disposition, returncode
):
    code = f"signal.signal(signal.SIGBUS, signal.{disposition})\n{FIRST}os.kill(os.getpid(), signal.SIGBUS)"
    assert run(code, whole).returncode == returncode


def test_a_foreign_fault_that_is_ignored_ends_the_process_as_without_us(whole):
    code = f"signal.signal(signal.SIGBUS, signal.SIG_IGN)\n{FIRST}foreign_fault()"
    assert run(code, whole).returncode == -signal.SIGBUS


def test_after_a_file_was_cut_off_another_one_is_read(whole, cut):
    code = """
with loader(sys.argv[2]) as one:
    batches = iter(one)
    next(batches)
    os.truncate(os.path.join(sys.argv[2], "data.mdb"), 8192)
    try:
        for _ in batches: pass
    except forebay.StorageError:
        print("an error")
with loader(sys.argv[1]) as one:
    print(sum(len(batch.indices) for batch in one))
"""
    done = run(code, whole, cut)
    assert done.stdout.split("\n")[:2] == ["an error", str(SAMPLES)], done.stderr
