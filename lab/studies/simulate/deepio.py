"""Sections of the paper on multi-client DeepIO (Zhu et al., 2018): figures 2 and 3.

The text publishes ratios only. Forebay's in-memory store takes the place of DeepIO.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import msgspec

from forebay_lab.bench import workload as workloads
from forebay_lab.bench.strategies import Row as Asked
from forebay_lab.bench.strategies import parse
from forebay_lab.pfs.start import Wanted
from forebay_lab.simulate import Request
from forebay_lab.simulate.costs import Costs
from forebay_lab.simulate.places import Places
from forebay_lab.simulate.programs import TENSORFLOW_NS, Program
from forebay_lab.simulate.result import simulate_row
from studies.harness.sections import Row, Scope
from studies.simulate.group_reads import NO_COST, ROW

PFS = "beegfs"
CORES = 32
"""Of a node: the paper does not say."""
NODES = 8
CLIENTS = (8, 16, 32, 64, 128)
"""Of all nodes: figure 2."""
TRANSFER_BYTES = 256_000
DATA_BYTES = 32 * 10**9
"""Section 3: 256 KB of 32 GB at random."""
OVER_BEEGFS = 5.1
"""Least ratio of the rates, section 3."""
BATCH_SAMPLES = 32
"""Of a client and step, 8 MB: 128 clients take 31 steps per epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What clients read from, and how."""

    program: Program | None = None
    """None: the in-memory store."""
    rdma: bool = False
    """Serving and receiving take no processor."""
    element_ns: float = 0.0
    """What the script takes for an element of the store."""

    @property
    def row(self) -> Asked:
        """The row of the bench."""
        return parse("store@shuffle", "shuffle", {})[0] if self.program is None else ROW

    @property
    def programs(self) -> dict[str, Program]:
        """What has a model."""
        return {} if self.program is None else {ROW.strategy: self.program}

    def costs(self) -> Costs:
        """Return the processor times."""
        costs = Costs.default()
        return (
            msgspec.structs.replace(costs, serve_ns=0.0, serve_bytes_per_second=NO_COST)
            if self.rdma
            else costs
        )


N_TO_N = Program(order="contiguous", description={"samples": {"access": "read", "workers": 1, "ahead": 1}})
"""Each client reads a file of its own from begin to end."""
SYSTEMS = {
    "BeeGFS, N to N": System(program=N_TO_N),
    "store, RDMA": System(rdma=True),
    "store, TCP": System(),
    "store through TensorFlow": System(rdma=True, element_ns=TENSORFLOW_NS),
}
"""Figure 2a has BeeGFS and DeepIO; figure 2b DeepIO through its TensorFlow API."""


def bandwidth(scope: Scope) -> list[Row]:
    """Rate of all clients on eight nodes, figure 2."""
    found = []
    for clients in scope.few(CLIENTS):
        rates = {name: _rates(system, clients, scope) for name, system in SYSTEMS.items()}
        beegfs = statistics.median(rates["BeeGFS, N to N"])
        for name, runs in rates.items():
            rate = statistics.median(runs)
            found.append(
                {
                    "name": name,
                    "clients": clients,
                    "clients_per_node": clients // NODES,
                    "rate_mb_s": rate,
                    "rate_mb_s_low": min(runs),
                    "rate_mb_s_high": max(runs),
                    "over_beegfs": rate / beegfs,
                    "published_over_beegfs": OVER_BEEGFS if name == "store, RDMA" else None,
                }
            )
    return found


def _rates(system: System, clients: int, scope: Scope) -> list[float]:
    """Rates of the runs [MB/s]: of a program's one epoch, and of the second one of a store."""
    samples = DATA_BYTES // TRANSFER_BYTES
    request = Request(
        places=Places.of(
            "uniform",
            samples=samples,
            files=1 if system.program is None else clients,
            stride_bytes=TRANSFER_BYTES,
            sample_bytes=TRANSFER_BYTES,
        ),
        dataset={},
        spec=Wanted(preset=PFS).resolve(),
        ranks=(clients,),
        ranks_per_node=clients // NODES,
        batch_size=BATCH_SAMPLES,
        epochs=2 if system.program is None else 1,
        compute_seconds=BATCH_SAMPLES * system.element_ns * 1e-9,
        cores=CORES,
        costs=system.costs(),
        programs=system.programs,
    )
    runs = simulate_row(request, system.row, clients, list(range(scope.repetitions)))["repetitions"]
    epochs = [one["by_epoch"][-1] for one in runs]
    return [one["requested_bytes"] / one["seconds"] / 1e6 for one in epochs]


TRAINING_NODES = (1, 2, 4, 8)
"""Figure 3; the text names none."""
TRAINING_EPOCHS = 30
"""Ours: until the caches of eight nodes hold nearly all."""


def training(scope: Scope) -> list[Row]:
    """An epoch of CIFAR-10 by nodes, figure 3, without the computation, which is not published."""
    workload = workloads.load("deepio-cifar10")
    batch = workload.variant().batch_samples
    through = Program(
        order="shuffle",
        description={"samples": {"access": "read", "sample_ns": TENSORFLOW_NS, "workers": 1, "ahead": 2}},
    )
    systems = {
        "BeeGFS": System(program=through),
        "store": System(rdma=True, element_ns=TENSORFLOW_NS),
    }
    found = []
    for nodes in scope.few(TRAINING_NODES):
        for name, system in systems.items():
            request = Request(
                places=Places.of(
                    "uniform",
                    samples=workload.samples,
                    stride_bytes=workload.sample.bytes,
                    sample_bytes=workload.sample.bytes,
                ),
                dataset={},
                spec=Wanted(preset=PFS).resolve(),
                ranks=(nodes,),
                ranks_per_node=1,
                batch_size=batch,
                epochs=TRAINING_EPOCHS,
                compute_seconds=batch * system.element_ns * 1e-9,
                cores=CORES,
                costs=system.costs(),
                programs=system.programs,
            )
            row = simulate_row(request, system.row, nodes, list(range(scope.repetitions)))
            epochs = [
                statistics.median(epoch["seconds"] for epoch in one)
                for one in zip(*(run["by_epoch"] for run in row["repetitions"]), strict=True)
            ]
            mean = statistics.fmean(epochs)
            found.append(
                {
                    "name": name,
                    "nodes": nodes,
                    "first_epoch_seconds": epochs[0],
                    "last_epoch_seconds": epochs[-1],
                    "epoch_seconds": mean,
                    "iteration_ms": 1e3 * mean * TRAINING_EPOCHS / row["steps"],
                }
            )
        store = found[-1]["epoch_seconds"]
        for one in found[-2:]:
            one["over_store"] = one["epoch_seconds"] / store
    return found


SECTIONS = {"deepio-clients": bandwidth, "deepio-nodes": training}
