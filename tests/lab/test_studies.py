"""The benchmarks measure what they claim: plain loops move the right bytes; each row runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from forebay_lab.bench import turns
from studies.core import plain as baselines
from studies.core import row as rows
from studies.core.study import ROWS
from studies.harness import datasets, pages
from studies.harness.sections import Scope
from support import ROOT


@pytest.fixture(scope="module")
def scope(tmp_path_factory: pytest.TempPathFactory) -> Scope:
    return Scope(True, tmp_path_factory.mktemp("bench"), 1, 0.01)


def contents(dataset: datasets.Set) -> np.ndarray:
    return np.load(datasets.with_npy(dataset).npy)


def offsets_of(dataset: datasets.Set, records: np.ndarray) -> np.ndarray:
    """Where the records stand in the file, found by looking for their bytes."""
    whole = dataset.file.read_bytes()
    return np.array([whole.index(record.tobytes()) for record in records], np.uint64)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("loop", ["copy_records", "read_records"])
def test_the_plain_loops_deliver_the_records(scope: Scope, loop: str, threads: int):
    dataset = datasets.small(scope)
    records = contents(dataset)
    ids = np.random.default_rng(0).permutation(dataset.samples)[: threads * 64]
    plain = baselines.Plain(scope, dataset.file, threads * 64 * dataset.record_bytes, threads)
    getattr(plain, loop)(offsets_of(dataset, records[ids]), dataset.record_bytes, 64)
    for thread in range(threads):
        assert (
            plain.batch(thread, dataset.record_bytes, 64) == records[ids[thread * 64 : (thread + 1) * 64]]
        ).all()
    plain.close()


def test_the_plain_reader_reads_the_whole_file(scope: Scope):
    dataset = datasets.small(scope)
    size = dataset.file.stat().st_size
    plain = baselines.Plain(scope, dataset.file, -(-size // 4096) * 4096, 1)
    plain.read_file(4096)
    found = plain._pool_view[:size].tobytes()
    plain.close()
    assert found == dataset.file.read_bytes()


def test_a_pool_smaller_than_a_batch_is_an_error(scope: Scope):
    dataset = datasets.small(scope)
    plain = baselines.Plain(scope, dataset.file, 4096, 1)
    with pytest.raises(OSError, match="memory"):
        plain.copy_records(np.zeros(4, np.uint64), dataset.record_bytes, 4)
    plain.close()


def test_py_lmdb_and_numpy_gather_the_same_batch(scope: Scope):
    dataset = datasets.small(scope)
    records = contents(dataset)
    ids = np.random.default_rng(0).permutation(dataset.samples)[:64]
    plain = baselines.PyLmdb(dataset, 64)
    plain.random([[b"%08d" % i for i in ids]])
    into = np.zeros((64, dataset.record_bytes), np.uint8)
    baselines.numpy_loop(records, [ids], into)
    assert (plain.array == records[ids]).all()
    assert (into == records[ids]).all()
    plain.close()


def test_a_ratio_says_how_many_times_faster_we_are():
    assert rows.ratio([1.0, 2.0, 1.0], [2.0, 4.0, 4.0]) == (2.0, 2.0, 3.0)


def test_the_measures_take_turns():
    calls: list[str] = []

    def measure(name: str, seconds: float) -> float:
        calls.append(name)
        return seconds

    found = turns.in_turn({"a": lambda: measure("a", 1.0), "b": lambda: measure("b", 2.0)}, 3)
    assert found == {"a": [1.0] * 3, "b": [2.0] * 3}
    # A warm-up, and the one that begins changes.
    assert calls == ["b", "a", "a", "b", "b", "a", "a", "b"]


def test_a_row_says_whether_it_meets_its_bar():
    at_least = rows.Row("x", "x", "y", 0.9, True, "×", lambda scope: rows.Outcome(0.9, 0.9, 0.9))
    at_most = rows.Row("x", "x", "y", 0.9, False, "ms", lambda scope: rows.Outcome(0.91, 0.9, 1.0))
    assert [row.section()(Scope())[0]["met"] for row in (at_least, at_most)] == ["yes", "no"]
    found = at_least.stored(rows.Outcome(0.89, 0.8, 0.9, (("forebay", "1 MB/s"),), (("gather", "1 s"),)))
    assert found["met"] == "no"
    assert found["parts"] == {"forebay": "1 MB/s", "gather": "1 s"}
    assert "0.89×" in pages.printed("core", "core", [found])


def test_every_row_has_a_name_of_its_own_and_a_bar():
    assert len({row.name for row in ROWS}) == len(ROWS) >= 11
    assert all(row.bar > 0 and row.title and row.against for row in ROWS)


@pytest.mark.parametrize("row", [row.name for row in ROWS])
@pytest.mark.full
def test_every_row_runs_on_small_data(scope: Scope, row: str):
    command = [sys.executable, str(ROOT / "lab/studies"), "core", row, "--json", "--tiny"]
    environment = os.environ | {"FOREBAY_BENCH_DIR": str(scope.directory)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    ((found,),) = json.loads(done.stdout).values()
    assert found["name"] == row
    if "error" in found:
        pytest.skip(found["error"])
    assert found["figure"] == found["figure"], "a number"
