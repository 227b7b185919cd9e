"""``forebay simulate --like`` and ``bench --simulated``: the job of a bench result again."""

from __future__ import annotations

import json
import tempfile

import pytest

import support
from forebay_lab import _native
from forebay_lab.simulate import like
from forebay_lab.simulate.costs import Costs
from support import emulator, run_command, run_command_json
from support.bench import run_json

MODELLED = ("forebay@sequential", "lmdb@sequential", "pylmdb-skipping@sequential")


def bench_result(**changes):
    """Return what of a bench of 8 ranks on 4 nodes makes its job; walls of 2 s."""
    spec = json.loads(_native.pfs_spec("nfs", None, None, "{}"))
    run = {"wall_seconds": 2.0, "startup_seconds": 0.5, "total_seconds": 2.5}
    counted = {
        "nodes": [{"node": 0, "reads": 9, "read_bytes": 40 << 20, "read_ahead_kb": 128}],
        "servers": [{"server": 0, "seeks": 0}],
    }
    rows = [
        {
            "name": name, "strategy": name.partition("@")[0], "order": name.partition("@")[2], "status": "ok",
            "error": None, "repetitions": [{**run, "pfs": counted}], "median": run, "spread": {}, "label": "",
        }
        for name in (*MODELLED, "store@group", "mine@sequential")
    ]  # fmt: skip
    failed = {"status": "failed", "error": "died", "repetitions": [], "median": None, "spread": None}
    return {
        "version": 3,
        "dataset": {
            "path": "data.lmdb", "format": "lmdb", "samples": 10_000, "files": 1, "bytes": 42_000_000,
            "mean_bytes": 3083.0,
        },
        "machine": {"name": "a machine", "cores": 2, "memory_bytes": 24 << 30},
        "ranks": 8, "world_size": 8, "nodes": 4, "ranks_per_node": [2, 2, 2, 2], "batch_size": 64, "steps": 20,
        "epochs": 1, "repetitions": 1, "compute_seconds": 0.001, "cold": True, "tiers": [], "seed": 0,
        "node_memory_bytes": None, "warnings": [],
        "pfs": {"spec": spec, "time_scale": 3.0, "limit_mib_s": 1000.0},
        "rows": [*rows, {**rows[0], "name": "forebay@group", "order": "group", **failed}],
        **changes,
    }  # fmt: skip


def stored(tmp_path, result):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(result))
    return str(path)


def test_each_measured_row_gets_what_the_model_says(capsys, tmp_path):
    path = stored(tmp_path, bench_result())
    found = run_command_json(capsys, "simulate", "--like", path, "--seeds", "2")
    rows = {row["name"]: row for row in found["rows"]}
    for name in MODELLED:
        simulated = rows[name]["simulated"]
        assert simulated["status"] == "ok"
        least, most = simulated["range"]["wall_seconds"]
        assert 0 < least <= simulated["median"]["wall_seconds"] <= most
        assert simulated["wall_error"] == simulated["median"]["wall_seconds"] / 2.0 - 1
        assert simulated["range"]["storage_bytes"][0] >= 10_000 * 3083
        assert rows[name]["median"]["wall_seconds"] == 2.0, "as it was measured"
    assert rows["store@group"]["simulated"]["status"] == "ok"
    assert rows["mine@sequential"]["simulated"]["error"] == "not modelled: the program mine"
    assert rows["forebay@group"]["simulated"] is None
    assert found["simulation"]["seeds"] == [0, 1]
    assert found["simulation"]["costs"] == Costs.default().as_json()
    assert any("costs of another machine" in one for one in found["warnings"])


def test_the_job_is_that_of_the_result_on_one_machine_whose_processors_are_not_stretched():
    result = bench_result()
    request = like.request_like(result, Costs.default(), 9)
    job = request.job(like_row(), 8)
    assert job["machine"] == {"cores": 2, "memory_bytes": 24 << 30, "is_shared": True}
    assert (job["ranks"], job["nodes"], job["batch_size"], job["steps"]) == (8, 4, 64, None)
    assert (job["compute_us"], job["compute_jitter"]) == (1000.0, 0.0)
    assert job["rules"] == {"linux": {"read_ahead_bytes": 128 << 10}}
    assert job["storage"] == {**result["pfs"]["spec"], "cache_bytes": None}
    for key, one in Costs.default().as_json().items():
        if key.endswith("_bytes_per_second"):
            assert job["costs"][key] == one * 3.0
        elif key != "machine":
            assert job["costs"][key] == one / 3.0


def like_row():
    from forebay_lab.bench.strategies import Row

    return Row(strategy="forebay", order="sequential")


def test_costs_of_the_measured_machine_give_no_warning(capsys, tmp_path):
    path, costs = stored(tmp_path, bench_result()), tmp_path / "costs.toml"
    lines = {**Costs.default().as_json(), "machine": "a machine"}
    costs.write_text("".join(f"{key} = {json.dumps(one)}\n" for key, one in lines.items()))
    found = run_command_json(capsys, "simulate", "--like", path, "--seeds", "1", "--costs", str(costs))
    assert found["warnings"] == []


def test_the_table_has_both_sides_of_each_row(capsys, tmp_path):
    page = tmp_path / "page.html"
    arguments = ("--like", stored(tmp_path, bench_result()), "--seeds", "1", "--report", str(page))
    status, out, _ = run_command(capsys, "simulate", *arguments)
    assert status == 0
    assert "8 ranks on 4 nodes, nfs, time scale 3" in out
    cells = next(line.split() for line in out.splitlines() if line.startswith("forebay@sequential"))
    assert cells[1] == "2.000"
    assert any(line.split() == ["forebay@group", "failed"] for line in out.splitlines())
    text = page.read_text().partition('<section id="model"')[2].partition("</section>")[0]
    assert "lmdb@sequential: measured 2 s" in text


def test_a_result_of_version_2_is_taken(capsys, tmp_path):
    old = bench_result(version=2)
    del old["seed"], old["dataset"]["files"], old["machine"]["name"]
    found = run_command_json(capsys, "simulate", "--like", stored(tmp_path, old), "--seeds", "1")
    assert found["version"] == 3
    assert found["rows"][0]["simulated"]["status"] == "ok"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pfs": None}, "not modelled: a file system that is not emulated"),
        ({"cold": False}, "not modelled: files that are in the page cache"),
        ({"world_size": 16}, "not modelled: ranks that are a part of their job"),
        ({"tiers": ["local-nvme"]}, "not modelled: storage tiers"),
        (
            {"ranks_per_node": [5, 1, 1, 1]},
            "not modelled: nodes whose numbers of ranks differ by more than one",
        ),
        ({"epochs": 2, "steps": 3}, "not modelled: several epochs that are cut short"),
        ({"ranks": 0}, "key ranks: expected an integer of at least 1, found 0"),
        ({"machine": None}, "key machine: expected an object, found nothing"),
        ({"compute_seconds": "5ms"}, 'key compute_seconds: expected a number, found "5ms"'),
        ({"pfs": {"spec": {"name": "x"}, "time_scale": 1.0}}, "simulated job: missing field"),
        ({"version": 1}, "key version: expected 2 or 3, found 1"),
        ({"simulated": {}}, "expected a result of forebay bench, found one of simulated"),
    ],
)
def test_a_result_that_makes_no_job_is_refused(capsys, tmp_path, changes, message):
    path = stored(tmp_path, bench_result(**changes))
    status, _, err = run_command(capsys, "simulate", "--like", path)
    assert status != 0
    assert message in " ".join(err.split())


def test_the_job_is_given_once(capsys, tmp_path):
    path = stored(tmp_path, bench_result())
    status, _, err = run_command(capsys, "simulate", "--like", path, "--ranks", "4")
    assert status == 2
    assert "--like: the job is that of the result: leave --ranks out" in " ".join(err.split())
    status, _, err = run_command(capsys, "simulate", "--ranks", "4")
    assert status == 2
    assert "expected one of DATASET, --workload NAME and --like RESULT" in " ".join(err.split())


def test_a_bench_that_has_no_model_says_so_in_each_row(data, capsys):
    status, result = run_json(
        capsys, data, "--ranks", 1, "--cold", "--simulated", "--repetitions", 1, "--skip-verify",
        "--strategies", "forebay@sequential",
    )  # fmt: skip
    assert status == 0
    error = result["rows"][0]["simulated"]["error"]
    assert error.startswith("not modelled: a file system that is not emulated")
    assert result["simulation"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--simulated",), "--simulated: expected --cold"),
        (("--costs", "costs.toml"), "--costs is for simulated rows: add --simulated"),
        (("--simulated", "--cold", "--costs", "absent.toml"), "costs absent.toml: No such file"),
    ],
)
def test_options_of_simulated_rows_are_checked_first(data, capsys, arguments, message):
    status, _, err = run_command(capsys, "bench", str(data), *arguments)
    assert status != 0
    assert message in " ".join(err.split())


@emulator.needs_fuse
def test_the_model_fetches_the_bytes_that_the_emulator_counted(capsys, tmp_path, monkeypatch):
    data = support.write_lmdb(
        tmp_path / "train.lmdb", [support.record(number, 3083) for number in range(500)]
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    status, result = run_json(
        capsys, data, "--ranks", 2, "--nodes", 2, "--cold", "--pfs", "nfs", "--repetitions", 1, "--batch-size", 16,
        "--launcher", "processes", "--node-emulation", "environment", "--skip-verify", "--simulated",
        "--strategies", "forebay@sequential",
    )  # fmt: skip
    emulator.remove_all(tmp_path)
    assert status == 0, [row["error"] for row in result["rows"]]
    (row,) = result["rows"]
    fetched = sum(node["read_bytes"] for node in row["repetitions"][0]["pfs"]["nodes"])
    assert row["simulated"]["median"]["storage_bytes"] == pytest.approx(fetched, rel=0.02)
