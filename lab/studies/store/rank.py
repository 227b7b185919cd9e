"""One rank of a job on emulated nodes: ``rank JOB RANK``, where JOB is JSON (`jobs.Job`).

It goes through its epochs at a pace, and prints what each step waited for, and its memory at the
end of each epoch. Rank 0 may compute in the middle: in Python, without a pause, holding the
interpreter lock; or start another process that does.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterable
from multiprocessing import get_context
from typing import Any

import forebay
from forebay_lab.bench.facts import SCHEMA
from forebay_lab.ranks.memory import pss_bytes
from forebay_lab.ranks.rusage import process_usage

Process = get_context("spawn").Process
NEVER_S = 1e6


def main() -> None:
    """Read, and print what came of it."""
    job, rank = json.loads(sys.argv[1]), int(sys.argv[2])
    node = rank // job["ranks_per_node"]
    world = forebay.World(
        rank=rank,
        size=job["nodes"] * job["ranks_per_node"],
        local_rank=rank % job["ranks_per_node"],
        local_size=job["ranks_per_node"],
        node=f"node{node}",
        job=job["name"],
    )
    waits: list[float] = []
    memory: list[int] = []
    others = []
    options = {"order": job["order"], "node_memory": job["memory"], "expected_epochs": job["epochs"]}
    options |= {"store": "auto", "last_batch": "drop", "world": world}
    dataset = forebay.open(job["path"], schema=SCHEMA)
    with forebay.Loader(dataset, job["batch"], **options) as loader:
        share = loader.config.store
        batches = adapted(loader, job["adapter"])
        for epoch in range(job["epochs"]):
            asked = time.perf_counter()
            for step, _ in enumerate(batches):
                waits.append(time.perf_counter() - asked)
                if job["computes"] and (rank, epoch, step) == (0, 0, job["compute_step"]):
                    if job["computes"] == "rank":
                        compute(job["compute_s"])
                    else:
                        others.append(Process(target=compute, args=(job["compute_s"],)))
                        others[0].start()
                if job["pace_s"]:
                    time.sleep(job["pace_s"])
                asked = time.perf_counter()
            memory.append(pss_bytes("self"))
        for one in others:
            one.join()
        levels = {name: one["bytes"] for name, one in loader.stats()["levels"].items()}
    print(
        json.dumps(
            {
                "node": node,
                "waits": waits,
                "pss_bytes": max(memory),
                "levels": levels,
                "share_bytes": share.share_bytes if share else 0,
                "cpu_seconds": process_usage().cpu_seconds,
            }
        )
    )


def adapted(loader: forebay.Loader, adapter: str) -> Iterable[Any]:
    """Return what delivers the batches."""
    if not adapter:
        return loader
    framework, _, function = adapter.partition(".")
    return getattr(importlib.import_module(f"forebay.{framework}"), function)(loader)


def compute(seconds: float) -> None:
    """Hold the interpreter lock for so long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(NEVER_S)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    sys.setswitchinterval(before)


if __name__ == "__main__":
    main()
