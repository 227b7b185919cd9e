"""Measure the figures of docs/results/frameworks.md, in the environment of the framework tests.

Usage: ``.venv-frameworks/bin/python benches/frameworks.py [--tiny] [--save] [SECTION ...]``

``--tiny`` shows that everything runs; its numbers mean nothing.
"""

from __future__ import annotations

from sections import run_sections
from training_loaders.overhead import overhead

SECTIONS = {"overhead": overhead}


if __name__ == "__main__":
    run_sections(__doc__, "frameworks", SECTIONS, {}, bool)
