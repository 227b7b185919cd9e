"""The study that compares model and emulator: what agrees, what the bars are of, one small job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from studies.validate import judge
from studies.validate.judge import Range
from support import ROOT, emulator


@pytest.mark.parametrize(
    ("measured", "simulated", "met"),
    [
        ((1.0, 1.0, 1.0), (1.09, 1.09, 1.09), True),
        ((1.0, 1.0, 1.0), (1.11, 1.11, 1.11), False),
        # Ranges that overlap: narrow ones agree, a wide one proves nothing.
        ((1.0, 0.9, 1.1), (1.2, 1.1, 1.3), True),
        ((1.0, 0.9, 1.1), (1.2, 1.11, 1.3), False),
        ((1.0, 0.9, 1.3), (1.2, 1.1, 1.3), False),
        ((1.0, 0.9, 1.1), (1.2, 0.8, 1.3), False),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), True),
        ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), False),
    ],
)
def test_rows_agree_if_medians_are_near_or_narrow_ranges_overlap(measured, simulated, met):
    assert judge.agrees(Range(*measured), Range(*simulated), 0.1) == met


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("lmdb", "page faults"),
        ("lmm", "page faults"),
        ("lmm-dm", "page faults"),
        ("pylmdb-contiguous-noreadahead", "page faults"),
        ("lmm-dio", "reading"),
        ("lmm-dio-prov-coal-stag:stagger=2", "reading"),
        ("forebay", "reading"),
    ],
)
def test_rows_are_judged_by_how_they_get_their_bytes(strategy, kind):
    assert judge.kind(strategy) == kind


def timed(measured, simulated, spread=0.0):
    return {
        "wall_seconds": measured,
        "wall_seconds_low": measured - spread,
        "wall_seconds_high": measured + spread,
        "sim_wall_seconds": simulated,
    }


def test_tau_counts_pairs_whose_measured_ranges_do_not_overlap():
    assert judge.tau([timed(1, 5), timed(2, 6), timed(3, 7)]) == (1.0, 3)
    assert judge.tau([timed(1, 7), timed(2, 6), timed(3, 5)]) == (-1.0, 3)
    assert judge.tau([timed(1, 5), timed(2, 7), timed(3, 6)]) == (pytest.approx(1 / 3), 3)
    # The first two are not told apart by the measurement, whatever the model says.
    assert judge.tau([timed(1, 6, 0.5), timed(2, 5, 0.5), timed(4, 7)]) == (1.0, 2)
    # Equal in the model is no order.
    assert judge.tau([timed(1, 5), timed(2, 5)]) == (-1.0, 1)
    assert judge.tau([timed(1, 5)]) == (None, 0)


def result_row(name, wall, sim_wall, read_bytes=1000.0, sim_bytes=1000.0, seeks=10, sim_seeks=10):
    run = {
        "wall_seconds": wall,
        "pfs": {"nodes": [{"read_bytes": read_bytes}], "servers": [{"seeks": seeks}, {"seeks": 0}]},
        "missed_deadlines": False,
    }
    middle = {"wall_seconds": sim_wall, "startup_seconds": 0.1, "storage_bytes": sim_bytes}
    return {
        "name": name,
        "strategy": name,
        "median": {"wall_seconds": wall, "startup_seconds": 0.2},
        "repetitions": [run],
        "simulated": {
            "median": middle,
            "seeks": sim_seeks,
            "range": {
                "wall_seconds": [sim_wall] * 2,
                "storage_bytes": [sim_bytes] * 2,
                "seeks": [sim_seeks] * 2,
            },
        },
    }


def test_bars_are_shares_of_rows_and_each_miss_is_listed():
    rows = [
        judge.judged(one) | {"shape": "nfs-4"}
        for one in (
            result_row("forebay", 1.0, 1.05),
            result_row("lmm-dio", 1.0, 1.2, sim_bytes=1021.0),
            result_row("lmdb", 1.0, 1.3, sim_seeks=13),
        )
    ]
    found = {one["name"]: one for one in judge.bars(rows)}
    assert (found["wall time, reading"]["share"], found["wall time, reading"]["met"]) == (0.5, "no")
    assert (found["wall time, page faults"]["rows"], found["wall time, page faults"]["share"]) == (1, 0.0)
    assert found["bytes"]["rows_met"] == found["seeks"]["rows_met"] == 2
    missed = [(one["name"], one["what"], round(one["error"], 3)) for one in judge.misses(rows)]
    assert missed == [
        ("lmm-dio", "wall s", 0.2),
        ("lmm-dio", "bytes", 0.021),
        ("lmdb", "wall s", 0.3),
        ("lmdb", "seeks", 0.3),
    ]
    assert judge.bars([])[0]["met"] is None


@emulator.needs_fuse
@pytest.mark.full
def test_a_job_is_measured_once_and_judged(tmp_path: Path):
    environment = os.environ | {"FOREBAY_BENCH_DIR": str(tmp_path)}
    environment.pop("FOREBAY_CACHE_DIR", None)
    command = [sys.executable, str(ROOT / "lab/studies"), "validate", "--tiny", "--json"]
    none = subprocess.run([*command, "bars"], env=environment, capture_output=True, text=True, check=False)
    assert json.loads(none.stdout.splitlines()[-1])["bars"][0]["status"] == "skipped"
    done = subprocess.run([*command, "nfs-1"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["nfs-1"]
    assert {row["name"] for row in rows} >= {"forebay@group", "lmdb@sequential", "lmm-dm@sequential"}
    assert all(row["sim_wall_seconds"] > 0 for row in rows if row.get("status") != "skipped")
    stored = tmp_path / "validate-tiny" / "nfs-1.json"
    before = stored.stat().st_mtime_ns
    done = subprocess.run(
        [*command, "nfs-1", "bars", "order", "misses"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    judged = json.loads(done.stdout.splitlines()[-1])
    assert judged["nfs-1"] == rows
    assert judged["bars"][0]["rows"] > 0
    assert stored.stat().st_mtime_ns == before
