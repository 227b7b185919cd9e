"""Train on stored images until the time is over: ``training.py FILE SECONDS COMPUTE_S MOUNT ...``.

Prints the mean loss of the first epoch and of each that ended in time, processor time, and the
proportional memory of this process and of the daemon of its tier.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

import forebay
from forebay_lab import pfs
from forebay_lab.demo.model import Model
from forebay_lab.ranks.memory import pss_bytes
from forebay_lab.ranks.rusage import process_usage
from studies.harness import daemon

BATCH = 64
RATE = 0.05
MOST_EPOCHS = 100
SIDE = 32


def main() -> None:
    """Train, and print what came of it."""
    path, seconds, compute_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    mounts = [(pfs.Server.of(mount), mount) for mount in map(Path, sys.argv[4:])]
    model = Model(BATCH, 1, 0)
    losses: list[float] = []
    pss = 0
    begun = time.perf_counter()
    loader = forebay.Loader(
        path,
        BATCH,
        order="shuffle",
        expected_epochs=MOST_EPOCHS,
        last_batch="drop",
        world="single",
        node_memory="64MiB",
    )
    with loader:
        while not losses or (len(losses) < MOST_EPOCHS and time.perf_counter() - begun < seconds):
            # Larger data would not stay in the page cache, either.
            for server, mount in mounts:
                server.drop_caches(mount)
            found = []
            for taken in loader:
                rows = next(iter(taken.values()))
                images = np.ascontiguousarray(rows[:, 1 : 1 + 3 * SIDE * SIDE])
                model.learn(images.reshape(-1, 3, SIDE, SIDE), rows[:, 0].astype(np.int64))
                found.append(model.step(model.gradient, RATE))
                time.sleep(compute_s)
                if losses and time.perf_counter() - begun >= seconds:
                    break
            else:
                losses.append(float(np.mean(found)))
            pss = max(pss, sum(pss_bytes(one) for one in ("self", daemon.pid()) if one))
    print(
        json.dumps(
            {
                "epochs": len(losses),
                "losses": losses,
                "cpu_seconds": process_usage().cpu_seconds,
                "pss_mib": pss / (1 << 20),
            }
        )
    )


if __name__ == "__main__":
    main()
