"""The result of a bench as text for people."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

__all__ = ["HEADER", "lines_above", "lines_below", "rows"]

HEADER = (
    "row",
    "total s",
    "start-up s",
    "exposed s",
    "AU",
    "MiB/s",
    "reads",
    "fetched",
    "faults",
    "× first",
    "spread",
)
"""Defined in docs/bench.md."""

_MOST_LINES = 12
"""Of the output of a program that died."""


def lines_above(result: dict[str, Any]) -> Iterator[str]:
    """Give what stands above the table: what was run."""
    dataset = result["dataset"]
    ranks, nodes = _number(result["ranks"], "rank"), _number(result["nodes"], "node")
    yield f"{dataset['samples']:,} samples ({dataset['format']}), {dataset['mean_bytes']:,.0f} bytes each"
    yield (
        f"{ranks} ({result['launcher']}) on {nodes}, batches of {result['batch_size']} per rank, "
        f"{result['epochs']} x {_number(result['steps'], 'step')}, compute {result['compute_seconds'] * 1e3:g} ms; "
        f"median of {_number(result['repetitions'], 'run')}"
    )


def _shortened(error: str) -> str:
    """Leave out the middle of a long output; JSON and report have all of it."""
    lines = [line for line in error.splitlines() if line.strip()]
    if len(lines) > _MOST_LINES:
        lines = [lines[0], "...", *lines[2 - _MOST_LINES :]]
    return "\n    ".join(lines)


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def rows(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Give the cells of each row; a row that did not run says so."""
    first = next((row["median"] for row in result["rows"] if row["median"]), None)
    for row in result["rows"]:
        middle = row["median"]
        if middle is None:
            yield (row["name"], row["status"], *[""] * (len(HEADER) - 2))
            continue
        reads, fetched = _fetched(row)
        utilisation = middle["accelerator_utilisation"]
        assert first is not None
        yield (
            row["name"] + ("" if row["status"] == "ok" else f" ({row['status']})"),
            f"{middle['total_seconds']:.3f}",
            f"{middle['startup_seconds']:.3f}",
            f"{middle['exposed_seconds']:.3f}",
            "-" if utilisation is None or result["compute_seconds"] == 0 else f"{utilisation:.3f}",
            f"{middle['rate_mib_s']:.1f}",
            f"{reads:,.0f}",
            _bytes_text(fetched),
            f"{middle['minor_faults'] + middle['major_faults']:,.0f}",
            f"{first['total_seconds'] / middle['total_seconds']:.2f}",
            f"{row['spread'].get('total_seconds', 0):.1%}",
        )


def _fetched(row: dict[str, Any]) -> tuple[float, float]:
    """Return what reached the storage: the emulator's count where there is one, else the kernel's of block devices."""
    emulators = [one["pfs"] for one in row["repetitions"] if one["pfs"]]
    if not emulators:
        return row["median"]["reads"], row["median"]["storage_bytes"]
    return (
        statistics.median(sum(node["reads"] for node in one["nodes"]) for one in emulators),
        statistics.median(sum(node["read_bytes"] for node in one["nodes"]) for one in emulators),
    )


def _bytes_text(size: float) -> str:
    from forebay.cli.output import bytes_text

    return bytes_text(size)


def lines_below(result: dict[str, Any]) -> Iterator[str]:
    """Give what stands below the table: the limit, what was compared, errors and warnings."""
    limit = result["limit"]["rate_mib_s"]
    emulator = result["pfs"]
    if limit is not None:
        state = "cold" if result["cold"] else "with what the page cache holds"
        yield f"limit measured on the same path, {state}: {limit:.0f} MiB/s"
    if emulator is not None:
        yield (
            f"emulated file system {emulator['spec']['name']}, slow-down {emulator['slow_down']:g}: times and rates are the "
            f"model's, which allows {emulator['limit_mib_s']:.0f} MiB/s on {_number(result['nodes'], 'node')}"
        )
    for one in result["verified"]:
        what = (
            "the same samples at every step" if one["what"] == "steps" else "the same samples over an epoch"
        )
        names = ", ".join(one["rows"])
        yield f"verified, {what}: {names}" if one["equal"] else f"DIFFERENT: {one['difference']}"
    for row in result["rows"]:
        if row["status"] != "ok":
            yield f"{row['name']} {row['status']}: {_shortened(row['error'])}"
    workload = result.get("workload")
    if workload is not None and workload["utilisation_line"] is not None:
        yield f"{workload['name']} passes the benchmark it is from with an AU of {workload['utilisation_line']:g} or more"
    for note in () if workload is None else workload["notes"]:
        yield f"note: {note}"
    for warning in result["warnings"]:
        yield f"warning: {warning}"
