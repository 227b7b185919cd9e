"""How many samples ranks take on the node that holds them: ``own_samples.py FILE BATCH ORDER``.

A rank of MPI; each is a node of its own, by name. A node that takes a sample in most epochs holds
it: it takes its own samples first. Rank 0 prints what the loader expects, and what was found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import forebay
from forebay_lab.bench.facts import SCHEMA

EPOCHS = 5
"""A node takes another one's sample in three of five by a chance of one in a thousand."""
MEMORY = "256MiB"


def world_of_nodes(comm: MPI.Intracomm, job: str) -> forebay.World:
    """Each rank as a node of its own, linked over MPI."""
    return forebay.World(
        rank=comm.rank,
        size=comm.size,
        local_rank=0,
        local_size=1,
        node=f"node{comm.rank}",
        job=job,
        comm=comm,
    )


def main() -> None:
    """Count, for each sample, the epochs in which each node took it."""
    path, batch, order, answer = sys.argv[1:]
    comm = MPI.COMM_WORLD
    world = world_of_nodes(comm, Path(answer).parent.name)
    options = {"order": order, "node_memory": MEMORY, "world": world, "last_batch": "drop"}
    dataset = forebay.open(path, schema=SCHEMA)
    with forebay.Loader(dataset, int(batch), **options) as loader:
        local = loader.config.order.local
        taken = np.zeros(len(dataset), np.uint16)
        for _ in range(EPOCHS):
            for one in loader:
                taken[one.indices] += 1
    of_nodes = comm.gather(taken)
    if comm.rank == 0:
        by_node = np.stack(of_nodes)
        found = {
            "expected": local.local_share,
            "measured": float(by_node.max(axis=0).sum() / by_node.sum()),
        }
        Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
