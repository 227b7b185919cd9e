"""forebay bench on emulated file systems, and what an interrupted one leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import support
from forebay_lab import pfs
from forebay_lab.bench.nodes import SCRATCH
from forebay_lab.ranks import launch
from forebay_lab.scratch import remove_leftovers
from support import emulator
from support.bench import command_line, interrupted, run, run_json


@pytest.fixture
def all_unmounted(tmp_path, monkeypatch):
    """Make temporary directories below the test's own, and see that nothing stays mounted there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    left = emulator.ours(tmp_path)
    emulator.remove_all(tmp_path)
    assert left == []


@emulator.needs_fuse
@pytest.mark.full
def test_nodes_are_mounted_for_the_run_and_begin_cold(capsys, data, all_unmounted, tmp_path):
    status, result = run_json(
        capsys, data, "--ranks", 3, "--nodes", 2, "--cold", "--pfs", "lustre-ssd", "--targets", 2, "--time-scale", 4,
        "--repetitions", 2, "--batch-size", 16, "--compute", "1ms", "--launcher", "processes",
        "--strategies", "pylmdb-skipping,pylmdb-ownlock,forebay@sequential,forebay",
    )  # fmt: skip
    assert status == 0, [row["error"] for row in result["rows"]]
    assert all(one["equal"] for one in result["verified"])
    assert [one["what"] for one in result["verified"]] == ["steps", "epoch"]
    assert (result["pfs"]["time_scale"], result["pfs"]["spec"]["targets"]) == (4, 2)
    assert result["pfs"]["limit_mib_s"] > 0
    for row in result["rows"]:
        assert [rank["node"] for rank in row["repetitions"][0]["ranks"]] == [0, 1, 1]
        for repetition in row["repetitions"]:
            nodes = repetition["pfs"]["nodes"]
            assert len(nodes) == 2
            # Sequential ranks of both nodes need pages all over the file.
            assert all(node["read_bytes"] > result["dataset"]["bytes"] / 4 for node in nodes)
            assert {event[1] for event in repetition["events"]} == {0, 1}
            assert repetition["events"][0][0] == 0
            # Stretched in real time, and taken back to the model's: a step computes 1 ms.
            assert repetition["compute_seconds"] >= result["steps"] * 0.001
    assert list(tmp_path.glob("forebay-bench*")) == []
    # No sidecar of a mount that is gone stays in the user's cache; the one of the dataset itself
    # may.
    assert len(list(Path(os.environ["FOREBAY_CACHE_DIR"]).glob("*.forebay"))) <= 1


@pytest.mark.full
@emulator.needs_fuse
def test_further_nodes_join_a_mount_that_was_there_and_it_stays(capsys, data, all_unmounted, tmp_path):
    point = tmp_path / "mount"
    point.mkdir()
    server = pfs.Server.start(data.parent, [point], preset="lustre-ssd")
    try:
        status, result = run_json(
            capsys, point / data.name, "--ranks", 2, "--nodes", 2, "--repetitions", 1, "--launcher", "processes",
            "--strategies", "forebay,pylmdb-contiguous",
        )  # fmt: skip
        assert status == 0, [row["error"] for row in result["rows"]]
        assert result["pfs"]["spec"]["name"] == "lustre-ssd"
        assert server.mounts == [point]
        status, _, err = run(capsys, point / data.name, "--pfs", "fefs")
        assert status == 2
        assert "lies on the emulator's mount" in err
    finally:
        server.end()


@emulator.needs_fuse
def test_an_interrupted_bench_unmounts_its_nodes(data, own_baselines, all_unmounted, tmp_path):
    interrupted(data, own_baselines, tmp_path / "scratch", "--pfs", "lustre-ssd", "--time-scale", "1")


@pytest.mark.full
def test_a_bench_that_is_told_to_end_leaves_nothing_either(data, own_baselines, tmp_path):
    interrupted(data, own_baselines, tmp_path / "scratch", "--launcher", "processes", by=signal.SIGTERM)


@emulator.needs_fuse
def test_an_unknown_file_system_is_refused(capsys, data, all_unmounted):
    status, _, err = run(capsys, data, "--pfs", "tape")
    assert status == 2
    assert "tape" in err
    assert "lustre-hdd" in err


@pytest.mark.full
@pytest.mark.parametrize("launcher", ["processes", pytest.param("mpi", marks=pytest.mark.mpi)])
def test_an_interrupted_bench_leaves_nothing(data, own_baselines, tmp_path, launcher):
    interrupted(data, own_baselines, tmp_path / "scratch", "--launcher", launcher)


@emulator.needs_fuse
@pytest.mark.full
def test_what_a_killed_bench_left_is_removed_by_the_next(
    capsys, data, all_unmounted, own_baselines, tmp_path
):
    arguments = [
        data, "--ranks", 2, "--nodes", 2, "--pfs", "nfs", "--batch-size", 16, "--repetitions", 1, "--skip-verify",
        "--launcher", "processes", "--node-emulation", "environment", "--baseline", own_baselines,
    ]  # fmt: skip
    command = [sys.executable, "-m", "forebay", "bench", *map(str, arguments), "--strategies", "hangs"]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        end = time.monotonic() + support.DEADLINE_S
        while not list(tmp_path.glob("forebay-bench-run-*/scratch-1")):
            assert time.monotonic() < end
            time.sleep(0.02)
        left = emulator.ours(tmp_path)
        assert len(left) == 2
        remove_leftovers(SCRATCH)
        assert emulator.ours(tmp_path) == left, "whoever made it lives"
        process.kill()
    # Its ranks go on until they notice; those of a cluster go with it.
    needle = str(tmp_path / "forebay-bench-run-").encode()
    for pid in [pid for pid in launch._processes() if needle in command_line(pid)]:
        os.kill(pid, signal.SIGKILL)
    status, _, err = run(capsys, *arguments, "--strategies", "pylmdb-skipping")
    assert status == 0, err
    assert emulator.ours(tmp_path) == []
    assert list(tmp_path.glob("forebay-bench-*")) == []
