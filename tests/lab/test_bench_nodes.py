"""forebay bench on several nodes: ranks in namespaces, uneven numbers of them, the results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import support
from forebay import OptionError, cli
from forebay_lab.bench import baselines, minimum_bytes, strategies
from forebay_lab.bench.settings import Settings
from forebay_lab.cluster import cluster as cluster_module
from support import cluster as nodes
from support.bench import run_json

# Tells on which host each rank ran, and how many processes there are: a node of its own has few.
WHERE = """
import os, socket
from forebay_lab.bench.baselines import Baseline
from forebay_lab.bench.baselines.pylmdb_skipping import open_skipping

def open_and_tell(place):
    processes = sum(name.isdigit() for name in os.listdir("/proc"))
    with open(os.environ["WHERE"] + f".{place.rank}", "w") as file:
        print(socket.gethostname(), place.node, processes < 60, file=file)
    return open_skipping(True, place)

BASELINES = (Baseline(name="where", order="sequential", about="", open=open_and_tell, formats=("lmdb",)),)
"""

HANGING = """
import time
from forebay_lab.bench.baselines import Baseline
from forebay_lab.bench.baselines.pylmdb_skipping import open_skipping

class Hanging:
    def __init__(self, place):
        self._inner = open_skipping(True, place)
    def epoch(self, number):
        for step in self._inner.epoch(number):
            print("@step 0", flush=True)
            time.sleep(600)
            yield step
    def facts(self):
        return {}
    def close(self):
        self._inner.close()

BASELINES = (Baseline(name="hangs", order="sequential", about="", open=Hanging, formats=("lmdb",)),)
"""


@pytest.mark.full
def test_a_strategy_whose_nodes_are_not_linked_is_said_to_go_on_alone(capsys, data):
    status, result = run_json(
        capsys, data, "--ranks", 2, "--nodes", 2, "--repetitions", 1, "--batch-size", 16, "--steps", 2,
        "--strategies", "lmm,lmm-dm", "--launcher", "processes", "--node-emulation", "environment",
    )  # fmt: skip
    assert status == 0
    (said,) = [one for one in result["warnings"] if "are not linked" in one]
    assert "in lmm-dm@sequential every node went on alone" in said


def test_nodes_may_have_different_numbers_of_ranks(says):
    settings = Settings(ranks=9, nodes=3, ranks_per_node=(5, 3, 1))
    assert settings.ranks_of_nodes() == ((0, 1, 2, 3, 4), (5, 6, 7), (8,))
    for wrong in ((5, 3), (5, 4, 1), (9, 0, 0)):
        with says(OptionError, "--ranks-per-node", 3):
            Settings(ranks=9, nodes=3, ranks_per_node=wrong)


@nodes.needs_nodes
@pytest.mark.mpi
@pytest.mark.parametrize("launcher", ["mpi", "processes"])
@pytest.mark.full
def test_ranks_run_on_nodes_of_their_own(capsys, data, tmp_path, monkeypatch, launcher):
    own = tmp_path / "where.py"
    own.write_text(WHERE)
    monkeypatch.setenv("WHERE", str(tmp_path / "rank"))
    status, result = run_json(
        capsys, data, "--ranks-per-node", "2,1", "--batch-size", 16, "--steps", 4, "--repetitions", 1,
        "--baseline", own, "--strategies", "where,forebay@sequential", "--launcher", launcher,
    )  # fmt: skip
    assert status == 0, [row["error"] for row in result["rows"]]
    assert (result["ranks"], result["nodes"], result["ranks_per_node"]) == (3, 2, [2, 1])
    assert result["global_batch"] == 48
    assert result["node_emulation"] == {"by": "namespaces", "reason": None}
    told = [(tmp_path / f"rank.{rank}").read_text() for rank in range(3)]
    assert told == ["node0 0 True\n", "node0 0 True\n", "node1 1 True\n"]
    assert all(one["equal"] for one in result["verified"])
    for row in result["rows"]:
        assert {rank["node"] for rank in row["repetitions"][0]["ranks"]} == {0, 1}


def test_where_nodes_cannot_be_made_the_result_says_so_and_why(capsys, data, monkeypatch):
    arguments = [
        data,
        "--ranks",
        2,
        "--nodes",
        2,
        "--batch-size",
        16,
        "--steps",
        2,
        "--repetitions",
        1,
        "--skip-verify",
    ]
    arguments += ["--launcher", "processes", "--strategies", "forebay@sequential"]
    monkeypatch.setattr(cluster_module, "missing", lambda: "the kernel has no namespaces")
    status, result = run_json(capsys, *arguments)
    assert status == 0
    assert result["node_emulation"]["by"] == "environment"
    assert "no namespaces" in result["node_emulation"]["reason"]
    assert any("no namespaces" in warning for warning in result["warnings"])
    # Who asks for namespaces gets them or nothing.
    assert cli.main(["bench", *map(str, arguments), "--node-emulation", "namespaces"]) == 1
    assert "no namespaces" in capsys.readouterr().err
    # Who asks for the environment is not warned of it.
    status, result = run_json(capsys, *arguments, "--node-emulation", "environment")
    assert result["node_emulation"]["by"] == "environment"
    assert not any("environment" in warning for warning in result["warnings"])


@pytest.mark.full
@nodes.needs_nodes
@pytest.mark.mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, *[signal.SIGTERM] * support.LONG])
def test_an_interrupted_bench_leaves_no_process_on_any_node(data, tmp_path, number):
    own = tmp_path / "hanging.py"
    own.write_text(HANGING)
    command = [
        sys.executable,
        "-m",
        "forebay",
        "bench",
        str(data),
        "--nodes",
        "2",
        "--ranks",
        "2",
        "--baseline",
        str(own),
    ]
    with subprocess.Popen(
        [*command, "--strategies", "hangs", "--skip-verify"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as bench:
        try:
            # Keeper and nodes, the launcher, a daemon on each node, the ranks.
            processes = nodes.wait_for_descendants(
                bench.pid, lambda line: "forebay_lab.bench.rank" in line, 2
            )
        finally:
            os.kill(bench.pid, number)
    nodes.wait_until_gone(processes)


def test_the_ladder_is_the_rows_of_the_paper_in_their_order():
    rows = strategies.parse("ladder,forebay", "group", baselines.find())
    ladder = [f"{name}@sequential" for name in strategies.LADDER]
    assert [row.name for row in rows] == [*ladder, "forebay@group"]


@pytest.mark.full
def test_a_global_batch_is_shared_out_between_the_ranks_of_the_job(capsys, data):
    arguments = [
        data,
        "--ranks",
        3,
        "--steps",
        2,
        "--repetitions",
        1,
        "--skip-verify",
        "--strategies",
        "forebay",
    ]
    _, result = run_json(capsys, *arguments, "--global-batch", 24, "--launcher", "processes")
    assert (result["batch_size"], result["global_batch"]) == (8, 24)
    assert cli.main(["bench", *map(str, arguments), "--global-batch", "25"]) == 2
    assert "expected a multiple of 3 ranks, found 25" in capsys.readouterr().err
    assert cli.main(["bench", *map(str, arguments), "--global-batch", "24", "--batch-size", "8"]) == 2
    assert "found both" in capsys.readouterr().err


def test_the_minimum_is_every_page_of_the_records_once(tmp_path):
    # Four records lie in one leaf page, one of three pages in pages of its own.
    data = support.write_lmdb(tmp_path / "few.lmdb", [b"x" * 500] * 4 + [b"y" * 9000])
    assert minimum_bytes.minimum_bytes([str(data)], [[0, 1], [1, 2]]) == 4096
    assert minimum_bytes.minimum_bytes([str(data)], [[4], [4, 4]]) == 3 * 4096
    assert minimum_bytes.minimum_bytes([str(data)], [[0], [4]]) == 4 * 4096
