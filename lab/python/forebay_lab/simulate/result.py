"""The result of a simulation: that of a bench, with all numbers of ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import forebay
from forebay_lab.bench.measured_row import MeasuredRow
from forebay_lab.bench.strategies import Row
from forebay_lab.report.data import RESULT_VERSION
from forebay_lab.simulate import runs
from forebay_lab.simulate.costs import Costs
from forebay_lab.simulate.errors import NotModelledError
from forebay_lab.simulate.request import Request

__all__ = ["SENSITIVE", "not_modelled", "simulate", "simulate_row", "summary"]

Report = Callable[[str, int, int], None]

SENSITIVE = 0.25
"""Range of the runs around their median from which a row is called sensitive."""


def simulate(request: Request, rows: Sequence[Row], report: Report) -> dict[str, Any]:
    """Simulate each row at each number of ranks; docs/metrics.md says what the result holds.

    Parameters
    ----------
    request
        What is simulated.
    rows
        What is compared.
    report
        Told (what, done, all) while it runs.

    Raises
    ------
    OptionError
        If the job of a row is not valid.
    """
    seeds = list(range(request.seeds))
    points, done = [], 0
    for ranks in sorted(request.ranks):
        found = []
        for row in rows:
            report("rows", done, len(rows) * len(request.ranks))
            found.append(simulate_row(request, row, ranks, seeds))
            done += 1
        points.append({**_sizes(request, ranks), "rows": found})
    largest = points[-1]
    return {
        "version": RESULT_VERSION,
        "forebay": forebay.__version__,
        "command": list(request.command),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": None,
        "dataset": request.dataset,
        **{key: one for key, one in largest.items() if key != "rows"},
        "node_emulation": {"by": None, "reason": None},
        "epochs": request.epochs,
        "seed": request.seed,
        "repetitions": len(seeds),
        "cold": True,
        "launcher": "simulated",
        "tiers": [tier.name for tier in request.tiers],
        "node_memory_bytes": request.node_memory,
        "link_rate_bits_per_second": None,
        "pfs": {"spec": request.spec, "time_scale": 1.0, "limit_mib_s": None},
        "limit": {"rate_mib_s": None, "figures": []},
        "workload": request.workload,
        "warnings": [],
        "rows": largest["rows"],
        "verified": [],
        "simulation": None,
        "simulated": {
            "seeds": seeds,
            "window": request.steps,
            "costs": (request.costs or Costs.default()).as_json(),
            "tiers": [{"name": tier.name, "bytes": tier.bytes} for tier in request.tiers],
            "run": request.run_options() if request.tiers else None,
            "not_modelled": not_modelled(request),
        },
        "points": [_thinned(point) for point in points],
    }


_NOT_MODELLED = (
    "schedulers, elevators, and caches of servers",
    "other jobs, and congestion between links",
    "Python's lock, and contention for GPUs",
)
"""Of any job."""


def not_modelled(request: Request) -> list[str]:
    """Return what a simulation leaves out."""
    return [*request.left_out, *_NOT_MODELLED]


def _sizes(request: Request, ranks: int) -> dict[str, Any]:
    of_nodes, batch = request.ranks_of_nodes(ranks), request.batch_of(ranks)
    return {
        "ranks": ranks,
        "world_size": ranks,
        "nodes": len(of_nodes),
        "ranks_per_node": list(of_nodes),
        "batch_size": batch,
        "global_batch": batch * ranks,
        "steps": request.steps_of(ranks) or request.whole_epoch(ranks),
        "compute_seconds": request.compute_of(ranks),
    }


def simulate_row(request: Request, row: Row, ranks: int, seeds: list[int]) -> dict[str, Any]:
    """Simulate a row; one that has no model is skipped.

    Raises
    ------
    OptionError
        If its job is not valid.
    """
    found = MeasuredRow(row)
    try:
        names = [tier.name for tier in request.tiers]
        found.repetitions = runs.run(request.job(row, ranks), request.places, seeds, names)
    except NotModelledError as error:
        found.status, found.error = "skipped", str(error)
        return found.as_json()
    kept = {key: found.repetitions[0][key] for key in ("steps", "window")}
    return {**found.as_json(), "sensitive": _is_sensitive(found.repetitions), **kept}


def _is_sensitive(repetitions: Sequence[dict[str, Any]]) -> bool:
    """Whether noise moves the wall time by more than a quarter from its median."""
    times: list[float] = [one["wall_seconds"] for one in repetitions]
    middle = statistics.median(times)
    return max(max(times) - middle, middle - min(times)) > SENSITIVE * middle


def _thinned(point: dict[str, Any]) -> dict[str, Any]:
    """Leave out the single repetitions."""
    return {**point, "rows": [{"name": row["name"], **summary(row)} for row in point["rows"]]}


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the runs of a simulated row came to."""
    keys = ("status", "error", "median", "spread", "sensitive", "steps", "window")
    return {
        **{key: row.get(key) for key in keys},
        "range": _range(row["repetitions"]) if row["repetitions"] else None,
        "seeks": statistics.median(map(_seeks, row["repetitions"])) if row["repetitions"] else None,
        "epochs": _epochs(row["repetitions"]),
    }


def _range(repetitions: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the smallest and the largest of the numbers that pictures show."""
    found = {key: [one[key] for one in repetitions] for key in _RANGES}
    found["seeks"] = [_seeks(one) for one in repetitions]
    return {key: [min(values), max(values)] for key, values in found.items()}


def _epochs(repetitions: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the medians of each epoch: its time, and what the source delivered of its bytes."""
    found = []
    for epochs in zip(*(one["by_epoch"] for one in repetitions), strict=True):
        levels = [one["levels"] or {"source": 1} for one in epochs]
        shares = [one["source"] / sum(one.values()) for one in levels]
        seconds = statistics.median(one["seconds"] for one in epochs)
        found.append({"seconds": seconds, "source_share": statistics.median(shares)})
    return found


_RANGES = ("wall_seconds", "startup_seconds", "total_seconds", "samples_per_second", "storage_bytes")


def _seeks(repetition: dict[str, Any]) -> int:
    """Return the seeks of all servers."""
    return sum(server["seeks"] for server in repetition["pfs"]["servers"])
