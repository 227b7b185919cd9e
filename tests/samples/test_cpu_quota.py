"""A quota of CPU time (control group) bounds the threads that call functions of samples."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import run_python

_PROGRAM = """
import os, sys
import forebay
from pathlib import Path
for at in range(2):
    if at:
        Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
    with forebay.Loader(sys.argv[2], 8, node_memory="16MiB", transform=len) as loader:
        print(loader.config.per_sample.workers)
"""


@pytest.fixture
def group():
    """A control group whose processes may use as much CPU time as one core has."""
    name = f"forebay-test-{os.getpid()}"
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    try:
        if old.is_dir():
            path = old / name
            path.mkdir()
            (path / "cpu.cfs_period_us").write_text("100000")
            (path / "cpu.cfs_quota_us").write_text("100000")
        else:
            path = new / name
            path.mkdir()
            (path / "cpu.max").write_text("100000 100000")
    except OSError as error:
        if path.is_dir():
            path.rmdir()
        pytest.skip(f"no control group with a quota of CPU time: {error}")
    yield path
    path.rmdir()


def test_the_default_of_threads_is_what_the_quota_pays_for(group, small_lmdb):
    done = run_python(_PROGRAM, group, small_lmdb)
    assert done.returncode == 0, done.stderr
    assert [*map(int, done.stdout.split())] == [len(os.sched_getaffinity(0)), 1]
