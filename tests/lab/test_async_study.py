"""Benchmarks of asynchronous reading: sections without emulator run, and name their rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FOREBAY_BENCH_DIR": str(directory)}
    environment.pop("FOREBAY_CACHE_DIR", None)
    command = [sys.executable, str(ROOT / "lab/studies"), "async-io", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, heads and rules left out."""
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line[:1] == "|"]
    rules = [place for place, row in enumerate(rows) if set("".join(row)) == {"-"}]
    return [row for place, row in enumerate(rows) if not {place, place + 1} & set(rules)]


@pytest.mark.parametrize(
    ("section", "names", "rows"),
    [
        pytest.param("warm", {"forebay, tar", "webdataset", "h5py, slices"}, 14, marks=pytest.mark.full),
        pytest.param("gzip", {"gzip", "gzip and shuffle"}, 8, marks=pytest.mark.full),
        ("index", {"TFRecord, sparse", "folder, inodes in memory"}, 2),
        pytest.param("accuracy", {"shuffle", "group"}, 8, marks=pytest.mark.full),
    ],
)
def test_a_section_runs_and_names_its_rows(tmp_path: Path, section: str, names: set[str], rows: int):
    done = run(tmp_path, "--tiny", section)
    assert done.returncode == 0, done.stderr
    found = cells(done.stdout)
    assert names <= {cell for row in found for cell in row}, done.stdout
    # TensorFlow, where it is, adds a row for each size of sample.
    assert len(found) - rows in ((0, 2) if section == "warm" else (0,)), done.stdout


def test_a_section_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path):
    done = run(tmp_path, "nothing")
    assert done.returncode == 2
    assert "exposed-gpfs-neuron" in done.stderr
    assert "formats-limit" in done.stderr
