"""Reading alone, without compute: the steps of LMDBIO (figures 15 and 17 to 22)."""

from __future__ import annotations

from forebay_lab.bench.strategies import LADDER
from studies.harness.sections import Row, Scope
from studies.simulate.lmdbio import jobs
from studies.simulate.lmdbio.published import READ_FACTORS, READ_FACTORS_AT

__all__ = ["STRATEGIES", "ladder"]

STRATEGIES = tuple(f"{name}{jobs.ONE_ROOT}" if name.startswith("lmm") else name for name in LADDER)

_STEPS = 512
"""Of the paper's run, over which what comes before the first step is spread."""
_RANKS = (36, 576, 1152, READ_FACTORS_AT)


def ladder(scope: Scope) -> list[Row]:
    """Read CIFAR10-Large on Bebop without compute: time of a step, and factors over LMDB."""
    options = (*jobs.BEBOP, "--compute", "0s")
    result = jobs.simulated(scope, "cifar10-large", _RANKS, STRATEGIES, *options, batch=18_432)
    found: list[Row] = []
    for ranks, rows in jobs.points(result):
        for row in rows.values():
            row["startup_ms"] = 1e3 * row["startup_s"] / _STEPS
            row["read_time_ms"] = row["startup_ms"] + row["step_ms"]
        for name, row in rows.items():
            row["factor"] = rows["lmdb"]["read_time_ms"] / row["read_time_ms"]
            row["factor_over_pylmdb"] = rows["pylmdb-skipping"]["read_time_ms"] / row["read_time_ms"]
            row["published"] = READ_FACTORS.get(name) if ranks == READ_FACTORS_AT else None
        found += rows.values()
    return found
