"""Why ranks wait: bytes that walks read in vain (figure 7), seeks by how far nodes are apart
(figure 9), and which nodes wait (figures 16a and 19)."""

from __future__ import annotations

import statistics

from forebay_lab.bench.baselines import find
from forebay_lab.bench.strategies import parse
from forebay_lab.pfs.start import Wanted
from forebay_lab.simulate import Request, runs
from forebay_lab.simulate.source import of_workload
from studies.harness.sections import MIB, Row, Scope
from studies.simulate.lmdbio import jobs

__all__ = ["nodes", "order", "redundant"]

_RANKS, _RANKS_PER_NODE, _BATCH = 576, 36, 18_432
_SKEWS_MS = (0.0, 20.0)
"""Within which nodes begin."""
_STEPS = 64


def redundant(scope: Scope) -> list[Row]:
    """Read with LMDB, one rank per node: bytes that a rank fetches, by the number of ranks."""
    words = ("--pfs", "bebop", "--ranks-per-node", "1", "--compute", "0s")
    result = jobs.simulated(
        scope, "cifar10-large", (1, 4, 16, 64), ("pylmdb-skipping", "lmdb"), *words, each=36
    )
    found = [row for _, rows in jobs.points(result) for row in rows.values()]
    nodes_of = {point["ranks"]: point["nodes"] for point in result["points"]}
    alone = {row["name"]: row for row in reversed(found)}
    for row in found:
        base = alone[row["name"]]
        row["ratio"] = row["amplification"] / base["amplification"]
        # Each node fetches the samples of all ranks, R x B.
        row["published"] = nodes_of[row["ranks"]] / nodes_of[base["ranks"]]
    return found


def order(scope: Scope) -> list[Row]:
    """Read the slices of a step with a root per node (LMM-DIO-PROV): requests out of turn."""
    source = of_workload("cifar10-large", "bebop-9216", scope.pick(0.05, 0.002), None)
    (row,) = parse(f"lmm-dio-prov{jobs.ONE_ROOT}", "sequential", find(()))
    sizes = scope.pick((36, 72, 144, 288, 576, 1152, 2304, 4608, 9216), (72, 144))
    request = Request(
        places=source.places,
        dataset=source.dataset,
        spec=Wanted(preset="bebop").resolve(),
        ranks=sizes,
        ranks_per_node=_RANKS_PER_NODE,
        global_batch=_BATCH,
        steps=scope.pick(_STEPS, 2),
        compute_seconds=0.0,
    )
    found = []
    for skew_ms in _SKEWS_MS:
        for ranks in sizes:
            job = {**request.job(row, ranks), "start_skew_us": 1e3 * skew_ms}
            made = runs.run(job, source.places, list(range(scope.repetitions)))
            sizes_of = {"ranks": ranks, "nodes": ranks // _RANKS_PER_NODE, "start_skew_ms": skew_ms}
            found.append({**sizes_of, **_requests(made)})
    return found


def _requests(made: list[runs.Simulated]) -> Row:
    shares, rates = [], []
    for one in made:
        servers = one["pfs"]["servers"]
        shares.append(sum(server["seeks"] for server in servers) / sum(server["reads"] for server in servers))
        rates.append(one["requested_bytes"] / MIB / one["wall_seconds"])
    return {
        "seek_share": statistics.median(shares),
        "seek_share_low": min(shares),
        "seek_share_high": max(shares),
        "mib_s": statistics.median(rates),
    }


def nodes(scope: Scope) -> list[Row]:
    """Read with roots that walk (LMM) and with roots that read (LMM-DIO): waits of each node."""
    names = tuple(f"{name}{jobs.ONE_ROOT}" for name in ("lmm", "lmm-dio"))
    options = (*jobs.BEBOP, "--compute", "0s")
    result = jobs.simulated(scope, "cifar10-large", (_RANKS,), names, *options, batch=_BATCH)
    found = []
    for row in result["rows"]:
        # A result has some ranks of each node, which are alike.
        waits: dict[int, list[tuple[float, float]]] = {}
        for one in row["repetitions"]:
            of_nodes = {rank["node"]: rank for rank in one["ranks"]}
            for node, rank in of_nodes.items():
                parts = (rank["exposed_seconds"] / one["steps"], rank["skew_seconds"] / one["steps"])
                waits.setdefault(node, []).append(parts)
        for node, parts in sorted(waits.items()):
            read, skew = (1e3 * statistics.median(one) for one in zip(*parts, strict=True))
            found.append({"name": jobs.strategy_of(row), "node": node, "read_ms": read, "skew_ms": skew})
    return found
