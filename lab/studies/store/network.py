"""Emulated nodes that all serve each other, run by run in step: what `transfer` measures there.

Each node runs a server of its own memory, and one program whose clients ask the servers of all
other nodes. Both are ``crates/forebay-transport/examples/transfer.rs``, or ``objects.py``. The link
of each node is limited to a rate in each direction.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence

from forebay_lab.cluster import Cluster
from forebay_lab.ranks.rusage import processors
from studies.harness import cargo
from studies.harness.program import Program
from studies.harness.sections import Row

__all__ = ["Network", "network"]

PORT = 7000
ANSWER_S = 300.0
"""Against a run that hangs."""


class Network:
    """Nodes with servers that are up."""

    def __init__(self, cluster: Cluster, program: Sequence[str], link_rate: int) -> None:
        self._cluster, self._program, self.link_rate = cluster, list(program), link_rate
        self.nodes = len(cluster.names)
        self.addresses = [f"{_address(cluster, node)}:{PORT}" for node in range(self.nodes)]

    def serve(self, *options: str) -> list[Program]:
        """Start a server on each node."""
        return [
            self._start(node, "serve", f"address={address}", *options)
            for node, address in enumerate(self.addresses)
        ]

    def compare(self, *options: str, servers: Sequence[int] | None = None) -> list[Row]:
        """Run clients on all nodes, each run at once everywhere; join what the nodes report.

        `servers` are the nodes that serve [default: all]; clients run on all others then. A row has
        the options of a run, payload of all nodes per second and time of all processors in it.
        """
        clients = [node for node in range(self.nodes) if servers is None or node not in servers]
        programs = []
        for node in clients:
            peers = [peer for peer in servers or range(self.nodes) if peer != node]
            own = node if servers is None else servers[0]
            programs.append(
                self._start(
                    node, "compare", f"address={','.join(self.addresses[peer] for peer in peers)}",
                    f"cpu={self.addresses[own]}", "lockstep=yes", *options,
                )
            )  # fmt: skip
        try:
            return list(self._runs(programs))
        finally:
            for one in programs:
                one.close(0.0)

    def _runs(self, programs: Sequence[Program]) -> Iterator[Row]:
        while True:
            lines = [one.line() for one in programs]
            if any(line.startswith("{") for line in lines):
                return
            before = processors()
            for one in programs:
                one.send("")
            found = [json.loads(one.line()) for one in programs]
            busy, all_of = (now - then for now, then in zip(processors(), before, strict=True))
            rate = sum(one["mb_per_s"] for one in found) * 1e6
            # What a run takes is not known here, but all of its shares are.
            yield {
                **{key: found[0][key] for key in ("mode", "clients", "sample_bytes")},
                "nodes": self.nodes,
                "link_mb_s": self.link_rate / 8e6,
                "mb_per_s": rate / 1e6,
                "link_share": rate / len(found) / (self.link_rate / 8),
                "processor_share": busy / all_of,
                "cpu_s_per_gib": sum(
                    one["mb_per_s"] * (one["server_cpu_s_per_gib"] + one["client_cpu_s_per_gib"])
                    for one in found
                )
                / sum(one["mb_per_s"] for one in found),
                "of_clients": [one["of_clients"] for one in found],
            }

    def _start(self, node: int, *words: str) -> Program:
        program = Program(self._cluster.on(node, [*self._program, *words]), answer_s=ANSWER_S)
        if words[0] == "serve" and program.line() != "ready":
            raise RuntimeError(f"{self._cluster.names[node]}: the server did not start")
        return program


@contextlib.contextmanager
def network(nodes: int, link_rate: int, *options: str, program: Sequence[str] = ()) -> Iterator[Network]:
    """Make nodes and their servers; `link_rate` in bit/s."""
    with Cluster(nodes, link_rate=link_rate) as cluster:
        made = Network(cluster, program or [str(cargo.example("forebay-transport", "transfer"))], link_rate)
        servers = made.serve(*options)
        try:
            yield made
        finally:
            for one in servers:
                one.close()


def _address(cluster: Cluster, node: int) -> str:
    return cluster.call(node, "hostname", "-i").split()[0]
