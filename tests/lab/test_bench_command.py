"""forebay bench as a command: real runs with equal samples, dying rows, launchers, misuse."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import support
from support import documented_keys
from support.bench import PARTS, SAMPLES, rows_of, run, run_json

ALL = (
    "pylmdb-skipping,pylmdb-skipping-noreadahead,pylmdb-ownlock,forebay@sequential,"
    "pylmdb-contiguous,forebay@contiguous,forebay,h5py"
)


@pytest.mark.full
def test_rows_hand_out_the_same_samples_and_their_times_add_up(capsys, data):
    status, result = run_json(
        capsys, data, "--ranks", 3, "--batch-size", 16, "--epochs", 2, "--repetitions", 1, "--compute", "2ms",
        "--strategies", ALL, "--launcher", "processes",
    )  # fmt: skip
    rows = rows_of(result)
    assert status == 0, [row["error"] for row in result["rows"]]
    assert rows.pop("h5py@sequential")["status"] == "skipped"
    steps = -(-SAMPLES // 48)
    explained = []
    for row in rows.values():
        assert len(row["repetitions"]) == 1
        for repetition in row["repetitions"]:
            for rank in repetition["ranks"]:
                explained.append(sum(rank[key] for key in PARTS) / rank["wall_seconds"])
                assert rank["compute_seconds"] >= 2 * steps * 0.002
                assert min(rank[key] for key in (*PARTS, "startup_seconds")) >= 0
            asked = sum(rank["requested_bytes"] for rank in repetition["ranks"])
            assert repetition["requested_bytes"] == asked > 2 * sum(200 + i % 7 * 600 for i in range(SAMPLES))
            assert repetition["rate_mib_s"] == pytest.approx(asked / 2**20 / repetition["total_seconds"])
            assert 0 < repetition["accelerator_utilisation"] <= 1
    # What is behind the last step is in no part. A rank that loses its core there explains less of
    # its time.
    assert 0.99 <= max(explained) <= 1.0001
    sequential = [row["digest_steps"] for row in rows.values() if row["order"] == "sequential"]
    assert len(sequential) == 4
    assert len(set(sequential)) == 1
    contiguous = [row["digest_steps"] for row in rows.values() if row["order"] == "contiguous"]
    assert contiguous[0] == contiguous[1] != sequential[0]
    assert len({row["digest_epoch"] for row in rows.values()}) == 1
    assert [(one["what"], len(one["rows"]), one["equal"]) for one in result["verified"]] == [
        ("steps", 4, True), ("steps", 2, True), ("epoch", 7, True),
    ]  # fmt: skip
    assert set(documented_keys("`forebay bench --json`")) == set(result)
    assert set(documented_keys("A row")) == set(rows["forebay@group"])
    assert set(documented_keys("A repetition")) == set(rows["forebay@group"]["repetitions"][0])
    readers = rows["forebay@group"]["repetitions"][0]["readers"]
    assert [reader["rank"] for reader in readers] == [0, 1, 2]
    assert rows["pylmdb-skipping@sequential"]["repetitions"][0]["readers"] == []
    assert "sample" not in json.dumps(result["warnings"])


@pytest.mark.full
def test_the_program_in_the_documentation_hands_out_what_its_order_says(capsys, data, tmp_path):
    example = (support.ROOT / "docs/bench.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "lookup.py").write_text(example)
    status, result = run_json(
        capsys, data, "--ranks", 2, "--repetitions", 1, "--launcher", "processes",
        "--baseline", tmp_path / "lookup.py", "--strategies", "pylmdb-lookup,forebay@sequential",
    )  # fmt: skip
    assert status == 0, [row["error"] for row in result["rows"]]
    assert [(one["what"], one["equal"]) for one in result["verified"]] == [("steps", True), ("epoch", True)]


def test_tf_data_hands_out_every_sample_of_tfrecord_files(capsys, tmp_path):
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    status, result = run_json(
        capsys, "--workload", "cosmoflow", "--scale", 2e-5, "--data", tmp_path, "--compute", "0s",
        "--ranks", 2, "--repetitions", 1, "--launcher", "processes", "--strategies", "tfdata",
    )  # fmt: skip
    (row,) = result["rows"]
    assert (status, row["status"]) == (0, "ok"), row["error"]
    assert row["digest_epoch"] is not None


@pytest.mark.full
@pytest.mark.mpi
def test_both_launchers_hand_out_the_same_and_count_the_same(capsys, data):
    found = {}
    for launcher in ("processes", "mpi"):
        status, result = run_json(
            capsys, data, "--ranks", 2, "--repetitions", 1, "--launcher", launcher,
            "--strategies", "pylmdb-skipping,forebay",
        )  # fmt: skip
        assert (status, result["launcher"]) == (0, launcher)
        found[launcher] = [
            (row["digest_steps"], row["digest_epoch"], row["median"]["requested_bytes"])
            for row in result["rows"]
        ]
    assert found["mpi"] == found["processes"]


def test_a_program_that_dies_is_reported_with_its_last_words_and_the_others_go_on(
    capsys, data, own_baselines
):
    arguments = [
        data, "--ranks", 2, "--repetitions", 1, "--batch-size", 16, "--launcher", "processes",
        "--baseline", own_baselines, "--strategies", "dies,pylmdb-skipping",
    ]  # fmt: skip
    status, result = run_json(capsys, *arguments)
    rows = rows_of(result)
    assert status == 1
    assert rows["dies@sequential"]["status"] == "failed"
    assert "the disk is on fire" in rows["dies@sequential"]["error"]
    assert "rank 1 ended" in rows["dies@sequential"]["error"]
    assert rows["pylmdb-skipping@sequential"]["status"] == "ok"
    # Without the verification run it dies in the measured one.
    status, out, _ = run(capsys, *arguments, "--skip-verify")
    assert status == 1
    assert "the disk is on fire" in out
    assert "samples were not verified" in out


@pytest.mark.full
@pytest.mark.mpi
def test_a_rank_that_dies_under_mpi_takes_its_row_along_and_no_other(capsys, data, own_baselines):
    status, result = run_json(
        capsys, data, "--ranks", 2, "--repetitions", 1, "--batch-size", 16, "--launcher", "mpi",
        "--baseline", own_baselines, "--strategies", "dies,pylmdb-contiguous",
    )  # fmt: skip
    rows = rows_of(result)
    assert status == 1
    assert "the disk is on fire" in rows["dies@sequential"]["error"]
    assert rows["pylmdb-contiguous@contiguous"]["status"] == "ok"


@pytest.mark.mpi
@pytest.mark.parametrize("launcher", ["mpi", "processes"])
def test_what_a_program_raised_is_told_beside_the_words_of_the_launcher(
    capsys, data, own_baselines, launcher
):
    status, out, _ = run(
        capsys, data, "--ranks", 2, "--repetitions", 1, "--batch-size", 16, "--launcher", launcher,
        "--baseline", own_baselines, "--strategies", "raises",
    )  # fmt: skip
    assert status == 1
    assert re.search(r"bench: rank [01]: ValueError: boom \(.*own\.py, line \d+\)", out), out


@pytest.mark.full
def test_a_program_that_hangs_is_ended_after_the_timeout(capsys, data, own_baselines):
    rows, timeout_s = {}, 2
    # One that does not hang has to be done by then.
    while not rows or (
        rows["pylmdb-skipping@sequential"]["status"] != "ok" and timeout_s < support.DEADLINE_S
    ):
        timeout_s *= 2
        status, result = run_json(
            capsys, data, "--ranks", 2, "--repetitions", 1, "--batch-size", 16, "--timeout", timeout_s,
            "--launcher", "processes", "--baseline", own_baselines, "--strategies", "hangs,pylmdb-skipping",
        )  # fmt: skip
        rows = rows_of(result)
        assert status == 1
        assert "hangs@sequential: verification" in rows["hangs@sequential"]["error"]
    assert rows["pylmdb-skipping@sequential"]["status"] == "ok"


@pytest.mark.full
def test_other_bytes_and_other_samples_are_found_and_the_step_is_named(capsys, data, own_baselines):
    arguments = [data, "--ranks", 2, "--repetitions", 1, "--batch-size", 16, "--launcher", "processes"]
    arguments += ["--baseline", own_baselines, "--strategies", "forebay@sequential,lies,loses"]
    status, result = run_json(capsys, *arguments)
    steps, epoch = result["verified"]
    assert status == 1
    assert (steps["equal"], steps["difference"]) == (
        False,
        "lies@sequential differs from forebay@sequential at step 2",
    )
    # What lost a sample has no digest of the epoch at all.
    assert (epoch["equal"], epoch["rows"]) == (False, ["forebay@sequential", "lies@sequential"])
    assert rows_of(result)["loses@sequential"]["digest_epoch"] is None


@pytest.mark.full
def test_a_part_of_an_epoch_or_of_a_job_is_compared_by_steps_only(capsys, data):
    status, result = run_json(
        capsys, data, "--ranks", 2, "--world-size", 4, "--steps", 3, "--batch-size", 16, "--repetitions", 1,
        "--epochs", 2, "--launcher", "processes", "--strategies", "pylmdb-contiguous,forebay@contiguous,forebay",
    )  # fmt: skip
    assert status == 0
    assert [one["what"] for one in result["verified"]] == ["steps"]
    assert result["verified"][0]["equal"]
    assert {row["digest_epoch"] for row in result["rows"]} == {None}
    assert any("cut after 3 of 8 steps" in one for one in result["warnings"])
    assert any("2 of 4 ranks ran" in one for one in result["warnings"])
    for row in result["rows"]:
        assert row["median"]["requested_bytes"] > 0


def test_the_table_tells_rows_limit_and_warnings(capsys, data):
    status, out, _ = run(
        capsys,
        data,
        "--ranks",
        1,
        "--repetitions",
        1,
        "--cold",
        "--strategies",
        "pylmdb-skipping,forebay,h5py",
    )
    assert status == 0
    lines = out.splitlines()
    assert (
        lines[0]
        == f"{SAMPLES:,} samples (lmdb), {np.mean([200 + i % 7 * 600 for i in range(SAMPLES)]):,.0f} bytes each"
    )
    assert max(map(len, lines)) <= 80
    at = next(number for number, line in enumerate(lines) if line.startswith("row "))
    assert [line.split()[0] for line in lines[at + 1 : at + 4]] == [
        "pylmdb-skipping@sequential",
        "forebay@group",
        "h5py@sequential",
    ]
    assert "limit measured" in out
    assert "verified, the same samples over an epoch" in out
    assert "posix_fadvise" in out
    assert "h5py@sequential skipped: reads hdf5, the dataset is lmdb" in out


@pytest.mark.full
@pytest.mark.parametrize("plain", [True, False])
def test_samples_of_hdf5_files_are_those_that_h5py_reads(capsys, tmp_path, plain):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.arange(number * 90, number * 90 + 90).reshape(30, 3)
            file["y"] = np.arange(30)
            if not plain:
                file["about"] = np.zeros(7)
    status, result = run_json(
        capsys, tmp_path, "--ranks", 2, "--repetitions", 1, "--batch-size", 8, "--launcher", "processes",
        "--strategies", "h5py,forebay",
    )  # fmt: skip
    rows = rows_of(result)
    assert status == 0, rows["h5py@sequential"]["error"]
    assert (result["dataset"]["format"], result["dataset"]["samples"]) == ("hdf5", 60)
    assert result["dataset"]["mean_bytes"] == 4 * 8
    assert rows["h5py@sequential"]["digest_epoch"] is not None
    if plain:
        assert rows["forebay@group"]["digest_epoch"] == rows["h5py@sequential"]["digest_epoch"]
    else:
        assert rows["forebay@group"]["status"] == "skipped"


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["DATA", "--strategies", "fastest"], "unknown strategy 'fastest'", 2),
        (["DATA", "--ranks", "501"], "at least one sample for each of the 501 ranks", 2),
        (["DATA", "--nodes", "5"], "at most as many nodes as ranks", 2),
        (["DATA", "--compute", "5 minutes"], "expected a time such as 5ms", 2),
        (["DATA", "--baseline", "none.py"], "expected a Python file", 2),
        (["DATA", "--report", "nowhere/out.html"], "its directory is not there", 2),
        (["DATA", "--workload", "fefs"], "either DATASET or --workload", 2),
        ([], "either DATASET or --workload", 2),
        (["missing.lmdb"], "there is no dataset missing.lmdb", 1),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(capsys, data, arguments, message, code):
    status, out, err = run(capsys, *[data if one == "DATA" else one for one in arguments])
    assert (status, out) == (code, "")
    assert message in err


@pytest.mark.full
def test_records_that_are_no_samples_are_told_by_the_program_that_would_hand_them_out(capsys, tmp_path):
    import lmdb

    path = support.write_lmdb(tmp_path / "named.lmdb", [support.datum(number) for number in range(64)])
    with lmdb.open(str(path), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"num-samples", b"64")
    status, result = run_json(
        capsys, path, "--ranks", 2, "--repetitions", 1, "--launcher", "processes",
        "--strategies", "pylmdb-skipping,forebay",
    )  # fmt: skip
    rows = rows_of(result)
    assert (status, result["dataset"]["samples"]) == (1, 64)
    assert "expected 64 records, all of them samples, found 65" in rows["pylmdb-skipping@sequential"]["error"]
    assert rows["forebay@group"]["status"] == "ok"
