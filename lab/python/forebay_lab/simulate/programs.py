"""Programs of the bench that have a model: the bytes they touch, and what they cost per sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay_lab.bench.baselines.torch_dataloader import WORKERS

__all__ = ["PROGRAMS", "Program"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program in place of the loader."""

    order: str
    """The order of the engine that takes the same samples in a step, or equally random ones."""
    description: dict[str, Any]
    """As ``Program`` of the crate forebay-sim."""

    def faster(self, factor: float) -> dict[str, Any]:
        """Return its description where its own time counts less by a factor."""
        samples = self.description.get("samples")
        if samples is None:
            return self.description
        return {"samples": {**samples, "sample_ns": samples.get("sample_ns", 0.0) / factor}}


def _cursor(order: str, suffix: str) -> Program:
    return Program(order=order, description={"cursor": {"read_ahead": not suffix}})


def _samples(order: str, access: str, **numbers: float | bool) -> Program:
    return Program(order=order, description={"samples": {"access": access, **numbers}})


H5PY_NS = 60_000
"""h5py's own time to index a row of a dataset: measured on 2 virtual cores, rows of 3 KiB."""
TENSORFLOW_NS = 100_000
"""The same in a callback of tf.data, with the row's way into a tensor: estimated."""
GET_NS = 2_000
"""py-lmdb's time to get a value, and a worker's to send it to the script: estimated."""

_CURSORS = {
    name + suffix: _cursor(order, suffix)
    for name, order in (
        ("pylmdb-skipping", "sequential"),
        ("pylmdb-ownlock", "sequential"),
        ("pylmdb-contiguous", "contiguous"),
    )
    for suffix in ("", "-noreadahead")
}

PROGRAMS: Mapping[str, Program] = {
    **_CURSORS,
    "h5py": _samples("sequential", "read", sample_ns=H5PY_NS),
    "h5py-random": _samples("shuffle", "read", sample_ns=H5PY_NS),
    "tfdata-random": _samples("shuffle", "read", sample_ns=TENSORFLOW_NS),
    # AUTOTUNE settles at a few batches.
    "tfdata-random-prefetch": _samples("shuffle", "read", sample_ns=TENSORFLOW_NS, workers=1, ahead=2),
    "tfdata": _samples("sequential", "read", reads_all=True, reopens=True, workers=1, ahead=2),
    "torch-dataloader": _samples(
        "shuffle", "mmap_random", sample_ns=GET_NS, workers=WORKERS, ahead=2, lists_keys=True
    ),
}
