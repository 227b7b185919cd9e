"""Benchmarks of the store: sections run on emulated nodes, and name their rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay_lab.cluster import missing
from studies.store import transfers
from studies.store.network import network
from support import ROOT

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"emulated nodes: {missing()}")


@pytest.mark.full
def test_a_job_on_emulated_nodes_runs_and_names_its_rows(tmp_path: Path):
    environment = os.environ | {"FOREBAY_BENCH_DIR": str(tmp_path)}
    environment.pop("FOREBAY_CACHE_DIR", None)
    command = [sys.executable, str(ROOT / "lab/studies"), "store", "--tiny", "memory"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ")[0].strip("| ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows == ["nodes", "2"]


@pytest.mark.full
def test_clients_of_all_nodes_run_in_step():
    program = [sys.executable, str(ROOT / "lab/studies/store/objects.py")]
    with network(2, 1_000_000_000, program=program) as nodes:
        found = nodes.compare("clients=1,2", "sample_bytes=3072", "seconds=0.1", "rounds=2")
    assert [row["clients"] for row in found] == [1, 2, 1, 2]
    assert all(row["nodes"] == 2 and row["mb_per_s"] > 0 for row in found)
    assert [len(one) for row in found for one in row["of_clients"]] == [1, 1, 2, 2, 1, 1, 2, 2]


def test_a_ratio_is_of_runs_of_one_round():
    shape = {"clients": 1, "sample_bytes": 64}
    rounds = [
        ("fetch", 10.0),
        ("bare", 20.0),
        ("fetch", 40.0),
        ("bare", 40.0),
        ("fetch", 90.0),
        ("bare", 100.0),
    ]
    found = [{"mode": mode, "mb_per_s": rate, **shape} for mode, rate in rounds]
    fetch, bare = (transfers.of(found, mode, 1, 64) for mode in ("fetch", "bare"))
    assert transfers.ratio(fetch, bare) == 0.9
    assert transfers.of(found, "fetch", 2, 64) == []
