"""One side of a pair: ``side ROW DATA SCALE [NAME=VALUE ...]`` drains an epoch for each line.

It answers with the time of the epoch and its processor time [s].
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from forebay_lab.ranks import page_cache
from forebay_lab.ranks.rusage import process_usage
from studies.harness import datasets
from studies.harness.measured_loader import MeasuredLoader
from studies.harness.sections import Scope

ROWS: dict[str, tuple[Any, str, int, dict[str, Any]]] = {
    "random-3k": (datasets.small, "shuffle", 256, {}),
    "shuffle-110k": (datasets.large, "shuffle", 32, {}),
    "sequential-3k": (datasets.small, "sequential", 256, {}),
    "group-3k": (datasets.small, "group", 256, {}),
    "group-110k": (datasets.large, "group", 32, {}),
    "datum-3k": (datasets.labelled, "shuffle", 256, {"schema": "caffe-datum"}),
    "mmap-110k": (datasets.large, "sequential", 32, {"strategy": "mmap"}),
}
"""Dataset, order, batch, and options of the loader."""


def main() -> None:
    """Answer lines of standard input."""
    name, directory, scale, *options = sys.argv[1:]
    make, order, batch, own = ROWS[name]
    dataset = make(Scope(directory=Path(directory), scale=float(scale)))
    page_cache.warm(dataset.file)
    ours = MeasuredLoader(dataset, order, batch, **{**own, **dict(one.split("=", 1) for one in options)})
    ours.drain()
    print("ready", flush=True)
    for _ in sys.stdin:
        before, begun = process_usage(), time.perf_counter()
        ours.drain()
        seconds = time.perf_counter() - begun
        print(json.dumps([seconds, (process_usage() - before).cpu_seconds]), flush=True)
    ours.close()


if __name__ == "__main__":
    main()
