"""Share each global batch between processes that a script starts itself.

    python examples/processes.py

No launcher sets the environment here, so each process states its place with forebay.World.
"""

from __future__ import annotations

import itertools
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np

import forebay

RANKS, SAMPLES, BATCH = 2, 1_000, 25


def train(rank: int, path: Path) -> list[int]:
    """Iterate an epoch as one of the ranks; return the sample ids."""
    world = forebay.World(rank=rank, size=RANKS)
    with forebay.Loader(path, BATCH, order="shuffle", world=world) as loader:
        return [sample for batch in loader for sample in batch.indices.tolist()]


def main() -> None:
    """Start the processes; check that each sample came once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.npy"
        np.save(path, np.random.default_rng(0).random((SAMPLES, 16), "float32"))
        # spawn: a loader does not survive a fork.
        with multiprocessing.get_context("spawn").Pool(RANKS) as pool:
            parts = pool.starmap(train, [(rank, path) for rank in range(RANKS)], chunksize=1)
    assert sorted(itertools.chain.from_iterable(parts)) == list(range(SAMPLES))
    print(f"{RANKS} ranks got {', '.join(str(len(part)) for part in parts)} samples, each once")


# spawn imports this file in each process: what starts processes stands below this line.
if __name__ == "__main__":
    main()
