"""Training with LMDB: how far from ideal, and what reading takes of it (figures 3, 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from studies.harness.sections import Row, Scope
from studies.simulate.lmdbio import jobs
from studies.simulate.lmdbio.published import ABOVE_IDEAL, IO_SHARES, SCALING_AT

__all__ = ["scaling"]


@dataclass(frozen=True)
class _Network:
    name: str
    workload: str
    variant: str
    ranks: Sequence[int]
    steps: tuple[str, ...] = ()
    """Options for the steps that are simulated."""


_FEW_STEPS = ("--steps", "16")
"""Samples of 192 KiB are 49 page faults each."""

_NETWORKS = (
    _Network("alexnet", "cifar10-large", "bebop-9216", (1, 36, 144, 576, 1152, 4608, SCALING_AT)),
    # Below four nodes, the batches of a step are larger than the memory of a loader.
    _Network("caffenet", "imagenet-large", "caffenet-9216", (144, 576, 2304, SCALING_AT), _FEW_STEPS),
    # 4,608 and more processes, as in the paper.
    _Network("resnet50", "imagenet-large", "resnet50-9216", (4608, SCALING_AT), _FEW_STEPS),
)


def scaling(scope: Scope) -> list[Row]:
    """Train with LMDB on Bebop: time of a step over ideal scaling, and shares of reading."""
    found = []
    for network in _NETWORKS:
        options = (*jobs.BEBOP, "--variant", network.variant, *network.steps)
        result = jobs.simulated(scope, network.workload, network.ranks, ("lmdb",), *options, batch=18_432)
        for ranks, rows in jobs.points(result):
            row = rows["lmdb"]
            is_published = ranks == SCALING_AT
            found.append(
                {
                    **row,
                    "name": network.name,
                    "ideal_ms": row["compute_ms"],
                    "above_ideal": row["step_ms"] / row["compute_ms"],
                    "io_share": row["read_share"] + row["skew_share"],
                    "published_above_ideal": ABOVE_IDEAL.get(network.name) if is_published else None,
                    "published_io_share": IO_SHARES[network.name] if is_published else None,
                }
            )
    return found
