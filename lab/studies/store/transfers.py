"""Transfers between nodes: the store's against bare ones, single requests, and Python objects.

Emulated nodes serve each other, each over a link of a limited rate, so that the processors are not
what limits a bare transfer. A round runs all shapes and modes once; ratios are of one round.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from studies.harness.sections import Row, Scope
from studies.store.network import Network, network

LINK_RATES = {2: 2_000_000_000, 4: 1_000_000_000, 8: 500_000_000}
"""Of a node's link in each direction, by nodes [bit/s]: a bare transfer takes half of two cores."""
GET_LINK_RATES = (2_000_000_000, 10_000_000_000)
"""Where requests cost more than the link, and where the processors limit all."""
CLIENTS = (1, 2, 4, 8, 16)
SAMPLE_BYTES = (3_072, 4_096, 1 << 16, 1 << 20)
OCTOPUS_BYTES = 256_000
BATCH_BYTES = 1 << 20
ROUNDS = 3
SECONDS = {2: 0.7, 4: 1.2, 8: 5.0}
"""Of a run, by nodes: many batches of each client."""
GET_CLIENTS, GET_BYTES = (1, 4, 16), (3_072, 1 << 16)
HEAVY = 100


def transfers(scope: Scope) -> list[Row]:
    """Rates of bare transfers and of the store's, and their ratio."""
    shapes: list[tuple[int, Sequence[int], Sequence[int]]] = scope.pick(
        [(2, CLIENTS, SAMPLE_BYTES), (4, CLIENTS, SAMPLE_BYTES), (8, (1, 16), (OCTOPUS_BYTES,))],
        [(2, (1, 2), (4_096,))],
    )
    rows: list[Row] = []
    for nodes, clients, sizes in shapes:
        with network(nodes, LINK_RATES[nodes], "share_mib=128") as made:
            found = rounds_of(scope, made, clients, sizes, "modes=bare,fetch")
        for sample_bytes in sizes:
            for count in clients:
                bare, fetch = (of(found, mode, count, sample_bytes) for mode in ("bare", "fetch"))
                most = of(found, "fetch", clients[-1], sample_bytes)
                rows.append(
                    joined(fetch)
                    | {
                        "bare_mb_per_s": median(bare, "mb_per_s"),
                        "bare_cpu_s_per_gib": median(bare, "cpu_s_per_gib"),
                        "bare_processor_share": median(bare, "processor_share"),
                        "ratio": ratio(fetch, bare),
                        "of_most": ratio(fetch, most),
                    }
                )
    return rows


def gets(scope: Scope) -> list[Row]:
    """One request per batch and peer, against one per sample, and against Python objects."""
    clients, sizes = scope.pick((GET_CLIENTS, GET_BYTES), ((1, 2), (3_072,)))
    program = [sys.executable, "-m", "studies.store.objects"]
    rows: list[Row] = []
    for rate in scope.pick(GET_LINK_RATES, GET_LINK_RATES[:1]):
        with network(2, rate, "share_mib=128") as made:
            found = rounds_of(scope, made, clients, sizes, "modes=bare,fetch,get,pipelined")
        with network(2, rate, program=program) as made:
            found += rounds_of(scope, made, clients, sizes)
        for sample_bytes in sizes:
            for count in clients:
                fetch = of(found, "fetch", count, sample_bytes)
                for mode in ("bare", "fetch", "get", "pipelined", "objects"):
                    one = of(found, mode, count, sample_bytes)
                    rows.append(joined(one) | {"ratio": ratio(fetch, one)})
    return rows


def fairness(scope: Scope) -> list[Row]:
    """16 clients of a node, one of which asks for 100 times as much: what each gets."""
    rows: list[Row] = []
    for sample_bytes, batch in scope.pick(((3_072, 80), (1 << 16, 4)), ((1 << 16, 4),)):
        with network(2, LINK_RATES[2], "share_mib=512") as made:
            found = made.compare(
                "clients=16", f"sample_bytes={sample_bytes}", f"batch={batch}", f"heavy={HEAVY}", "modes=fetch",
                f"rounds={scope.pick(ROUNDS, 1)}", f"seconds={scope.pick(3.0, 0.3)}", "share_mib=512",
                servers=[0],
            )  # fmt: skip
        shares = [[rate * 16 / sum(one) for rate in one] for run in found for one in run["of_clients"]]
        rows.append(
            joined(found)
            | {
                "request_bytes": sample_bytes * batch,
                "heavy_request_bytes": sample_bytes * batch * HEAVY,
                "heavy_share": statistics.median(one[0] for one in shares),
                "least_share": statistics.median(min(one[1:]) for one in shares),
                "median_share": statistics.median(statistics.median(one[1:]) for one in shares),
            }
        )
    return rows


def rounds_of(
    scope: Scope, made: Network, clients: Sequence[int], sizes: Sequence[int], *more: str
) -> list[Row]:
    """All runs of the shapes."""
    return made.compare(
        f"clients={','.join(map(str, clients))}", f"sample_bytes={','.join(map(str, sizes))}",
        f"batch_bytes={BATCH_BYTES}", f"rounds={scope.pick(ROUNDS, 1)}",
        f"seconds={scope.pick(SECONDS[made.nodes], 0.1)}", "share_mib=128", *more,
    )  # fmt: skip


def of(found: Sequence[Row], mode: str, clients: int, sample_bytes: int) -> list[Row]:
    """Runs of a shape, round by round."""
    wanted = {"mode": mode, "clients": clients, "sample_bytes": sample_bytes}
    return [row for row in found if all(row[key] == value for key, value in wanted.items())]


def ratio(one: Sequence[Row], other: Sequence[Row]) -> float:
    """Median over the rounds of the ratio of two rates."""
    return statistics.median(
        a["mb_per_s"] / b["mb_per_s"] if b["mb_per_s"] else float("nan")
        for a, b in zip(one, other, strict=True)
    )


def median(found: Sequence[Row], key: str) -> float:
    """Median over the rounds."""
    return statistics.median(one[key] for one in found)


def joined(found: Sequence[Row]) -> Row:
    """What rounds have in common, and medians of the rest."""
    same = {key: found[0][key] for key in ("mode", "nodes", "clients", "sample_bytes", "link_mb_s")}
    return same | {
        key: median(found, key) for key in ("mb_per_s", "link_share", "cpu_s_per_gib", "processor_share")
    }
