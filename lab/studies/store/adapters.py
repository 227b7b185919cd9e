"""Clients of the store that take their batches through an adapter.

The environment of the framework tests runs this section: ``.venv-frameworks/bin/python
lab/studies store tensorflow``.
"""

from __future__ import annotations

from forebay_lab.cluster import Cluster
from studies.harness.samples import Samples
from studies.harness.sections import Row, Scope
from studies.store.jobs import Job, run_job

__all__ = ["tensorflow"]

LINK_RATE = 2_000_000_000
NODES = 2
CLIENTS = (1, 2, 4, 8)
SAMPLE_BYTES = 110_000
DATA_BYTES = 384 << 20
EPOCHS = 4
BATCH = 16
MEMORY_MIB = 32
"""Budget of a rank."""
ADAPTERS = ("", "tensorflow.loader", "tensorflow.dataset")


def tensorflow(scope: Scope) -> list[Row]:
    """Rate of all clients from the second epoch on, by the adapter and the clients of a node."""
    samples = Samples.about(scope, SAMPLE_BYTES, DATA_BYTES)
    path = str(samples.make("npy").resolve())
    rows: list[Row] = []
    with Cluster(NODES, link_rate=LINK_RATE) as cluster:
        for clients in scope.pick(CLIENTS, (1, 2)):
            rates: dict[str, float] = {}
            for adapter in ADAPTERS:
                job = Job(
                    path,
                    NODES,
                    clients,
                    BATCH,
                    epochs=EPOCHS,
                    memory=f"{MEMORY_MIB * clients}MiB",
                    adapter=adapter,
                )
                ranks = run_job(cluster, job)
                rates[adapter] = sum(_rate(rank["waits"]) for rank in ranks)
                rows.append(
                    {
                        "clients": clients,
                        "adapter": f"forebay.{adapter}" if adapter else "forebay.Loader",
                        "mb_per_s": rates[adapter] / 1e6,
                        "over_loader": rates[adapter] / rates[""],
                        "clients_in_all": len(ranks),
                    }
                )
    return rows


def _rate(waits: list[float]) -> float:
    """Return the rate of a rank after its first epoch [bytes/s]."""
    later = waits[len(waits) // EPOCHS :]
    return len(later) * BATCH * SAMPLE_BYTES / sum(later)
