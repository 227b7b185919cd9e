"""What a job trains on: a published workload, or a dataset that is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import forebay
from forebay_lab.bench import workload as workloads
from forebay_lab.simulate import places
from forebay_lab.simulate.places import Places

__all__ = ["Source", "of_dataset", "of_workload"]

BATCH_SIZE = 32
"""Samples per rank and step, where no workload says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Samples, and what is known of the training with them."""

    places: Places
    dataset: dict[str, Any]
    """What a result says of it."""
    left_out: tuple[str, ...]
    """What of it is not modelled."""
    batch_size: int | None
    """Samples per rank and step; None: `global_batch` says."""
    global_batch: int | None = None
    sample_seconds: float = 0.0
    """Compute time of a sample."""
    node_ranks: int | None = None
    """Most ranks of a node; None: not known."""
    workload: dict[str, Any] | None = None
    """The workload, as a result names it."""


def of_workload(name: str, variant: str | None, scale: float, container: str | None) -> Source:
    """Return a published workload.

    Raises
    ------
    OptionError
        If there is no such workload or variant, or scale or container are none.
    """
    found = workloads.load(name)
    chosen = found.variant(variant)
    located, left_out = places.of_workload(found, scale, container)
    # What is published for some number of ranks holds for the job: the same global batch.
    global_batch = chosen.batch_samples * chosen.ranks if chosen.ranks else None
    return Source(
        places=located,
        dataset=_described(name, container or found.container, located),
        left_out=tuple(left_out),
        batch_size=None if global_batch else chosen.batch_samples,
        global_batch=global_batch,
        sample_seconds=(chosen.step_seconds or 0.0) / chosen.batch_samples,
        node_ranks=found.client.node_ranks if found.client else None,
        workload={
            "name": name,
            "variant": chosen.name,
            "scale": scale,
            "utilisation_line": found.benchmark.utilisation_line,
            "notes": [],
        },
    )


def of_dataset(paths: Sequence[str], report: Callable[[str, int, int], None]) -> Source:
    """Return a dataset that is there; its index is built where it has none.

    Raises
    ------
    ForebayError
        If it cannot be opened, or has no model.
    """
    dataset = forebay.open(list(paths))
    located, left_out = places.of_opened(dataset, report)
    described = _described(" ".join(paths), dataset.format, located)
    return Source(places=located, dataset=described, left_out=tuple(left_out), batch_size=BATCH_SIZE)


def _described(path: str, kind: str, located: Places) -> dict[str, Any]:
    return {
        "path": path,
        "format": kind,
        "samples": located.samples,
        "bytes": located.model.file_bytes,
        "mean_bytes": float(located.sample_bytes),
    }
