"""Share each global batch between MPI ranks.

    pip install 'forebay[mpi]'
    mpiexec --oversubscribe -n 4 python -m mpi4py examples/mpi_ranks.py

The loader finds out by itself which ranks there are. mpi4py is here to make the dataset once and
to compare what the ranks got.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
from mpi4py import MPI

import forebay

SAMPLES, GLOBAL_BATCH = 1_000, 64


def main() -> None:
    """Iterate an epoch on all ranks; check that each sample came once."""
    comm = MPI.COMM_WORLD
    folder = tempfile.TemporaryDirectory() if comm.rank == 0 else None
    path = Path(comm.bcast(folder.name if folder else None)) / "train.npy"
    if comm.rank == 0:
        np.save(path, np.arange(SAMPLES * 8, dtype="float32").reshape(SAMPLES, 8))
    comm.barrier()

    # last_batch="partial": no sample comes twice, and the last step is shorter.
    with forebay.Loader(path, global_batch=GLOBAL_BATCH, order="shuffle", last_batch="partial") as loader:
        own: list[int] = []
        total = np.zeros(8)
        for batch in loader:
            own += batch.indices.tolist()
            # What gradients do in a training: each rank adds its part.
            total += comm.allreduce(batch["data"].sum(axis=0, dtype="float64"))
        world = loader.world
    print(f"rank {world.rank} of {world.size} on {world.node}: {len(own)} samples, {len(loader)} steps")

    everyone = comm.gather(own)
    if everyone is not None:
        assert sorted(itertools.chain.from_iterable(everyone)) == list(range(SAMPLES))
        assert total[0] == 8 * SAMPLES * (SAMPLES - 1) / 2
        print(f"each of the {SAMPLES} samples came once")
    if folder is not None:
        folder.cleanup()


if __name__ == "__main__":
    main()
