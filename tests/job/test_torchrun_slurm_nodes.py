"""Ranks of torchrun or SLURM on several nodes, without MPI: nodes are linked if possible."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import warnings

import pytest

import forebay
import support
from forebay._job import slurm, tcp
from forebay._job.world import identify
from forebay_lab.cluster import Cluster
from support import cluster as nodes

_jobs = itertools.count(1)

# A rank that walks until another one is lost. It says "walking", then which error it got.
WALK = """
import sys, time, warnings
import forebay
loader = forebay.Loader(sys.argv[1], 4, node_memory="32MiB", order="shuffle")
print("walking", flush=True)
try:
    while True:
        for batch in loader:
            time.sleep(0.005)
except forebay.PeerLostError as lost:
    print("lost:", lost, flush=True)
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    values = [support.record(number, 2000) for number in range(100)]
    return str(support.write_lmdb(tmp_path_factory.mktemp("records") / "records.lmdb", values))


def by_torchrun(rank, size, local_size, host="127.0.0.1", job=0):
    """The environment of a rank; ranks are numbered node by node."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank % local_size),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": f"test-{os.getpid()}-{job}",
    }


def by_slurm(rank, size, local_size, host="localhost", job=0):
    """The environment of a rank; ranks are dealt to the nodes in turn."""
    count = size // local_size
    return {
        "SLURM_JOB_ID": f"{os.getpid()}",
        "SLURM_STEP_ID": str(job),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank // count),
        "SLURM_NODEID": str(rank % count),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_TASKS_PER_NODE": f"{local_size}(x{count})",
        "SLURM_DISTRIBUTION": "cyclic",
        "SLURM_STEP_NODELIST": f"{host},another[2-3]",
    }


@pytest.mark.parametrize(("launched", "node_of"), [(by_torchrun, (0, 0, 1, 1)), (by_slurm, (0, 1, 0, 1))])
@pytest.mark.parametrize("victim", [1, 3])
def test_a_death_on_one_node_is_told_on_the_others(tmp_path, records, launched, node_of, victim):
    job = next(_jobs)
    ranks = []
    try:
        for rank, node in enumerate(node_of):
            environment = launched(rank, 4, 2, job=job) | {"FOREBAY_NODE": f"node{node}"}
            ranks.append(nodes.Program([sys.executable, "-W", "error", "-c", WALK, records], **environment))
        for rank in ranks:
            support.wait_until(lambda rank=rank: rank.said("walking"), "the ranks to walk")
        os.kill(ranks[victim]._process.pid, signal.SIGKILL)
        for number, rank in enumerate(ranks):
            code, said, errors = rank.finish(support.TOLD_WITHIN_S)
            if number != victim:
                assert code == 0, errors
                assert f"rank {victim} " in said
                assert f"node{node_of[victim]}" in said or node_of[number] == node_of[victim]
    finally:
        for rank in ranks:
            rank.drop()


@nodes.needs_nodes
def test_ranks_in_networks_of_their_own_find_each_other_by_the_name_of_the_first_node(records):
    with Cluster(2) as emulated:
        ranks = [
            nodes.Program(
                emulated.on(rank, [sys.executable, "-W", "error", "-c", WALK, records]),
                **by_torchrun(rank, 2, 1, emulated.names[0]),
            )
            for rank in range(2)
        ]
        for rank in ranks:
            support.wait_until(lambda rank=rank: rank.said("walking"), "the ranks to walk")
        emulated.unplug(1)
        code, said, errors = ranks[0].finish(support.TOLD_WITHIN_S)
    ranks[1].drop()
    assert code == 0, errors
    assert "rank 1 " in said


@pytest.mark.parametrize("rank", [0, 1])
def test_a_job_whose_nodes_do_not_reach_each_other_goes_on_with_one_warning(monkeypatch, records, rank):
    job = next(_jobs)
    for key, value in by_torchrun(rank, 2, 1, job=job).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(tcp, "JOIN_WITHIN_S", 0.3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("train", "test"):
            with forebay.Loader(records, 5, node_memory="32MiB", order="sequential", name=name) as loader:
                assert [len(batch.indices) for batch in loader] == [5] * 10
    (warning,) = caught
    assert f"rank {1 - rank}" in str(warning.message)


def test_nodes_that_are_not_linked_cannot_share_out_the_data(monkeypatch, records):
    for key, value in by_torchrun(0, 2, 1, job=next(_jobs)).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(tcp, "JOIN_WITHIN_S", 0.3)
    with pytest.warns(RuntimeWarning, match="rank 1"), pytest.raises(forebay.OptionError) as raised:
        forebay.Loader(records, 5, node_memory="32MiB", order="local-shuffle")
    assert "not linked" in str(raised.value)
    assert 'order="shuffle"' in str(raised.value)


def test_a_launcher_that_says_where_rank_0_is_and_emulated_nodes_are_read():
    found = identify("auto", 5, by_torchrun(3, 4, 2) | {"FOREBAY_NODE": "b"})
    assert (found.node, found.address, found.local_ranks) == ("b", "127.0.0.1", (2, 3))
    found = identify("auto", 5, by_slurm(3, 4, 2, "gpu[07-09,12]") | {"FOREBAY_NODE": "b"})
    assert (found.node, found.address, found.local_ranks) == ("b", "gpu07", (1, 3))
    alone = {key: value for key, value in by_torchrun(3, 4, 2).items() if key != "MASTER_PORT"}
    assert identify("auto", 5, alone).address is None


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu[07-09,12],login", "gpu07"),
        ("node3", "node3"),
        ("node3,node4", "node3"),
        ("rack[2-3]node[10-12]-ib", "rack2node10-ib"),
        ("n[5,7]", "n5"),
        ("", None),
        ("n[x]", None),
        ("n[1", None),
    ],
)
def test_the_first_host_of_a_list_of_slurm(hosts, first):
    assert slurm.first_host(hosts) == first
