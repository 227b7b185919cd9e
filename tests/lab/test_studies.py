"""The benchmarks measure what they claim: plain loops move the right bytes; each row runs."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import support

BENCHES = support.ROOT / "lab/studies"
sys.path.insert(0, str(BENCHES))

from bench import baselines, datasets, harness, report  # noqa: E402
from bench.rows import ROWS  # noqa: E402


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> harness.Settings:
    return harness.Settings(tmp_path_factory.mktemp("bench"), scale=0.01, repetitions=1)


def contents(dataset: datasets.Set) -> np.ndarray:
    return np.load(datasets.with_npy(dataset).npy)


def offsets_of(dataset: datasets.Set, records: np.ndarray) -> np.ndarray:
    """Where the records stand in the file, found by looking for their bytes."""
    whole = dataset.file.read_bytes()
    return np.array([whole.index(record.tobytes()) for record in records], np.uint64)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("loop", ["copy_records", "read_records"])
def test_the_plain_loops_deliver_the_records(settings: harness.Settings, loop: str, threads: int):
    dataset = datasets.small(settings)
    records = contents(dataset)
    ids = np.random.default_rng(0).permutation(dataset.samples)[: threads * 64]
    plain = baselines.Plain(settings, dataset.file, threads * 64 * dataset.record_bytes, threads)
    getattr(plain, loop)(offsets_of(dataset, records[ids]), dataset.record_bytes, 64)
    for thread in range(threads):
        assert (
            plain.batch(thread, dataset.record_bytes, 64) == records[ids[thread * 64 : (thread + 1) * 64]]
        ).all()
    plain.close()


def test_the_plain_reader_reads_the_whole_file(settings: harness.Settings):
    dataset = datasets.small(settings)
    size = dataset.file.stat().st_size
    plain = baselines.Plain(settings, dataset.file, -(-size // 4096) * 4096, 1)
    plain.read_file(4096)
    found = plain._pool_view[:size].tobytes()
    plain.close()
    assert found == dataset.file.read_bytes()


def test_a_pool_smaller_than_a_batch_is_an_error(settings: harness.Settings):
    dataset = datasets.small(settings)
    plain = baselines.Plain(settings, dataset.file, 4096, 1)
    with pytest.raises(OSError, match="memory"):
        plain.copy_records(np.zeros(4, np.uint64), dataset.record_bytes, 4)
    plain.close()


def test_py_lmdb_and_numpy_gather_the_same_batch(settings: harness.Settings):
    dataset = datasets.small(settings)
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
    assert harness.ratio([1.0, 2.0, 1.0], [2.0, 4.0, 4.0]) == (2.0, 2.0, 3.0)
    row = harness.Row("x", "x", "y", 0.9, True, "×", lambda settings: harness.Outcome(1, 1, 1))
    assert row.meets(0.9)
    assert not row.meets(0.89)
    assert row.bar_text() == "≥ 0.90×"


def test_the_measures_take_turns():
    calls: list[str] = []

    def measure(name: str, seconds: float) -> float:
        calls.append(name)
        return seconds

    found = harness.in_turn({"a": lambda: measure("a", 1.0), "b": lambda: measure("b", 2.0)}, 3)
    assert found == {"a": [1.0] * 3, "b": [2.0] * 3}
    assert calls == ["a", "b"] * (3 + harness.WARM_UPS)


def test_a_stored_row_does_not_hide_a_miss():
    good = harness.Outcome(99.0, 98.0, 100.0, (("forebay", "1 MB/s"),), (("gather", "1 s"),))
    bad = harness.Outcome(0.01, 0.01, 0.02)
    high = [row for row in ROWS if row.at_least]
    lines = [
        report.Line(high[0], good),
        report.Line(high[1], bad),
        report.Line(high[2], None, "no such disk"),
        report.Line(high[3], None, "broken", failed=True),
    ]
    found = [line.stored() for line in lines]
    assert [row["met"] for row in found] == ["yes", "no", "skipped", "failed"]
    assert found[0]["parts"] == {"forebay": "1 MB/s", "gather": "1 s"}
    assert [row.get("why_not") for row in found] == [None, None, "no such disk", "broken"]
    assert "NO" in report.text(lines)


def test_every_row_has_a_name_of_its_own_and_a_bar():
    assert len({row.name for row in ROWS}) == len(ROWS) >= 11
    assert all(row.bar > 0 and row.title and row.against for row in ROWS)


@pytest.mark.parametrize("row", [row.name for row in ROWS])
def test_every_row_runs_on_small_data(settings: harness.Settings, row: str):
    command = [sys.executable, str(BENCHES / "core.py"), "--only", row, "--json", "--repetitions", "1"]
    command += ["--scale", str(settings.scale), "--directory", str(settings.directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    (found,) = json.loads(done.stdout)
    assert found["row"] == row
    if "why_not" in found:
        pytest.skip(found["why_not"])
    assert found["figure"] == found["figure"], "a number"
