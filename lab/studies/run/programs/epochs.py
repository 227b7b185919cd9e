"""The loop of every program here: a line on stdin starts an epoch, a line on stdout ends it.

So a bench knows what each epoch read. A training program that waits for a validation step between
its epochs does the same.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable


def run(read: Callable[[int], Iterable[int]]) -> None:
    """Run epochs; `read` yields the length of each sample."""
    for line in sys.stdin:
        begun = time.monotonic()
        samples = read_bytes = 0
        for length in read(int(line)):
            samples += 1
            read_bytes += length
        seconds = time.monotonic() - begun
        print(
            json.dumps({"seconds": seconds, "samples": samples, "sample_bytes": read_bytes}),
            flush=True,
        )
