"""A store daemon where memory is short: what it keeps for later jobs gives way to this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import forebay
import support
from forebay_lab.bench.node_memory import memory_groups
from support.store_daemons import store_daemons  # noqa: F401
from support.tiering import settle

LARGE_BYTES = 48 << 20
LIMIT_BYTES = 400 << 20

# Joins a memory control group, takes memory until only so much is free, and makes a loader.
_PROGRAM = """
import json, os, pathlib, re, sys
import forebay
path, group, free_bytes, store = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
(group / "cgroup.procs").write_text(str(os.getpid()))

def free():
    limit, used = (
        next(int((group / name).read_text()) for name in names if (group / name).exists())
        for names in (("memory.limit_in_bytes", "memory.max"), ("memory.usage_in_bytes", "memory.current"))
    )
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    prefix = "total_" if "total_active_file" in stat else ""
    return limit - used + sum(int(stat[f"{prefix}{name}"]) for name in ("active_file", "inactive_file"))

if path == "-":
    ballast = b"x" * (free() - free_bytes)
    print("taken", flush=True)
    sys.stdin.read()
    sys.exit()
forebay.Loader
dataset = forebay.open(path, format="raw", record_bytes=1 << 14)
len(dataset)
ballast = []
while free_bytes and free() > free_bytes + (1 << 20):
    ballast.append(b"x" * min(free() - free_bytes, 16 << 20))
with forebay.Loader(dataset, 64, node_memory="8MiB", store=store) as loader:
    found = loader.config.store
    assert sum(1 for _ in loader) > 0
    print(json.dumps({"loaded": found.loaded_bytes, "kept": found.kept_bytes, "is_kept": found.is_kept}))
"""


@pytest.fixture
def group():
    """A memory control group."""
    try:
        with memory_groups(1, LIMIT_BYTES) as groups:
            yield groups[0]
    except forebay.OptionError as error:
        pytest.skip(f"no memory control group: {error}")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    paths = [directory / f"{number}.raw" for number in range(2)]
    for number, path in enumerate(paths):
        path.write_bytes(np.random.default_rng(number).bytes(LARGE_BYTES))
    settle([directory])
    return paths


@pytest.fixture
def job(group, store_daemons):  # noqa: F811
    """Run a job in the group, in which so much memory is free, 0 for all."""

    def job(path, free_bytes=0, store="48MiB"):
        done = support.run_python(_PROGRAM, path, group, free_bytes, store)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    store_daemons.start()
    return job


@pytest.mark.full
def test_a_share_is_copied_where_both_fit(job, files):
    job(files[0])
    assert job(files[0], store="40MiB") == {"loaded": 0, "kept": 40 << 20, "is_kept": True}


@pytest.mark.full
def test_a_share_that_does_not_fit_beside_the_kept_one_is_loaded(job, store_daemons, files):  # noqa: F811
    assert job(files[0]) == {"loaded": LARGE_BYTES, "kept": 0, "is_kept": True}
    # 20 MiB are free, and 48 MiB if the kept share is dropped.
    assert job(files[0], 20 << 20, "40MiB") == {"loaded": 40 << 20, "kept": 0, "is_kept": True}
    (share,) = store_daemons.shares()
    assert share["bytes"] == 40 << 20


def test_the_same_share_needs_no_memory(job, files):
    job(files[0])
    assert job(files[0], 20 << 20) == {"loaded": 0, "kept": LARGE_BYTES, "is_kept": True}


@pytest.mark.full
def test_shares_of_other_datasets_give_way(job, store_daemons, files):  # noqa: F811
    job(files[0])
    assert job(files[1], 20 << 20) == {"loaded": LARGE_BYTES, "kept": 0, "is_kept": True}
    (share,) = store_daemons.shares()
    assert share["path"] == os.fspath(files[1])


@pytest.mark.full
def test_unused_shares_give_way_to_other_programs(job, group, store_daemons, files):  # noqa: F811
    pid = store_daemons.status()["pid"]
    (group / "cgroup.procs").write_text(str(pid))
    try:
        job(files[0])
        assert len(store_daemons.shares()) == 1
        # Less than a sixteenth of the memory is left to other programs.
        command = [sys.executable, "-c", _PROGRAM, "-", str(group), str(LIMIT_BYTES // 32), ""]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as program:
            assert program.stdout.readline() == "taken\n"
            support.wait_until(lambda: store_daemons.shares() == [], "the share to give way")
            program.stdin.close()
    finally:
        # A group with processes cannot be removed.
        (group.parent / "cgroup.procs").write_text(str(pid))
