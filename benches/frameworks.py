"""Measure the figures of docs/results/frameworks.md, in the environment of the framework tests.

Usage: ``.venv-frameworks/bin/python benches/frameworks.py [--tiny] [--save] [SECTION ...]``

``--tiny`` shows that everything runs; its numbers mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from compared.jpeg import jpeg
from compared.memory import memory
from compared.raw import RANKS, SIZES, raw
from sections import Row, keep_indexes, run_sections
from training_loaders.overhead import overhead

RAW = {f"raw-{size}-{ranks}": partial(raw, size=size, ranks=ranks) for size in SIZES for ranks in RANKS}
SECTIONS: dict[str, Callable[[bool], list[Row]]] = {
    "overhead": overhead,
    **RAW,
    "jpeg": jpeg,
    "memory": memory,
}


def prepare(tiny: bool) -> bool:
    """Let sidecars go when the data goes."""
    keep_indexes()
    return tiny


if __name__ == "__main__":
    run_sections(__doc__, "frameworks", SECTIONS, {"raw": tuple(RAW)}, prepare)
