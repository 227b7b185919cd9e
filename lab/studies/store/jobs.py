"""Jobs of plain processes on emulated nodes, linked over TCP: what `rank.py` prints."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field

from forebay_lab.cluster import Cluster
from studies.harness.sections import Row

PORT = 20480
DEADLINE_S = 120.0

_names = itertools.count()


@dataclass(frozen=True)
class Job:
    """What ranks do; node by node they have ascending numbers."""

    path: str
    nodes: int
    ranks_per_node: int
    batch: int
    epochs: int = 1
    order: str = "shuffle"
    memory: str = "48MiB"
    pace_s: float = 0.0
    """Pause of each rank in each step."""
    adapter: str = ""
    """What delivers the batches: nothing but the loader, or ``tensorflow.dataset`` or
    ``tensorflow.loader``."""
    computes: str = ""
    """What computes in Python, for `compute_s` from a step of rank 0 on: ``rank``, that one itself;
    ``beside``, another process of its node."""
    compute_step: int = 0
    compute_s: float = 0.0
    name: str = field(default_factory=lambda: f"study-{os.getpid()}-{next(_names)}")


def run_job(cluster: Cluster, job: Job) -> list[Row]:
    """Run a job; return what each rank found."""
    address = cluster.call(0, "hostname", "-i").split()[0]
    variables = {
        "FOREBAY_JOB_ADDRESS": f"{address}:{PORT}",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    words = [sys.executable, "-m", "studies.store.rank", json.dumps(asdict(job))]
    ranks = [
        subprocess.Popen(
            cluster.on(rank // job.ranks_per_node, [*words, str(rank)]), env=os.environ | variables,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(job.nodes * job.ranks_per_node)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=DEADLINE_S) for rank in ranks]
    except BaseException:
        cluster.clear()
        raise
    for number, (rank, (_, errors)) in enumerate(zip(ranks, said, strict=True)):
        if rank.returncode:
            raise RuntimeError(f"rank {number}:\n{errors}")
    return [json.loads(out) for out, _ in said]
