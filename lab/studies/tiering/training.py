"""Train on stored images until the time is over: ``training.py FILE SECONDS COMPUTE_S MOUNT ...``.

Prints the mean loss of each epoch that ended in time, processor time, and the proportional memory
of this process and of the daemon of its tier.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

import forebay
from forebay_lab import pfs
from forebay_lab.demo.model import Model

BATCH = 64
RATE = 0.05
MOST_EPOCHS = 100
SIDE = 32


def pss_bytes(pid: int | str) -> int:
    """Memory of a process, of shared pages its share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def daemons() -> list[int]:
    """Find the daemon of the tier by its command: it is no child of this process."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"forebay.tools.tiers" in command.read_bytes():
                found.append(int(command.parent.name))
    return found


def main() -> None:
    """Train, and print what came of it."""
    path, seconds, compute_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    mounts = [(pfs.Server.of(mount), mount) for mount in map(Path, sys.argv[4:])]
    model = Model(BATCH, 1, 0)
    losses: list[float] = []
    pss = 0
    begun = time.perf_counter()
    loader = forebay.Loader(
        path, BATCH, order="shuffle", epochs=MOST_EPOCHS, last_batch="drop", world="single", memory="64MiB"
    )
    with loader:
        while len(losses) < MOST_EPOCHS and time.perf_counter() - begun < seconds:
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
                if time.perf_counter() - begun >= seconds:
                    break
            else:
                losses.append(float(np.mean(found)))
            pss = max(pss, sum(pss_bytes(pid) for pid in ("self", *daemons())))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "epochs": len(losses),
                "losses": losses,
                "cpu_seconds": used.ru_utime + used.ru_stime,
                "pss_mib": pss / (1 << 20),
            }
        )
    )


if __name__ == "__main__":
    main()
