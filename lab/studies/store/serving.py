"""What a store takes of a node's memory, and what a rank that computes does to the others."""

from __future__ import annotations

import statistics
from functools import partial

from forebay_lab.bench.turns import in_turn
from forebay_lab.cluster import Cluster
from studies.harness.samples import Samples
from studies.harness.sections import MIB, Row, Scope
from studies.store.jobs import Job, run_job

LINK_RATE = 2_000_000_000
MEMORY_BYTES = 384 << 20
BUDGET_MIB = 48
PROCESS_BYTES = 100 * 1_000_000
"""What the bar grants a process beside share and budget."""
COMPUTE_S = 5.0
PACE_S = 0.01
COMPUTE_STEP = 100
COMPUTE_BYTES = 1 << 30
ROUNDS = 3


def memory(scope: Scope) -> list[Row]:
    """Proportional memory of all processes of a node, beside share and budget."""
    rows: list[Row] = []
    for nodes, per_node in scope.pick(((2, 1), (4, 1), (4, 4)), ((2, 1),)):
        samples = Samples.about(scope, 110_000, MEMORY_BYTES)
        path = str(samples.make("npy").resolve())
        with Cluster(nodes, link_rate=LINK_RATE) as cluster:
            found = run_job(
                cluster, Job(path, nodes, per_node, 16, epochs=3, memory=f"{BUDGET_MIB * per_node}MiB")
            )
        for_node = [sum(rank["pss_bytes"] for rank in found if rank["node"] == node) for node in range(nodes)]
        share = max(rank["share_bytes"] for rank in found)
        granted = share + BUDGET_MIB * per_node * MIB + PROCESS_BYTES * per_node
        rows.append(
            {
                "nodes": nodes,
                "ranks_per_node": per_node,
                "share_mib": share / MIB,
                "budget_mib": BUDGET_MIB * per_node,
                "pss_mib": max(for_node) / MIB,
                "granted_mib": granted / MIB,
                "of_granted": max(for_node) / granted,
            }
        )
    return rows


def compute(scope: Scope) -> list[Row]:
    """Waits of the other ranks while one computes, against those while another process does."""
    samples = Samples.about(scope, 1 << 16, COMPUTE_BYTES)
    path = str(samples.make("npy").resolve())
    names = {"": "nothing", "beside": "another process of the node", "rank": "the leader of the node"}
    with Cluster(2, link_rate=LINK_RATE) as cluster:

        def waits(which: str) -> list[float]:
            job = Job(
                path, 2, 2, 4, pace_s=scope.pick(PACE_S, 0.001), memory="64MiB", computes=which,
                compute_step=scope.pick(COMPUTE_STEP, 10), compute_s=scope.pick(COMPUTE_S, 0.3),
            )  # fmt: skip
            return [wait for rank in run_job(cluster, job)[1:] for wait in rank["waits"][1:]]

        measures = {name: partial(waits, which) for which, name in names.items()}
        found = in_turn(measures, scope.pick(ROUNDS, 1), warm_ups=0)
    return [
        {
            "computes": name,
            "steps": len(runs[0]),
            "longest_ms": statistics.median(max(one) for one in runs) * 1e3,
            "p99_ms": statistics.median(statistics.quantiles(one, n=100)[98] for one in runs) * 1e3,
            "median_ms": statistics.median(statistics.median(one) for one in runs) * 1e3,
        }
        for name, runs in found.items()
    ]
