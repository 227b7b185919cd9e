"""Measure the figures of docs/results/frameworks.md, in the environment of the framework tests.

Usage: ``.venv-frameworks/bin/python lab/studies/frameworks.py [--tiny] [--save] [SECTION ...]``

``--tiny`` shows that everything runs; its numbers mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from compared.jpeg import jpeg
from compared.memory import memory
from compared.raw import SECTIONS as RAW
from sections import Row, run_sections, with_indexes
from training_loaders.overhead import overhead

SECTIONS: dict[str, Callable[[bool], list[Row]]] = {
    "overhead": overhead,
    **RAW,
    "jpeg": jpeg,
    "memory": memory,
}


if __name__ == "__main__":
    run_sections(__doc__, "frameworks", SECTIONS, {"raw": tuple(RAW)}, with_indexes)
