"""Whole training, strong and weak scaling, on Bebop and Blues (figures 23 to 27)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from studies.harness.sections import Row, Scope
from studies.simulate.lmdbio import jobs
from studies.simulate.lmdbio.ladder import STRATEGIES
from studies.simulate.lmdbio.published import (
    BLUES_AT,
    BLUES_FACTORS,
    SCALING_AT,
    STRONG_FACTORS,
    WEAK_FACTORS,
)

__all__ = ["blues", "strong", "weak"]

_VARIANTS = {"cifar10-large": "bebop-9216", "imagenet-large": "caffenet-9216"}
_WEAK_RANKS = (144, 576, 2304)
"""With two samples per rank, 9,216 ranks are the job of strong scaling."""
_BEST = "lmm-dio-prov-coal-stag"
_FAULTS = ("lmdb", f"lmm{jobs.ONE_ROOT}", f"lmm-dm{jobs.ONE_ROOT}")
_READS = tuple(name for name in STRATEGIES if name not in ("pylmdb-skipping", *_FAULTS))
_FAULT_STEPS = ("--steps", "16")
"""Of samples of 192 KiB. Rows that read have whole epochs: in a few steps they only read ahead."""


def blues(scope: Scope) -> list[Row]:
    """Train on Blues, 512 ranks of 16 per node: factors of LMM and DM over LMDB."""
    small = (*jobs.BLUES, "--variant", "blues-512")
    large = (*small, "--steps", "32")
    found: list[Row] = []
    for workload, dataset, options in (
        ("cifar10-large", "cifar10-large", small),
        ("imagenet-large", "imagenet", large),
    ):
        result = jobs.simulated(scope, workload, (BLUES_AT,), _FAULTS, *options, batch=4096)
        for count, rows in jobs.points(result):
            found += _compared(rows, dataset, BLUES_FACTORS[dataset] if count == BLUES_AT else {})
    return found


def strong(scope: Scope) -> list[Row]:
    """Train on Bebop, the batch of all ranks is 18,432: factors over LMDB."""
    found: list[Row] = []
    for workload, variant in _VARIANTS.items():
        for count, rows in _all(scope, workload, variant, (SCALING_AT,), 18_432):
            published = {_BEST: STRONG_FACTORS[workload]} if count == SCALING_AT else {}
            found += _compared(rows, workload, published)
    return found


def weak(scope: Scope) -> list[Row]:
    """Train on Bebop with two samples per rank and step: factors over LMDB."""
    found: list[Row] = []
    for workload, variant in _VARIANTS.items():
        for _, rows in _all(scope, workload, variant, _WEAK_RANKS, None):
            found += _compared(rows, workload, {})
    for row in found:
        row["published_most"] = WEAK_FACTORS[row["dataset"]] if row["name"] == _BEST else None
    return found


def _all(
    scope: Scope, workload: str, variant: str, ranks: Sequence[int], batch: int | None
) -> Iterable[tuple[int, dict[str, Row]]]:
    options = (*jobs.BEBOP, "--variant", variant)
    few = _FAULT_STEPS if workload == "imagenet-large" else ()
    faults = jobs.simulated(scope, workload, ranks, _FAULTS, *options, *few, batch=batch)
    reads = jobs.simulated(scope, workload, ranks, _READS, *options, batch=batch)
    for (count, rows), (_, more) in zip(jobs.points(faults), jobs.points(reads), strict=True):
        yield count, {**rows, **more}


def _compared(rows: Mapping[str, Row], dataset: str, published: Mapping[str, float]) -> list[Row]:
    base = rows["lmdb"]["step_ms"]
    return [
        {"dataset": dataset, **row, "factor": base / row["step_ms"], "published": published.get(name)}
        for name, row in rows.items()
    ]
