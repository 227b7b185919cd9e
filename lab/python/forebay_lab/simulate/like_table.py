"""A bench result beside its simulation, as text for people."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

__all__ = ["header", "lines_above", "lines_below", "rows"]

_HEADER = (
    "row",
    "wall s",
    "sim s",
    "range",
    "error",
    "start-up s",
    "sim start-up s",
    "fetched",
    "sim fetched",
    "seeks",
    "sim seeks",
)


def header(result: dict[str, Any]) -> tuple[str, ...]:
    """Return the titles of the columns."""
    del result
    return _HEADER


def lines_above(result: dict[str, Any]) -> Iterator[str]:
    """Return the lines above the table: what was measured, and with what it was simulated."""
    spec, simulation = result["pfs"]["spec"], result["simulation"]
    yield (
        f"{result['ranks']} ranks on {result['nodes']} nodes, {spec['name']}, time scale "
        f"{result['pfs']['time_scale']:g}; medians of {result['repetitions']} measured runs and of "
        f"{len(simulation['seeds'])} simulated ones"
    )
    yield f"costs of {simulation['costs']['machine']}"


def rows(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Return the cells of each row."""
    for row in result["rows"]:
        measured, simulated = row["median"], row["simulated"] or {}
        middle = simulated.get("median")
        if not measured or not middle:
            status = row["status"] if row["status"] != "ok" else simulated.get("status", "-")
            yield (row["name"], status, *[""] * (len(_HEADER) - 2))
            continue
        least, most = simulated["range"]["wall_seconds"]
        error = simulated["wall_error"]
        yield (
            row["name"],
            f"{measured['wall_seconds']:.3f}",
            f"{middle['wall_seconds']:.3f}" + (" ?" if simulated["sensitive"] else ""),
            f"{least:.3f} to {most:.3f}",
            "-" if error is None else f"{error:+.1%}",
            f"{measured['startup_seconds']:.3f}",
            f"{middle['startup_seconds']:.3f}",
            _bytes_text(fetched(row)),
            _bytes_text(middle["storage_bytes"]),
            f"{seeks(row):,.0f}",
            f"{simulated['seeks']:,.0f}",
        )


def fetched(row: dict[str, Any]) -> float:
    """Return the bytes that reached the file system, median of the measured runs."""
    return _median(row, "nodes", "read_bytes")


def seeks(row: dict[str, Any]) -> float:
    """Return the seeks of all servers, median of the measured runs."""
    return _median(row, "servers", "seeks")


def _median(row: dict[str, Any], part: str, key: str) -> float:
    return float(statistics.median(sum(one[key] for one in run["pfs"][part]) for run in row["repetitions"]))


def lines_below(result: dict[str, Any]) -> Iterator[str]:
    """Return the lines below the table: what is sensitive, what has no model, warnings."""
    simulated = [(row["name"], one) for row in result["rows"] if (one := row["simulated"])]
    if any(one["sensitive"] for _, one in simulated):
        yield "?: sensitive, as the order in which nodes reach the servers moves it by more than 25 %"
    for name, one in simulated:
        if one["error"]:
            yield f"{name}: {one['error']}"
    yield "not modelled: " + "; ".join(result["simulation"]["not_modelled"])
    for warning in result["warnings"]:
        yield f"warning: {warning}"


def _bytes_text(size: float) -> str:
    from forebay.cli.output import bytes_text

    return bytes_text(size)
