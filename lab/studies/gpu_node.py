"""Measure the figures of docs/results/gpu-node.md; needs torch and a CUDA device.

Usage: ``python lab/studies/gpu_node.py [--tiny] [--save] [SECTION ...]``

Rows of packages that are not installed are skipped. ``--tiny`` shows that everything runs; its
numbers mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from compared.raw import SECTIONS as RAW
from sections import Row, run_sections, with_indexes
from training_loaders.cuda import images
from training_loaders.overhead import overhead

SECTIONS: dict[str, Callable[[bool], list[Row]]] = {"images": images, "overhead": overhead, **RAW}


if __name__ == "__main__":
    run_sections(__doc__, "gpu-node", SECTIONS, {"raw": tuple(RAW)}, with_indexes)
