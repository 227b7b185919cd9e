"""Measure the figures of docs/results/gpu-node.md; needs torch and a CUDA device.

Usage: ``python benches/gpu_node.py [--tiny] [--save] [SECTION ...]``

Rows of packages that are not installed are skipped. ``--tiny`` shows that everything runs; its
numbers mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from compared.raw import RANKS, SIZES, raw
from sections import Row, keep_indexes, run_sections
from training_loaders.cuda import images
from training_loaders.overhead import overhead

RAW = {f"raw-{size}-{ranks}": partial(raw, size=size, ranks=ranks) for size in SIZES for ranks in RANKS}
SECTIONS: dict[str, Callable[[bool], list[Row]]] = {"images": images, "overhead": overhead, **RAW}


def prepare(tiny: bool) -> bool:
    """Let sidecars go when the data goes."""
    keep_indexes()
    return tiny


if __name__ == "__main__":
    run_sections(__doc__, "gpu-node", SECTIONS, {"raw": tuple(RAW)}, prepare)
