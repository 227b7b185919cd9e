"""forebay bench: rows, times that add up, digests, rows that die, both launchers, interruption, the emulator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import emulator
import support
from forebay import OptionError, cli, launch, page_cache, pfs
from forebay.bench import baselines, facts, strategies, timing, verify
from forebay.bench.settings import Settings
from test_docs import documented_keys

SAMPLES = 500
PARTS = ("exposed_seconds", "compute_seconds", "communication_seconds", "skew_seconds")

OWN_BASELINES = '''
import os, sys, time
from functools import partial
from forebay.bench.baselines import Baseline
from forebay.bench.baselines.pylmdb_skipping import open_skipping


class Changed:
    """Skipping, with something wrong from step 2 on."""

    def __init__(self, what, place):
        self._what, self._place, self._inner = what, place, open_skipping(True, place)

    def epoch(self, number):
        for step, (ids, records) in enumerate(self._inner.epoch(number)):
            if step == 2 and self._place.rank == 1:
                if self._what == "dies":
                    sys.exit("the disk is on fire")
                if self._what == "hangs":
                    time.sleep(600)
                if self._what == "lies":
                    records[0] = b"x" + records[0][1:]
                if self._what == "loses":
                    ids[0], records[0] = ids[1], records[1]
            yield ids, records

    def facts(self):
        return {}

    def close(self):
        self._inner.close()


BASELINES = tuple(
    Baseline(name=what, order="sequential", about="", open=partial(Changed, what), formats=("lmdb",))
    for what in ("dies", "hangs", "lies", "loses")
)
'''


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """An LMDB whose samples fill no last step."""
    values = [support.record(number, 200 + number % 7 * 600) for number in range(SAMPLES)]
    return support.write_lmdb(tmp_path_factory.mktemp("bench") / "train.lmdb", values)


@pytest.fixture
def own_baselines(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN_BASELINES)
    return path


def run(capsys, *arguments):
    status = cli.main(["bench", *map(str, arguments)])
    found = capsys.readouterr()
    return status, found.out, found.err


def run_json(capsys, *arguments):
    status, out, err = run(capsys, *arguments, "--json")
    assert out.count("\n") == 1, err
    return status, json.loads(out)


def rows_of(result):
    return {row["name"]: row for row in result["rows"]}


# --- rows -----------------------------------------------------------------------------------------------------------


def test_rows_are_strategies_in_orders_and_baselines_have_their_own():
    text = "pylmdb-skipping, forebay,forebay@shuffle,pread@sequential,pylmdb-contiguous@contiguous"
    rows = strategies.parse(text, "group", baselines.find())
    assert [row.name for row in rows] == [
        "pylmdb-skipping@sequential", "forebay@group", "forebay@shuffle", "pread@sequential",
        "pylmdb-contiguous@contiguous",
    ]  # fmt: skip
    assert [row.baseline is not None for row in rows] == [True, False, False, False, True]


def test_parameters_of_a_strategy_and_of_an_order_keep_their_commas():
    text = "forebay:access=pread,readers=2@group:samples=64,window=2,h5py"
    first, second = strategies.parse(text, "group", baselines.find())
    assert (first.strategy, first.order) == ("forebay:access=pread,readers=2", "group:samples=64,window=2")
    assert second.name == "h5py@sequential"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fastest", r"(?s)'fastest'.*forebay.*pylmdb-skipping"),
        ("forebay@backwards", "backwards"),
        ("forebay:speed=9", "speed"),
        ("pylmdb-skipping@group", "delivers the order sequential and no other"),
        ("forebay,forebay", "twice"),
        (" , ", "at least one"),
    ],
)
def test_a_row_that_is_none_is_refused_and_the_valid_ones_are_named(text, message):
    with pytest.raises(OptionError, match=message):
        strategies.parse(text, "group", baselines.find())


def test_a_preset_that_walks_takes_an_order_that_can_be_walked():
    found = [strategies.parse("lmdb", order, {})[0].order for order in ("group", "sequential", "contiguous")]
    assert found == ["sequential", "sequential", "contiguous"]
    with pytest.raises(OptionError, match="goes from record to record"):
        strategies.parse("lmdb@group", "group", {})


def test_every_pylmdb_program_comes_with_read_ahead_on_and_off():
    names = baselines.find().keys()
    for name in ("pylmdb-skipping", "pylmdb-contiguous", "pylmdb-ownlock"):
        assert {name, f"{name}-noreadahead"} <= names


def test_ranks_go_to_nodes_in_blocks():
    assert Settings(ranks=7, nodes=3).ranks_of_nodes() == ((0, 1), (2, 3), (4, 5, 6))
    with pytest.raises(OptionError, match="at most as many nodes as ranks"):
        Settings(ranks=1, nodes=2)
    with pytest.raises(OptionError, match="--job-ranks"):
        Settings(ranks=4, job_ranks=2)


# --- numbers --------------------------------------------------------------------------------------------------------


def rank_of_stamps(number, begin, ready, finished, got, arrived, together, epochs=(0,)):
    arrays = {"got": got, "arrived": arrived, "together": together, "epochs": epochs}
    arrays |= {"marks": [begin, ready, finished], "sizes": [1 << 20] * len(got), "samples": [4] * len(got)}
    usage = dict.fromkeys(
        ("cpu_seconds", "minor_faults", "major_faults", "voluntary_switches", "involuntary_switches"), 1
    )
    measured = {"rank": number, "node": 0, "usage": usage, "reads": 2, "read_bytes": 3}
    measured |= {"storage_bytes": 4, "mapped_bytes": 0, "explain": "", "reader": {"read_seconds": 2.0}}
    return timing.Rank(
        measured,
        {key: np.array(value) * 10**9 if key in STAMPS else np.array(value) for key, value in arrays.items()},
    )


STAMPS = ("got", "arrived", "together", "marks")


def test_stamps_become_the_parts_that_docs_metrics_defines():
    # Seconds. Start-up until 10; steps of compute 2; rank 1 waits 3 s for its second batch, rank 0 one.
    first = rank_of_stamps(0, 0, 10, 22, [8, 14, 19], [12, 16, 21], [13, 18, 22])
    second = rank_of_stamps(1, 0, 10, 22, [9, 15, 19], [12, 17, 21], [13, 18, 22])
    found = timing.repetition([first, second], slow_down=1.0)
    one, two = found["ranks"]
    assert [one[key] for key in PARTS] == [1 + 1, 2 + 2 + 2, 1 + 1 + 1, 0 + 1 + 0]
    assert [two[key] for key in PARTS] == [2 + 1, 2 + 2 + 2, 1 + 1 + 1, 0]
    for rank in (one, two):
        assert sum(rank[key] for key in PARTS) == rank["wall_seconds"] == 12
    assert (one["startup_seconds"], found["startup_seconds"], found["total_seconds"]) == (8, 9, 22)
    # DLIO: compute of steps 1 and 2 over the epoch without the first step's wait and compute.
    assert found["accelerator_utilisation"] == pytest.approx(4 / 10)
    assert found["samples_per_second"] == pytest.approx(24 / 22)
    assert found["rate_mib_s"] == pytest.approx(6 / 22)
    assert (found["reads"], found["minor_faults"], found["exposed_seconds"]) == (4, 2, 2.5)


def test_a_slow_down_takes_times_back_to_the_model_and_leaves_counts():
    ranks = [rank_of_stamps(0, 0, 10, 22, [8, 14, 19], [12, 16, 21], [13, 18, 22])]
    plain, slow = timing.repetition(ranks, 1.0), timing.repetition(ranks, 4.0)
    assert slow["total_seconds"] == plain["total_seconds"] / 4
    assert slow["rate_mib_s"] == plain["rate_mib_s"] * 4
    assert slow["readers"][0]["read_seconds"] == 0.5
    for key in ("accelerator_utilisation", "reads", "cpu_seconds", "asked_bytes"):
        assert slow[key] == plain[key]


def test_the_utilisation_of_two_epochs_leaves_out_the_first_step_of_each():
    rank = rank_of_stamps(0, 0, 0, 20, [0, 3, 10, 14], [2, 5, 12, 16], [2, 5, 12, 16], epochs=(0, 2))
    # Epoch 0: 2 / (5 - 0 - 2); epoch 1: 2 / (16 - 5 - (10 - 5) - 2).
    found = timing.repetition([rank], 1.0)["accelerator_utilisation"]
    assert found == pytest.approx((2 / 3 + 2 / 4) / 2)


def test_medians_and_spreads_are_of_the_repetitions():
    repetitions = [
        timing.repetition([rank_of_stamps(0, 0, 10, end, [8, 14], [12, 16], [13, end])], 1.0)
        for end in (20, 30, 22)
    ]
    middle = timing.median(repetitions)
    assert middle["total_seconds"] == 22
    assert timing.spread(repetitions, middle)["total_seconds"] == pytest.approx(10 / 22)


# --- digests --------------------------------------------------------------------------------------------------------


def digests_of(*epochs):
    kept = verify.Digests()
    for epoch in epochs:
        for ids in epoch:
            kept.add_step(ids, [b"%d" % one for one in ids])
        kept.end_epoch()
    return kept.arrays()


def test_epochs_in_another_order_are_the_same_multiset_and_other_steps():
    one = verify.join([digests_of([[0, 1], [4, 5]]), digests_of([[2, 3], [0, 1]])], 6)
    two = verify.join([digests_of([[5, 2], [4, 0]]), digests_of([[3, 1], [2, 3]])], 6)
    assert one.digest_epoch == two.digest_epoch is not None
    assert one.digest_steps != two.digest_steps
    (steps, epoch) = verify.compare({"a": ("x", one), "b": ("x", two)})
    assert (steps["what"], steps["equal"], steps["difference"]) == (
        "steps",
        False,
        "b differs from a at step 0",
    )
    assert (epoch["what"], epoch["equal"]) == ("epoch", True)


def test_a_record_that_changed_between_two_hand_outs_is_a_fault():
    kept = verify.Digests()
    kept.add_step([0, 0], [b"a", b"b"])
    kept.end_epoch()
    assert "sample 0 was handed out twice, with different bytes" in verify.join([kept.arrays()], 1).fault


def test_an_epoch_that_lacks_a_sample_has_no_digest():
    found = verify.join([digests_of([[0, 1], [2, 2]])], 4)
    assert (found.digest_epoch, found.fault) == (None, None)


def test_a_digest_is_of_id_and_bytes_whatever_holds_them():
    of_bytes = verify.sample_digest(3, b"abcd")
    assert verify.sample_digest(3, np.frombuffer(b"abcd", np.uint8)) == of_bytes
    assert verify.sample_digest(3, np.frombuffer(b"aXbXcXdX", np.uint8)[::2]) == of_bytes
    assert verify.sample_digest(3, memoryview(b"abcd")) == of_bytes
    assert verify.sample_digest(4, b"abcd") != of_bytes
    assert verify.sample_digest(3, b"") != verify.sample_digest(4, b"")


# --- real runs ------------------------------------------------------------------------------------------------------

ALL = (
    "pylmdb-skipping,pylmdb-skipping-noreadahead,pylmdb-ownlock,forebay@sequential,"
    "pylmdb-contiguous,forebay@contiguous,forebay,h5py"
)


def test_rows_hand_out_the_same_samples_and_their_times_add_up(capsys, data):
    status, result = run_json(
        capsys, data, "--ranks", 3, "--batch-size", 16, "--epochs", 2, "--repetitions", 1, "--compute", "2ms",
        "--strategies", ALL, "--launcher", "processes",
    )  # fmt: skip
    rows = rows_of(result)
    assert status == 0, [row["error"] for row in result["rows"]]
    assert rows.pop("h5py@sequential")["status"] == "skipped"
    steps = -(-SAMPLES // 48)
    for row in rows.values():
        assert len(row["repetitions"]) == 1
        for repetition in row["repetitions"]:
            for rank in repetition["ranks"]:
                assert sum(rank[key] for key in PARTS) == pytest.approx(rank["wall_seconds"], rel=0.01)
                assert rank["compute_seconds"] >= 2 * steps * 0.002
                assert min(rank[key] for key in (*PARTS, "startup_seconds")) >= 0
            asked = sum(rank["asked_bytes"] for rank in repetition["ranks"])
            assert repetition["asked_bytes"] == asked > 2 * sum(200 + i % 7 * 600 for i in range(SAMPLES))
            assert repetition["rate_mib_s"] == pytest.approx(asked / 2**20 / repetition["total_seconds"])
            assert 0 < repetition["accelerator_utilisation"] <= 1
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


def test_the_program_in_the_documentation_hands_out_what_its_order_says(capsys, data, tmp_path):
    example = (support.ROOT / "docs/bench.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "lookup.py").write_text(example)
    status, result = run_json(
        capsys, data, "--ranks", 2, "--repetitions", 1, "--launcher", "processes",
        "--baseline", tmp_path / "lookup.py", "--strategies", "pylmdb-lookup,forebay@sequential",
    )  # fmt: skip
    assert status == 0, [row["error"] for row in result["rows"]]
    assert [(one["what"], one["equal"]) for one in result["verified"]] == [("steps", True), ("epoch", True)]


def test_a_torch_dataloader_hands_out_every_sample(capsys, data):
    pytest.importorskip("torch", reason="torch is not installed")
    status, result = run_json(
        capsys, data, "--ranks", 2, "--repetitions", 1, "--launcher", "processes",
        "--strategies", "torch-dataloader,forebay@shuffle",
    )  # fmt: skip
    assert status == 0, [row["error"] for row in result["rows"]]
    assert [(one["what"], one["equal"]) for one in result["verified"]] == [("epoch", True)]


def test_tf_data_hands_out_every_sample_of_tfrecord_files(capsys, tmp_path):
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    status, result = run_json(
        capsys, "--workload", "cosmoflow", "--scale", 2e-5, "--data", tmp_path, "--compute", "0s",
        "--ranks", 2, "--repetitions", 1, "--launcher", "processes", "--strategies", "tfdata",
    )  # fmt: skip
    (row,) = result["rows"]
    assert (status, row["status"]) == (0, "ok"), row["error"]
    assert row["digest_epoch"] is not None


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
            (row["digest_steps"], row["digest_epoch"], row["median"]["asked_bytes"]) for row in result["rows"]
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
    status, out, _ = run(capsys, *arguments, "--no-verify")
    assert status == 1
    assert "the disk is on fire" in out
    assert "samples were not verified" in out


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


def test_a_program_that_hangs_is_ended_after_the_timeout(capsys, data, own_baselines):
    status, result = run_json(
        capsys, data, "--ranks", 2, "--repetitions", 1, "--batch-size", 16, "--timeout", 4,
        "--launcher", "processes", "--baseline", own_baselines, "--strategies", "hangs,pylmdb-skipping",
    )  # fmt: skip
    rows = rows_of(result)
    assert status == 1
    assert "hangs@sequential: verification" in rows["hangs@sequential"]["error"]
    assert rows["pylmdb-skipping@sequential"]["status"] == "ok"


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


def test_a_part_of_an_epoch_or_of_a_job_is_compared_by_steps_only(capsys, data):
    status, result = run_json(
        capsys, data, "--ranks", 2, "--job-ranks", 4, "--steps", 3, "--batch-size", 16, "--repetitions", 1,
        "--epochs", 2, "--launcher", "processes", "--strategies", "pylmdb-contiguous,forebay@contiguous,forebay",
    )  # fmt: skip
    assert status == 0
    assert [one["what"] for one in result["verified"]] == ["steps"]
    assert result["verified"][0]["equal"]
    assert {row["digest_epoch"] for row in result["rows"]} == {None}
    assert any("cut after 3 of 8 steps" in one for one in result["warnings"])
    assert any("2 of 4 ranks ran" in one for one in result["warnings"])
    for row in result["rows"]:
        assert row["median"]["asked_bytes"] > 0


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
    assert lines[2].startswith("row ")
    assert [line.split()[0] for line in lines[3:6]] == [
        "pylmdb-skipping@sequential",
        "forebay@group",
        "h5py@sequential",
    ]
    assert "limit measured" in out
    assert "verified, the same samples over an epoch" in out
    assert "posix_fadvise" in out
    assert "h5py@sequential skipped: reads hdf5, the data set is lmdb" in out


def test_samples_of_hdf5_files_are_read_by_h5py(capsys, tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.arange(number * 90, number * 90 + 90).reshape(30, 3)
            file["y"] = np.arange(30)
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
    assert rows["forebay@group"]["status"] == "skipped"
    assert "hdf5" in rows["forebay@group"]["error"]


# --- emulated nodes -------------------------------------------------------------------------------------------------


@pytest.fixture
def all_unmounted(tmp_path, monkeypatch):
    """Make temporary directories below the test's own, and see that nothing stays mounted there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    left = emulator.ours(tmp_path)
    emulator.remove_all(tmp_path)
    assert left == []


@emulator.needs_fuse
def test_nodes_are_mounted_for_the_run_and_begin_cold(capsys, data, all_unmounted, tmp_path):
    status, result = run_json(
        capsys, data, "--ranks", 3, "--nodes", 2, "--cold", "--pfs", "lustre-ssd", "--targets", 2, "--slow-down", 4,
        "--repetitions", 2, "--batch-size", 16, "--compute", "1ms", "--launcher", "processes",
        "--strategies", "pylmdb-skipping,pylmdb-ownlock,forebay@sequential,forebay",
    )  # fmt: skip
    assert status == 0, [row["error"] for row in result["rows"]]
    assert all(one["equal"] for one in result["verified"])
    assert [one["what"] for one in result["verified"]] == ["steps", "epoch"]
    assert (result["pfs"]["slow_down"], result["pfs"]["spec"]["targets"]) == (4, 2)
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
    # No sidecar of a mount that is gone stays in the user's cache; the one of the data set itself may.
    assert len(list(Path(os.environ["FOREBAY_CACHE_DIR"]).glob("*.forebay"))) <= 1


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
    interrupted(data, own_baselines, tmp_path / "scratch", "--pfs", "lustre-ssd", "--slow-down", "1")


def test_a_bench_that_is_told_to_end_leaves_nothing_either(data, own_baselines, tmp_path):
    interrupted(data, own_baselines, tmp_path / "scratch", "--launcher", "processes", by=signal.SIGTERM)


@emulator.needs_fuse
def test_an_unknown_file_system_is_refused(capsys, data, all_unmounted):
    status, _, err = run(capsys, data, "--pfs", "tape")
    assert status == 2
    assert "tape" in err
    assert "lustre-hdd" in err


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["DATA", "--strategies", "fastest"], "there is none called 'fastest'", 2),
        (["DATA", "--ranks", "501"], "at least one sample for each of the 501 ranks", 2),
        (["DATA", "--nodes", "5"], "at most as many nodes as ranks", 2),
        (["DATA", "--compute", "5 minutes"], "expected a time such as 5ms", 2),
        (["DATA", "--baseline", "none.py"], "expected a Python file", 2),
        (["DATA", "--report", "nowhere/out.html"], "its directory is not there", 2),
        (["DATA", "--workload", "fefs"], "either DATASET or --workload", 2),
        ([], "either DATASET or --workload", 2),
        (["missing.lmdb"], "there is no data set missing.lmdb", 1),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(capsys, data, arguments, message, code):
    status, out, err = run(capsys, *[data if one == "DATA" else one for one in arguments])
    assert (status, out) == (code, "")
    assert message in err


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


# --- interruption, page cache ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["processes", pytest.param("mpi", marks=pytest.mark.mpi)])
def test_an_interrupted_bench_leaves_nothing(data, own_baselines, tmp_path, launcher):
    interrupted(data, own_baselines, tmp_path / "scratch", "--launcher", launcher)


def interrupted(data, own_baselines, scratch, *arguments, by=signal.SIGINT):
    """Start a bench that hangs, interrupt it, look for what it left."""
    scratch.mkdir()
    command = [sys.executable, "-m", "forebay", "bench", str(data), "--ranks", "2", "--batch-size", "16"]
    command += ["--baseline", str(own_baselines), "--strategies", "hangs", *arguments]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(scratch)}
    )
    end = time.monotonic() + support.DEADLINE_S
    while not list(scratch.glob("forebay-bench-*/scratch-1")):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(by)
    assert process.stderr is not None
    assert "interrupted" in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert not list(scratch.glob("forebay-bench-*"))
    needle = str(scratch).encode()
    left = [pid for pid in launch._processes() if pid != os.getpid() and needle in command_line(pid)]
    assert not left


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_dropped_file_is_not_resident_and_a_read_one_is(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(4 << 20))
    page_cache.drop(file)
    share = page_cache.resident_share(file)
    if share is None:
        pytest.skip("this file system does not tell what is in the page cache")
    assert share == 0
    file.read_bytes()
    assert page_cache.resident_share(file) == 1


def test_a_pattern_stands_for_the_files_that_it_matches(data):
    found = facts.look((str(data.parent / "tr*.lmdb"),))
    assert (found.paths, found.samples) == ((str(data),), SAMPLES)


def test_formats_are_told_apart(data, tmp_path):
    assert facts.look((str(data),)).format == "lmdb"
    record = tmp_path / "a.tfrecord"
    record.write_bytes(b"".join((4).to_bytes(8, "little") + bytes(4 + 4 + 4) for _ in range(3)))
    found = facts.look((str(record),))
    assert (found.format, found.samples, found.mean_bytes, found.for_engine) == ("tfrecord", 3, 4, False)
