"""Counters of an epoch, and the page cache of a node with a limit: what belongs to whom."""

# Fixtures are imported by their names, which arguments of tests then repeat.

from __future__ import annotations

import pytest

from forebay import OptionError
from forebay_lab import report
from forebay_lab.bench.node_memory import memory_groups
from support import emulator
from support.bench import run_json
from support.bench_result import bench_result

# A program whose second rank reads all of the dataset at the start of the second epoch, while rank
# 0 is slow to ask for the counters of the first one.
EAGER = """
import os
import time
from pathlib import Path
from forebay_lab import pfs
from forebay_lab.bench.baselines import Baseline
from forebay_lab.bench.baselines.pylmdb_skipping import open_skipping

stats = pfs.Server.stats


def slow(server):
    time.sleep(0.3)
    return stats(server)


class Eager:
    def __init__(self, place):
        pfs.Server.stats = slow
        self._place, self._inner = place, open_skipping(True, place)

    def epoch(self, number):
        if number == 1 and self._place.rank == 1:
            with (Path(self._place.path) / "data.mdb").open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            descriptor = os.open(Path(self._place.path) / "data.mdb", os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            while os.read(descriptor, 1 << 16):
                pass
            os.close(descriptor)
        yield from self._inner.epoch(number)

    def facts(self):
        return {}

    def close(self):
        self._inner.close()


BASELINES = (Baseline(name="eager", order="sequential", about="", open=Eager, formats=("lmdb",)),)
"""


@emulator.needs_fuse
def test_reads_of_a_faster_rank_count_for_the_epoch_that_they_are_for(capsys, data, tmp_path):
    (tmp_path / "eager.py").write_text(EAGER)
    arguments = (
        data, "--ranks", 2, "--nodes", 2, "--node-emulation", "environment", "--launcher", "processes", "--pfs",
        "lustre-ssd", "--time-scale", 4, "--repetitions", 1, "--skip-verify", "--batch-size", 16, "--steps", 2,
        "--cold", "--baseline", tmp_path / "eager.py", "--strategies", "eager",
    )  # fmt: skip
    status, alone = run_json(capsys, *arguments)
    assert status == 0, alone["rows"][0]["error"]
    status, result = run_json(capsys, *arguments, "--epochs", 2)
    assert status == 0, result["rows"][0]["error"]
    first, second = (one["pfs"] for one in result["rows"][0]["repetitions"][0]["by_epoch"])
    (only,) = (one["pfs"] for one in alone["rows"][0]["repetitions"][0]["by_epoch"])
    # What the first epoch reads is what a run of one epoch reads, reads ahead of the kernel aside.
    assert second["reads"] > 0
    assert first["read_bytes"] < only["read_bytes"] + result["dataset"]["bytes"] / 2


def refusal():
    try:
        with memory_groups(1, 1 << 30):
            return None
    except OptionError as error:
        return str(error)


@pytest.mark.full
@emulator.needs_fuse
@pytest.mark.skipif((reason := refusal()) is not None, reason=reason or "")
def test_a_node_with_a_limit_does_not_find_pages_that_the_bench_has_read(capsys, data):
    status, result = run_json(
        capsys, data, "--ranks", 1, "--pfs", "lustre-ssd", "--time-scale", 4, "--repetitions", 1, "--skip-verify",
        "--node-memory", "1G", "--strategies", "pylmdb-contiguous",
    )  # fmt: skip
    assert status == 0, result["rows"][0]["error"]
    (node,) = result["rows"][0]["repetitions"][0]["pfs"]["nodes"]
    assert node["read_bytes"] > result["dataset"]["bytes"] / 2


@pytest.mark.skipif(reason is not None, reason=reason or "")
def test_groups_of_a_killed_bench_are_removed_by_the_next():
    with memory_groups(1, 1 << 30) as (group,):
        # No process has this number: pid_max is at most 2**22.
        left = group.parent / f"forebay-bench-{(1 << 22) + 1}-node0"
        left.mkdir()
    with memory_groups(1, 1 << 30) as (group,):
        assert not left.exists()
        swap = [group / name for name in ("memory.memsw.limit_in_bytes", "memory.swap.max")]
        assert [int(file.read_text()) for file in swap if file.exists()] in ([1 << 30], [0], [])


def epoch(number, read_bytes):
    times = {"seconds": 1.5 - number, "exposed_seconds": 0.25, "samples": 8, "requested_bytes": 1 << 20}
    return {"epoch": number, **times, "pfs": {"reads": 3, "read_bytes": read_bytes, "metadata": 0}}


def test_a_report_shows_each_epoch():
    result = bench_result(ranks=2, nodes=1, repetitions=1, events=10)
    assert "By epoch" not in report.render(result)
    for row in result["rows"]:
        row["repetitions"][0]["by_epoch"] = [epoch(0, 3 << 30), epoch(1, 0) | {"pfs": None}]
    page = report.render(result)
    assert page.count("forebay@group, epoch ") == 2
    assert f'data-value="{float(3 << 30)!r}"' in page
