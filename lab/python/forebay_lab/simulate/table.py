"""The result of a simulation as text for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from forebay_lab.simulate.programs import PROGRAMS

__all__ = ["header", "lines_above", "lines_below", "rows"]

_HEADER = (
    "ranks",
    "row",
    "step ms",
    "range",
    "start-up s",
    "exposed",
    "skew",
    "samples/s",
    "MiB/s",
    "reads",
    "seeks",
)


def header(result: dict[str, Any]) -> tuple[str, ...]:
    """Return the titles of the columns."""
    return (*_HEADER, *(title for title, _ in _of_epochs(result)))


def _of_epochs(result: dict[str, Any]) -> Iterator[tuple[str, Callable[[dict[str, float]], str]]]:
    """Return the columns with something of each epoch, and how one is shown."""
    if result["epochs"] > 1:
        yield "epochs s", lambda epoch: f"{epoch['seconds']:.3g}"
    rows = [row for point in result["points"] for row in point["rows"]]
    if any(epoch["source_share"] < 1 for row in rows for epoch in row["epochs"]):
        yield "hits", lambda epoch: f"{1 - epoch['source_share']:.0%}"


def lines_above(result: dict[str, Any]) -> Iterator[str]:
    """Return the lines above the table: what was simulated."""
    dataset, spec = result["dataset"], result["pfs"]["spec"]
    yield f"{dataset['samples']:,} samples ({dataset['format']}), {dataset['mean_bytes']:,.0f} bytes each, on {spec['name']}"
    yield (
        f"simulated, {result['repetitions']} seeds: median and range of the time of a step; "
        "exposed: share of the time that ranks wait for data"
    )
    if tiers := result["simulated"]["tiers"]:
        sizes = (f"{tier['name']} of {tier['bytes'] / (1 << 30):,.3g} GiB" for tier in tiers)
        yield f"each node has tiers {', '.join(sizes)}; hits: share of the bytes that do not come from the source"
    if run := _run_options(result):
        yield f"programs run under {run}"


def _run_options(result: dict[str, Any]) -> str | None:
    """Return the command that programs run under, if there are some and they have tiers."""
    run = result["simulated"]["run"]
    if run is None or not any(row["strategy"] in PROGRAMS for row in result["rows"]):
        return None
    fetch = f" --fetch {run['fetch']}" if run["fetch"] != "follow" else ""
    return "forebay run" + fetch + "".join(f" --{key}" for key in ("stage", "frozen") if run[key])


def rows(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Return the cells of each row at each number of ranks."""
    for point in result["points"]:
        for row in point["rows"]:
            name = (f"{point['ranks']:,}", row["name"])
            middle = row["median"]
            if middle is None:
                yield (*name, row["status"], *[""] * (len(header(result)) - 3))
                continue
            steps = row["steps"]
            least, most = row["range"]["wall_seconds"]
            wall = middle["wall_seconds"] or 1.0
            yield (
                *name,
                f"{middle['wall_seconds'] / steps * 1e3:.3g}" + (" ?" if row["sensitive"] else ""),
                f"{least / steps * 1e3:.3g} to {most / steps * 1e3:.3g}",
                f"{middle['startup_seconds']:.3g}",
                f"{middle['exposed_seconds'] / wall:.1%}",
                f"{middle['skew_seconds'] / wall:.1%}",
                f"{middle['samples_per_second']:,.0f}",
                f"{middle['rate_mib_s']:,.0f}",
                f"{middle['reads']:,.0f}",
                f"{row['seeks']:,.0f}",
                *(", ".join(map(shown, row["epochs"])) for _, shown in _of_epochs(result)),
            )


def lines_below(result: dict[str, Any]) -> Iterator[str]:
    """Return the lines below the table: what is sensitive, and what is not modelled."""
    shown = [row for point in result["points"] for row in point["rows"]]
    cut = {row["name"]: row["window"] for row in shown if row["window"] and row["window"]["after"]}
    if cut:
        window = next(iter(cut.values()))
        yield (
            f"{window['steps']} steps of rows that take page faults, after {window['after']} that do not count: "
            + ", ".join(cut)
        )
    if any(row["sensitive"] for row in shown):
        yield "?: sensitive, as the order in which nodes reach the servers moves it by more than 25 %"
    for name, error in {row["name"]: row["error"] for row in shown if row["error"]}.items():
        yield f"{name}: {error}"
    workload = result["workload"]
    for note in () if workload is None else workload["notes"]:
        yield f"note: {note}"
    yield "not modelled: " + "; ".join(result["simulated"]["not_modelled"])
    for warning in result["warnings"]:
        yield f"warning: {warning}"
