"""The whole demo, small: real ranks, their output, failures and interrupts."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import support
from forebay_lab import pfs
from forebay_lab.demo import results, runner
from forebay_lab.demo.runner import main
from forebay_lab.ranks import launch
from support.demo import SAMPLES
from support.emulator import needs_fuse, ours
from support.report_page import Page


def test_wrong_use_is_told_apart_from_failure(capsys: pytest.CaptureFixture[str]):
    assert main(ranks=0) == 2
    assert main(samples=10) == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.mpi
def test_two_ranks_train_alike_with_py_lmdb_and_with_forebay(place: Path, capsys: pytest.CaptureFixture[str]):
    code = main(
        json=True, ranks=2, samples=SAMPLES, output=place / "demo.html", data=place / "data", emulate=False
    )
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found = json.loads(captured.out)
    base, same, group = found["runs"]
    assert base["losses"] == same["losses"]
    assert len(base["losses"]) == 2 * -(-SAMPLES // 500)
    assert group["losses"] != base["losses"]
    assert (found["pfs"], base["pfs"]) == (None, None)
    assert found["pfs_reason"] == "--no-pfs was given"
    assert "--no-pfs was given" in captured.err
    assert (place / "demo.html").stat().st_size > 10_000
    assert [entry.name for entry in place.iterdir()] == ["demo.html"], "the dataset was not asked to stay"


@pytest.mark.mpi
@pytest.mark.full
@needs_fuse
def test_on_the_emulator_losses_are_identical_and_its_counters_are_what_table_page_and_json_show(
    place: Path, scratch: Path, monkeypatch, capsys
):
    seen = []
    plain_stats = pfs.Server.stats

    def stats(server):
        seen.append(plain_stats(server))
        return seen[-1]

    monkeypatch.setattr(pfs.Server, "stats", stats)
    code = main(json=True, ranks=2, samples=SAMPLES, output=place / "demo.html", data=place / "data")
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found = json.loads(captured.out)
    assert found["losses_identical"]
    assert found["pfs"]["spec"]["name"] == "nfs"
    assert found["pfs_reason"] is None
    shown, table = Page((place / "demo.html").read_text()), results.table(found)
    assert len(seen) == len(found["runs"]) == 3
    for counted, run in zip(seen, found["runs"], strict=True):
        (node,) = counted["nodes"]
        of_all = {"mean_read_bytes", "lateness_share", "missed_deadlines"}
        assert {key: node[key] for key in run["pfs"].keys() - of_all} == {
            key: value for key, value in run["pfs"].items() if key not in of_all
        }
        assert run["pfs"]["missed_deadlines"] == (counted["lateness_share"] > 0.05)
        # Every run begins cold and reads nearly every page, each once: the second epoch comes from
        # the page cache.
        assert 0.9 * found["file_bytes"] < node["read_bytes"] < 1.2 * found["file_bytes"]
        assert [file["file"] for file in counted["files"] if file["reads"]] == ["train.lmdb/data.mdb"]
        for key in ("reads", "read_bytes", "mean_read_bytes"):
            assert shown.cells[run["title"], f"pfs_{key}"] == run["pfs"][key]
        assert f"{node['reads']:,}" in table
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []
    assert [entry.name for entry in place.iterdir()] == ["demo.html"]


@needs_fuse
@pytest.mark.parametrize("failure", ["ranks", "server", "interrupt"])
def test_a_demo_that_fails_in_mid_run_leaves_nothing_mounted(
    place: Path, scratch: Path, monkeypatch, capsys, failure: str
):
    def fail(arguments, **options):
        mount = Path(arguments[arguments.index("--data") + 1])
        assert ours(scratch) == [mount]
        if failure == "ranks":
            raise launch.LaunchError("training run: a rank died")
        if failure == "interrupt":
            raise KeyboardInterrupt
        # The server dies while the ranks read: they end with an error, and so does the question for
        # its counters.
        process = os.pidfd_open(pfs.Server.of(mount).pid)
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], support.DEADLINE_S)
        os.close(process)
        raise launch.LaunchError("training run: Transport endpoint is not connected")

    monkeypatch.setattr(runner.launch, "run", fail)
    status = main(samples=SAMPLES, output=place / "demo.html", data=place / "data")
    assert status == (130 if failure == "interrupt" else 1)
    message = {
        "ranks": "a rank died",
        "server": "Transport endpoint is not connected",
        "interrupt": "interrupted; ranks ended, nothing left behind",
    }
    assert message[failure] in capsys.readouterr().err
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []
    assert list(place.iterdir()) == []


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("number", "options"),
    [
        (signal.SIGINT, ["--no-pfs"]),
        pytest.param(signal.SIGINT, [], marks=[needs_fuse, pytest.mark.long]),
        pytest.param(signal.SIGTERM, [], marks=needs_fuse),
    ],
)
@pytest.mark.full
def test_an_interrupt_ends_the_ranks_and_leaves_nothing(tmp_path: Path, scratch: Path, number: int, options):
    command = [sys.executable, "-m", "forebay_lab.demo", "--samples", "8000", "--ranks", "2", *options]
    command += ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "demo.html")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("dataset")
    assert process.stderr.readline().startswith("storage")
    needle = str(ours(scratch)[0] if not options else tmp_path / "data").encode()
    while not _processes_with(needle, b"forebay_lab.demo.train"):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(number)
    assert "interrupted" in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=support.DEADLINE_S) == 130
    assert not (tmp_path / "data").exists()
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []
    assert not _processes_with(needle)


def _processes_with(*words: bytes) -> list[int]:
    """Return the processes, but this one, whose command lines contain all words."""
    lines = {pid: _command_line(pid) for pid in launch._processes() if pid != os.getpid()}
    return [pid for pid, line in lines.items() if all(word in line for word in words)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
