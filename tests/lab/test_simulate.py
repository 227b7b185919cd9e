"""``forebay simulate``: results and ranges, rows without a model, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from forebay_lab.bench.strategies import LADDER
from forebay_lab.bench.workload import load
from forebay_lab.pfs.start import Wanted
from forebay_lab.simulate.places import of_workload
from support import run_command, run_command_json

# 100,000 samples of 3 KB, and a file system on which 2 seeds take a moment.
SMALL = ("--workload", "cifar10-large", "--scale", "0.002", "--pfs", "nfs", "--seeds", "2")


def run(capsys, *arguments):
    return run_command(capsys, "simulate", *SMALL, *arguments)


def run_json(capsys, *arguments):
    return run_command_json(capsys, "simulate", *SMALL, *arguments)


def test_each_row_at_each_number_of_ranks_has_a_median_and_a_range(capsys):
    found = run_json(
        capsys, "--ranks", "4,8", "--ranks-per-node", "2", "--global-batch", "512", "--compute", "1ms",
        "--strategies", "forebay@sequential,forebay@group,pread@shuffle",
    )  # fmt: skip
    assert [point["ranks"] for point in found["points"]] == [4, 8]
    assert found["ranks"] == 8
    assert found["nodes"] == 4
    assert found["batch_size"] == 64
    assert found["simulated"]["seeds"] == [0, 1]
    for point in found["points"]:
        assert [row["name"] for row in point["rows"]] == [
            "forebay@sequential",
            "forebay@group",
            "pread@shuffle",
        ]
        for row in point["rows"]:
            least, most = row["range"]["wall_seconds"]
            assert 0 < least <= row["median"]["wall_seconds"] <= most
            assert row["median"]["requested_bytes"] == 196 * 512 * 3083
            assert row["median"]["read_bytes"] >= 100_000 * 3083
    for row in found["rows"]:
        for one in row["repetitions"]:
            parts = ("exposed_seconds", "compute_seconds", "communication_seconds", "skew_seconds")
            for rank in one["ranks"]:
                assert sum(rank[key] for key in parts) == pytest.approx(rank["wall_seconds"])
            assert sum(node["read_bytes"] for node in one["pfs"]["nodes"]) == one["pfs"]["read_bytes"]
            assert sum(server["read_bytes"] for server in one["pfs"]["servers"]) == one["pfs"]["read_bytes"]
            assert one["step_seconds"][-1] == pytest.approx(one["total_seconds"])


def test_equal_seeds_give_equal_output(capsys):
    arguments = ("--ranks", "4", "--steps", "20", "--strategies", "forebay@group")
    first, second = (run_json(capsys, *arguments) for _ in range(2))
    assert json.dumps(first["rows"]) == json.dumps(second["rows"])
    other = run_json(capsys, *arguments, "--seed", "1")
    assert json.dumps(first["rows"]) != json.dumps(other["rows"])


def test_the_table_has_a_line_for_each_row_and_says_what_is_not_modelled(capsys):
    rows = "forebay@sequential,h5py,torch-dataloader"
    status, out, _ = run(capsys, "--container", "hdf5", "--ranks", "4", "--steps", "8", "--strategies", rows)
    assert status == 0
    lines = out.splitlines()
    assert any(line.split()[:2] == ["4", "forebay@sequential"] for line in lines)
    assert any(line.split()[:3] == ["4", "torch-dataloader@torch-sampler", "skipped"] for line in lines)
    reason = (
        "torch-dataloader@torch-sampler: not modelled: a cursor through a file whose tree is not computed"
    )
    assert reason in " ".join(out.split())
    assert "not modelled: schedulers, elevators, and caches of servers" in out


def test_programs_read_what_they_say(capsys):
    """Each rank of tf.data reads whole files, h5py its samples, torch its records and the tree."""
    shape = ("--ranks", "4", "--ranks-per-node", "1", "--batch-size", "250", "--compute", "0s")
    bytes_of = {}
    for container, row in (
        ("hdf5", "h5py"),
        ("hdf5", "h5py-random"),
        ("tfrecord", "tfdata"),
        (None, "torch-dataloader"),
    ):
        container = () if container is None else ("--container", container)
        found = run_json(capsys, *shape, *container, "--strategies", row, "--steps", "100")
        (one,) = found["rows"]
        assert one["status"] == "ok"
        bytes_of[row] = one["median"]["storage_bytes"]
        assert one["median"]["requested_bytes"] == 100_000 * (3083 if row == "torch-dataloader" else 3072)
    assert bytes_of["h5py"] >= 100_000 * 3072
    # The last read of a step ends in the middle of a page.
    assert bytes_of["tfdata"] >= 4 * 99_999 * 3088
    assert bytes_of["torch-dataloader"] >= 100_000 * 4096


def test_a_dataset_that_is_there_is_simulated_by_its_index(capsys, tmp_path):
    path = tmp_path / "data.npy"
    np.save(path, np.zeros((1000, 1024), np.uint8))
    arguments = (
        "simulate",
        str(path),
        "--ranks",
        "2,4",
        "--pfs",
        "nfs",
        "--seeds",
        "2",
        "--batch-size",
        "10",
    )
    found = run_command_json(capsys, *arguments, "--strategies", "forebay@sequential,forebay@shuffle,lmdb")
    assert found["dataset"] == {
        "path": str(path), "format": "npy", "samples": 1000, "bytes": 1_024_128, "mean_bytes": 1024.0
    }  # fmt: skip
    assert found["workload"] is None
    sequential, shuffled, cursor = found["rows"]
    for row in (sequential, shuffled):
        assert row["median"]["requested_bytes"] == 1000 * 1024
        assert row["median"]["read_bytes"] >= 1000 * 1024
    assert cursor["error"] == "not modelled: a cursor through a file whose tree is not computed"
    status, out, _ = run_command(capsys, *arguments)
    assert status == 0
    assert "1,000 samples (npy), 1,024 bytes each, on nfs" in out
    status, _, err = run_command(capsys, "simulate", str(tmp_path / "none.npy"), "--pfs", "nfs")
    assert status != 0
    assert "none.npy" in err


def test_values_that_are_compressed_have_no_model(capsys, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "coded.h5", "w") as file:
        file.create_dataset("data", data=np.zeros((64, 64), np.uint8), chunks=(8, 64), compression="gzip")
    status, _, err = run_command(capsys, "simulate", str(tmp_path / "coded.h5"), "--pfs", "nfs")
    assert status == 2
    assert "not modelled: values that are compressed" in err


@pytest.mark.parametrize(
    "arguments", [(), ("data.npy", "--workload", "cifar10-large"), ("data.npy", "--like", "a.json")]
)
def test_one_thing_is_simulated(capsys, arguments):
    status, _, err = run_command(capsys, "simulate", *arguments)
    assert status == 2
    assert "expected one of DATASET, --workload NAME and --like RESULT" in err


def test_the_ladder_has_windows_of_the_rows_that_take_page_faults(capsys):
    shape = ("--ranks", "8", "--ranks-per-node", "2", "--global-batch", "512", "--compute", "0s")
    found = run_json(capsys, *shape, "--strategies", "ladder")
    window = {"after": 8, "steps": 64}
    faulting = {"pylmdb-skipping", "lmdb", "lmm", "lmm-dm"}
    rows = {row["name"].partition("@")[0]: row for row in found["rows"]}
    assert list(rows) == list(LADDER)
    for name, row in rows.items():
        expected = (64, window) if name in faulting else (196, None)
        assert (row["steps"], row["window"]) == expected, name
        for one in row["repetitions"]:
            assert len(one["step_seconds"]) == row["steps"]
            assert one["requested_bytes"] == row["steps"] * 512 * 3083
            assert one["step_seconds"][-1] == pytest.approx(one["total_seconds"])
    step = {name: row["median"]["wall_seconds"] / row["steps"] for name, row in rows.items()}
    assert step["forebay"] <= step["lmm-dio-prov"] < min(step["lmm"], step["lmdb"])


def test_the_table_says_which_rows_have_a_window(capsys):
    arguments = ("--ranks", "4", "--global-batch", "512", "--strategies", "lmm-dm,lmm-dio-prov")
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    cut = "64 steps of rows that take page faults, after 8 that do not count: lmm-dm@sequential"
    assert cut in " ".join(out.split())
    assert "lmm-dm@sequential, " not in out


def test_a_report_has_the_pictures_of_the_simulated_run(capsys, tmp_path):
    page = tmp_path / "page.html"
    arguments = (
        "--ranks",
        "4,8",
        "--steps",
        "8",
        "--container",
        "hdf5",
        "--strategies",
        "forebay@sequential,h5py,lmdb",
    )
    status, out, _ = run(capsys, *arguments, "--report", str(page))
    assert status == 0
    assert f"The same with pictures: {page}" in out
    text = page.read_text()
    for title in ("Scaling", "Where the time goes, by ranks", "Load of each server"):
        assert f"<h2>{title}</h2>" in text
    assert "Against the limit" not in text
    scaling = text.partition('<section id="scaling"')[2].partition("</section>")[0]
    assert "h5py@sequential, 8 ranks: " in scaling
    assert "lmdb" not in scaling


def test_a_job_without_any_row_that_has_a_model_fails(capsys):
    status, out, _ = run(capsys, "--ranks", "4", "--strategies", "torch-dataloader", "--container", "hdf5")
    assert status == 1
    reason = (
        "torch-dataloader@torch-sampler: not modelled: a cursor through a file whose tree is not computed"
    )
    assert reason in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "4,4"), "--ranks: expected each number once, found 4, 4"),
        (("--ranks", "0"), "--ranks: expected numbers of at least 1, found 0"),
        (("--ranks", "x"), "expected numbers such as 5,3,1, found 'x'"),
        (("--ranks", "7", "--global-batch", "512"), "--global-batch: expected a multiple of 7 ranks, found 512"),
        (("--batch-size", "200000"), "a step of 4 ranks takes 800,000 samples, and the dataset has 100,000"),
        (("--batch-size", "4", "--global-batch", "16"), "expected --batch-size or --global-batch, found both"),
        (("--steps", "3", "--epochs", "2"), "--steps: expected one epoch, found --epochs 2"),
        (("--pfs", "nfs2"), "unknown preset"),
        (("--workload", "cifar"), "unknown workload"),
        (("--node-memory", "1MiB"), "node_memory: expected at least"),
    ],
)  # fmt: skip
def test_a_job_that_is_not_possible_is_refused_with_what_is(capsys, arguments, message):
    status, _, err = run(capsys, *arguments)
    assert status != 0
    assert message in " ".join(err.split())


@pytest.mark.parametrize(
    ("container", "files", "file_bytes"),
    [(None, 1, None), ("tfrecord", 1, 308_800_000), ("npz", 100_000, 358_400_000), ("hdf5", 1, 307_202_048)],
)
def test_places_are_those_of_the_container(container, files, file_bytes):
    places, left_out = of_workload(load("cifar10-large"), 0.002, container)
    assert places.samples == 100_000
    assert any("tree of an LMDB file" in one for one in left_out) == (container is None)
    if file_bytes is None:
        # A page for each record, and some of the tree.
        assert 100_000 < places.model.file_bytes / 4096 < 103_000
    else:
        assert places.model.file_bytes == file_bytes
        assert places.description["uniform"]["files"] == files


def test_a_tier_that_holds_the_dataset_serves_all_but_the_first_epoch(capsys):
    arguments = ("--ranks", "4", "--ranks-per-node", "2", "--batch-size", "64", "--epochs", "3")
    found = run_json(
        capsys, *arguments, "--strategies", "forebay@shuffle,lmdb", "--tier", "tmpfs:64MiB,local-nvme:1GiB"
    )
    assert found["tiers"] == ["tmpfs", "local-nvme"]
    assert found["simulated"]["tiers"][0] == {"name": "tmpfs", "bytes": 64 << 20}
    shuffled, walked = found["rows"]
    for one in shuffled["repetitions"]:
        first, *later = one["by_epoch"]
        assert first["levels"]["source"] >= 100_000 * 3083
        assert one["copied_bytes"] > 0
        for epoch in later:
            assert epoch["levels"]["source"] < first["levels"]["source"] / 20
            assert epoch["levels"]["tmpfs"] > 0
            assert epoch["levels"]["local-nvme"] > 0
        assert sum(epoch["seconds"] for epoch in one["by_epoch"]) == pytest.approx(one["total_seconds"])
        assert sum(epoch["pfs"]["read_bytes"] for epoch in one["by_epoch"]) == one["pfs"]["read_bytes"]
    # A cursor walks through the file itself.
    assert all(epoch["levels"] is None for one in walked["repetitions"] for epoch in one["by_epoch"])
    (point,) = found["points"]
    shares = [epoch["source_share"] for epoch in point["rows"][0]["epochs"]]
    assert shares[2] < 0.05 < 0.3 < shares[0]
    status, out, _ = run(
        capsys, *arguments, "--strategies", "forebay@sequential", "--tier", "local-nvme:1GiB"
    )
    assert status == 0
    assert "each node has tiers local-nvme of 1 GiB" in out
    assert any(line.rstrip().endswith("100%") for line in out.splitlines())


def test_a_tier_may_be_described_by_a_file(capsys, tmp_path):
    """It is named as the file says, and serves at that rate."""
    drive = {key: value for key, value in Wanted(preset="local-nvme").resolve().items() if key != "sources"}
    seconds = {}
    for rate in (2.4e9, 2.4e7):
        path = tmp_path / f"{rate:g}.toml"
        numbers = {**drive, "name": "ours", "target_bytes_per_second": rate}
        lines = [f"{key} = {json.dumps(value)}" for key, value in numbers.items() if value is not None]
        path.write_text("\n".join(lines))
        tiers = ("--tier", f"{path}:100MiB", "--tier", f"{path}:1GiB")
        found = run_json(
            capsys,
            "--ranks",
            "4",
            "--epochs",
            "3",
            "--compute",
            "0s",
            "--strategies",
            "forebay@sequential",
            *tiers,
        )
        assert found["tiers"] == ["ours", "ours#2"]
        seconds[rate] = found["points"][0]["rows"][0]["epochs"][-1]["seconds"]
    assert seconds[2.4e7] > 2 * seconds[2.4e9]
    status, _, err = run(capsys, "--tier", f"{tmp_path}/none.toml:1GiB")
    assert status != 0
    assert "none.toml" in err


def test_the_kernel_reads_around_a_page_that_lustre_reads_alone(capsys):
    shape = ("--ranks", "4", "--ranks-per-node", "1", "--compute", "0s", "--strategies", "lmdb")
    fetched = {}
    for client in ("lustre", "linux"):
        (row,) = run_json(capsys, *shape, "--client", client)["rows"]
        fetched[client] = row["median"]["storage_bytes"] / row["median"]["requested_bytes"]
    assert fetched["lustre"] > 1
    assert fetched["linux"] > 1.2 * fetched["lustre"]


SHARDS = ("--workload", "monarch-100", "--scale", "0.002", "--pfs", "nfs", "--seeds", "2", "--epochs", "3")
"""1,800 samples of 115 KB in several TFRecord files."""


def source_shares(row):
    return [epoch["source_share"] for epoch in row["epochs"]]


def test_a_program_that_opens_its_files_again_reads_copies_from_the_second_epoch_on(capsys):
    arguments = ("simulate", *SHARDS, "--ranks", "1", "--strategies", "tfdata")
    plain = run_command_json(capsys, *arguments)
    assert plain["simulated"]["run"] is None
    served = run_command_json(capsys, *arguments, "--tier", "local-nvme:1GiB")
    assert served["simulated"]["run"] == {"fetch": "follow", "frozen": False, "stage": False}
    (row,) = served["points"][0]["rows"]
    first, second, third = source_shares(row)
    # The last file may be opened again before its copy is on the drive.
    assert (first, third) == (1, 0)
    assert second < 1
    # A drive is faster than this file system.
    assert row["epochs"][2]["seconds"] < plain["points"][0]["rows"][0]["epochs"][0]["seconds"] / 2
    for one in served["rows"][0]["repetitions"]:
        data = served["dataset"]["bytes"]
        assert one["copied_bytes"] == data
        assert sum(one["by_epoch"][0]["levels"].values()) >= 0.99 * data
        assert one["by_epoch"][0]["levels"]["local-nvme"] == 0
    status, out, _ = run_command(capsys, *arguments, "--tier", "local-nvme:1GiB", "--fetch", "whole")
    assert status == 0
    assert "programs run under forebay run --fetch whole" in out


def test_programs_that_open_their_files_once_are_served_if_these_are_staged(capsys):
    arguments = (
        "--ranks", "4", "--ranks-per-node", "2", "--batch-size", "64", "--epochs", "2", "--compute", "0s",
        "--tier", "tmpfs:1GiB",
    )  # fmt: skip
    for container, row in (("hdf5", "h5py"), ("tfrecord", "tfdata"), ("hdf5", "tfdata-random-prefetch")):
        rows = ("--container", container, "--strategies", row)
        plain, staged = (run_json(capsys, *arguments, *rows, *more) for more in ((), ("--stage",)))
        # tf.data opens its one file again as soon as it has read it.
        assert source_shares(plain["points"][0]["rows"][0]) == [1, 1]
        assert source_shares(staged["points"][0]["rows"][0]) == [0, 0]
        for one in staged["rows"][0]["repetitions"]:
            assert one["copied_bytes"] == 2 * staged["dataset"]["bytes"]
            assert one["storage_bytes"] == 2 * staged["dataset"]["bytes"]
    # The faults of a cursor are those of the copy.
    (cursor,) = run_json(capsys, *arguments, "--strategies", "pylmdb-skipping", "--stage")["rows"]
    assert cursor["window"] == {"after": 8, "steps": 64}
    assert cursor["median"]["storage_bytes"] == 0


@pytest.mark.parametrize("option", [("--stage",), ("--frozen",), ("--fetch", "whole")])
def test_options_of_forebay_run_need_a_tier(capsys, option):
    status, _, err = run(capsys, "--ranks", "4", "--strategies", "h5py", "--container", "hdf5", *option)
    assert status == 2
    assert f"{option[0]}: expected --tier" in err


def test_ids_of_a_file_are_read_in_their_order(capsys, tmp_path):
    def simulated(ids, *more):
        path = tmp_path / "ids.npy"
        np.save(path, ids)
        shape = ("--ranks", "2", "--batch-size", "50", "--strategies", "forebay,pread", "--epochs", "2")
        return run_json(capsys, *shape, "--ids", str(path), *more)

    sequential = np.arange(100_000)
    found = simulated(sequential)
    assert [row["name"] for row in found["rows"]] == ["forebay@given", "pread@given"]
    named = run_json(
        capsys, "--ranks", "2", "--batch-size", "50", "--epochs", "2", "--strategies", "forebay@sequential"
    )
    key = "storage_bytes"
    assert found["rows"][0]["median"][key] == named["rows"][0]["median"][key]
    # Fewer ids make shorter epochs; negative ones count from the end; each epoch may have others.
    few = simulated(np.stack([np.arange(1000), np.arange(-1000, 0)]))
    assert few["steps"] == 10
    for row in few["rows"]:
        assert row["median"]["requested_bytes"] == 2 * 1000 * 3083
    # A sample may stand there twice.
    (again, _) = simulated(np.full(1000, 7))["rows"]
    assert again["median"]["requested_bytes"] == 2 * 1000 * 3083
    assert again["median"]["storage_bytes"] < few["rows"][0]["median"]["storage_bytes"]


@pytest.mark.parametrize(
    ("ids", "more", "message"),
    [
        (np.arange(10), (), "a step of 4 ranks takes 128 samples, and an epoch of --ids has 10"),
        (np.array([0, 100_000]), (), "sample 100000 of a dataset of 100000 samples"),
        (np.zeros((1, 1, 1), int), (), "expected integers in one or two axes, found dtype int64 and shape (1, 1, 1)"),
        (np.zeros(3), (), "expected integers in one or two axes, found dtype float64"),
        (np.zeros(0, int), (), "expected at least one id, found none"),
        (np.arange(100_000), ("--strategies", "forebay@shuffle"), "expected rows that read these ids, found forebay@shuffle"),
        (np.arange(100_000), ("--strategies", "lmdb"), "expected rows that read these ids, found lmdb@sequential"),
        (np.arange(100_000), ("--strategies", "h5py"), "expected rows that read these ids, found h5py@sequential"),
        (np.arange(100_000), ("--order", "shuffle"), "expected --order or --ids, found both"),
        (None, (), "write it with numpy.save"),
    ],
)  # fmt: skip
def test_ids_that_cannot_be_read_are_refused(capsys, tmp_path, ids, more, message):
    path = tmp_path / "ids.npy"
    if ids is None:
        path.write_text("1, 2, 3")
    else:
        np.save(path, ids)
    rows = () if "--strategies" in more else ("--strategies", "forebay")
    status, _, err = run(capsys, "--ranks", "4", "--batch-size", "32", *rows, "--ids", str(path), *more)
    assert status == 2
    assert message in " ".join(err.split())


def test_a_store_reads_each_byte_once(capsys):
    found = run_json(
        capsys, "--ranks", "4", "--ranks-per-node", "2", "--batch-size", "64", "--epochs", "2",
        "--strategies", "store@shuffle,forebay:store=auto@opportunistic",
    )  # fmt: skip
    stored, streamed = found["rows"]
    for one in stored["repetitions"]:
        assert one["loaded_bytes"] >= 100_000 * 3083
        assert one["by_epoch"][1]["pfs"]["read_bytes"] == 0
        levels = one["by_epoch"][1]["levels"]
        assert levels["source"] == 0
        assert levels["peers"] == pytest.approx(levels["share"], rel=0.1)
    # The memory of the nodes holds nearly all units.
    for one in streamed["repetitions"]:
        assert one["loaded_bytes"] > 0.95 * 100_000 * 3083
        assert one["by_epoch"][1]["levels"]["source"] < 0.05 * 100_000 * 3083


@pytest.mark.parametrize(
    ("tier", "message"),
    [
        ("local-nvme", "--tier: expected PRESET:SIZE, found 'local-nvme'"),
        ("local-nvme:0", "--tier local-nvme: expected a positive number of bytes, found '0'"),
        ("nvme:1GiB", "unknown preset"),
        ("local-nvme:1KiB", "tiers.bytes: expected 1048576 to 2^60, found 1024"),
    ],
)
def test_a_tier_that_is_not_possible_is_refused(capsys, tier, message):
    status, _, err = run(capsys, "--ranks", "4", "--tier", tier)
    assert status != 0
    assert message in " ".join(err.split())


def test_nodes_that_ranks_do_not_fill_differ_by_one_rank(capsys):
    found = run_json(capsys, "--ranks", "11", "--ranks-per-node", "4", "--batch-size", "8", "--steps", "4")
    assert found["ranks_per_node"] == [3, 4, 4]
    ranks = found["rows"][0]["repetitions"][0]["ranks"]
    assert [one["node"] for one in ranks] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
