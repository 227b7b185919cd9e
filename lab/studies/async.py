"""Measure the figures of docs/results/async.md.

Usage: ``python lab/studies/async.py [--tiny] [--save] [SECTION ...]``

"Asynchronous I/O Strategy for Large-Scale Deep Learning Applications" (Lee et al.: the paper) as a
strategy of the one engine, and the formats that it reads. Commands of `forebay` are printed as
they run; a section ends within about ten minutes on two cores. Data sets are made once and kept in
``$FOREBAY_BENCH_DIR`` (default ``./bench-data``). `exposed-…` and `formats-limit-…` need FUSE.
Rows of TensorFlow need ``pip install tensorflow-cpu`` in an environment like this one, and are
named as skipped without. ``--tiny`` shows that everything runs; its numbers mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from asynchronous.accuracy import accuracy
from asynchronous.coded import gzip
from asynchronous.exposed import APPLICATIONS, PLACES, exposed
from asynchronous.formats import SIZES, formats_limit
from asynchronous.indexing import index
from asynchronous.study import Study
from asynchronous.warm import warm
from sections import Row, keep_indexes, run_sections

EXPOSED = {
    f"exposed-{preset}-{name}": partial(exposed, preset=preset, name=name)
    for preset in PLACES
    for name in APPLICATIONS
}
FORMATS_LIMIT = {f"formats-limit-{size}": partial(formats_limit, size=size) for size in SIZES}
SECTIONS: dict[str, Callable[[Study], list[Row]]] = {
    **EXPOSED,
    **FORMATS_LIMIT,
    "warm": warm,
    "gzip": gzip,
    "index": index,
    "accuracy": accuracy,
}
GROUPS = {"exposed": tuple(EXPOSED), "formats-limit": tuple(FORMATS_LIMIT)}


def prepare(tiny: bool) -> Study:
    """Let sidecars go when the data goes."""
    keep_indexes()
    return Study(tiny)


if __name__ == "__main__":
    run_sections(__doc__, "async", SECTIONS, GROUPS, prepare)
