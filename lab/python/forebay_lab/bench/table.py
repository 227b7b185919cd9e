"""The result of a bench as text for people."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["header", "lines_above", "lines_below", "rows"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, and its cell from a row's median, its spread and the whole result."""

    title: str
    cell: Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], str]
    key: str | None = None
    """Left out where no row has this key of the median."""


def _scalar(key: str, form: str, title: str) -> Column:
    def cell(row: dict[str, Any], middle: dict[str, Any], result: dict[str, Any]) -> str:
        del row, result
        value = middle.get(key)
        return "-" if value is None else format(value, form)

    return Column(title, cell, key)


def _utilisation(row: dict[str, Any], middle: dict[str, Any], result: dict[str, Any]) -> str:
    del row
    value = middle["accelerator_utilisation"]
    return "-" if value is None or result["compute_seconds"] == 0 else f"{value:.3f}"


def _times_first(row: dict[str, Any], middle: dict[str, Any], result: dict[str, Any]) -> str:
    del row
    first = next(one["median"] for one in result["rows"] if one["median"])
    return f"{first['total_seconds'] / middle['total_seconds']:.2f}"


_COLUMNS = (
    _scalar("total_seconds", ".3f", "total s"),
    _scalar("startup_seconds", ".3f", "start-up s"),
    _scalar("exposed_seconds", ".3f", "exposed s"),
    _scalar("locate_seconds", ".3f", "locate s"),
    _scalar("locate_and_read_seconds", ".3f", "locate+read s"),
    _scalar("skew_seconds", ".3f", "skew s"),
    Column("AU", _utilisation),
    _scalar("rate_mib_s", ".1f", "MiB/s"),
    Column("reads", lambda row, middle, result: f"{_fetched(row)[0]:,.0f}"),
    Column("fetched", lambda row, middle, result: _bytes_text(_fetched(row)[1])),
    _scalar("read_amplification", ".2f", "read amp"),
    Column("faults", lambda row, middle, result: f"{middle['minor_faults'] + middle['major_faults']:,.0f}"),
    Column(
        "switches",
        lambda row, middle, result: f"{middle['voluntary_switches'] + middle['involuntary_switches']:,.0f}",
    ),
    _scalar("messages_per_step", ".2f", "messages"),
    _scalar("guess_hit_share", ".1%", "guessed"),
    Column("× first", _times_first),
    Column("spread", lambda row, middle, result: f"{row['spread'].get('total_seconds', 0):.1%}"),
)
"""Defined in docs/bench.md."""


def _simulated_wall(row: dict[str, Any], middle: dict[str, Any], result: dict[str, Any]) -> str:
    del middle, result
    simulated = (row["simulated"] or {}).get("median")
    return "-" if simulated is None else f"{simulated['wall_seconds']:.3f}"


def _error(row: dict[str, Any], middle: dict[str, Any], result: dict[str, Any]) -> str:
    del middle, result
    error = (row["simulated"] or {}).get("wall_error")
    return "-" if error is None else f"{error:+.1%}"


_SIMULATED = (
    _scalar("wall_seconds", ".3f", "wall s"),
    Column("sim s", _simulated_wall),
    Column("error", _error),
)
"""Of a bench whose rows were simulated."""

_OF_A_RANK = re.compile(r"^bench: rank \d+: ")
"""Begins what a rank says before it ends by itself."""

_MOST_LINES = 12
"""Of the output of a program that died."""


def lines_above(result: dict[str, Any]) -> Iterator[str]:
    """Return the lines above the table: what was run."""
    dataset = result["dataset"]
    ranks, nodes = _number(result["ranks"], "rank"), _number(result["nodes"], "node")
    if (emulated := result["node_emulation"]["by"]) is not None:
        uneven = len(set(result["ranks_per_node"])) > 1
        nodes += f" ({emulated}{': ' + '+'.join(map(str, result['ranks_per_node'])) if uneven else ''})"
    yield f"{dataset['samples']:,} samples ({dataset['format']}), {dataset['mean_bytes']:,.0f} bytes each"
    yield (
        f"{ranks} ({result['launcher']}) on {nodes}, batches of {result['batch_size']} per rank, "
        f"{result['epochs']} x {_number(result['steps'], 'step')}, compute {result['compute_seconds'] * 1e3:g} ms; "
        f"median of {_number(result['repetitions'], 'run')}"
    )
    limits = []
    if (memory := result.get("node_memory_bytes")) is not None:
        limits.append(f"{_bytes_text(memory)} of memory")
    if (rate := result.get("link_rate_bits_per_second")) is not None:
        limits.append(f"links of {rate / 1e9:g} Gbit/s")
    if tiers := result.get("tiers"):
        limits.append(f"tiers {', '.join(tiers)}")
    if limits:
        yield f"each node has {'; '.join(limits)}"


def _shortened(error: str) -> str:
    """Leave out the middle of a long output; JSON and report have all of it."""
    lines = [line for line in error.splitlines() if line.strip()]
    own = [at for at, line in enumerate(lines) if _OF_A_RANK.match(line)]
    if own:
        # What a rank had to say; around it stands what the launcher says of any rank that ended.
        lines = [
            lines[0],
            lines[own[0]],
            *(line for line in lines[own[0] + 1 :][:1] if line.startswith("hint: ")),
        ]
    if len(lines) > _MOST_LINES:
        lines = [lines[0], "...", *lines[2 - _MOST_LINES :]]
    return "\n    ".join(lines)


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _shown(result: dict[str, Any]) -> list[Column]:
    middles = [row["median"] for row in result["rows"] if row["median"]]
    columns = [*_COLUMNS, *_SIMULATED] if result.get("simulation") else _COLUMNS
    return [
        column
        for column in columns
        if column.key is None or any(middle.get(column.key) is not None for middle in middles)
    ]


def header(result: dict[str, Any]) -> tuple[str, ...]:
    """Return the titles of the columns that hold values."""
    return ("row", *(column.title for column in _shown(result)))


def rows(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Return the cells of each row; a row that did not run shows why."""
    columns = _shown(result)
    for row in result["rows"]:
        middle = row["median"]
        if middle is None:
            cells = [row["status"], *[""] * len(columns)]
            yield (row["name"], *cells[: len(columns)])
            continue
        name = row["name"] + ("" if row["status"] == "ok" else f" ({row['status']})")
        yield (name, *(column.cell(row, middle, result) for column in columns))


def _fetched(row: dict[str, Any]) -> tuple[float, float]:
    """Return what reached the storage: by the emulator, else the kernel's block devices."""
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


def _behind(result: dict[str, Any]) -> Iterator[str]:
    """Return which rows read more slowly than they compute, by how much, and advice."""
    from forebay_lab.report import data, pace

    for one in pace.behind(data.from_bench(result, "the bench result")):
        yield f"{one.name}: {one.words()}"


def _epochs(result: dict[str, Any]) -> Iterator[str]:
    """Return the epochs of each row, where there are several."""
    for row in result["rows"]:
        runs = [one["by_epoch"] for one in row["repetitions"] if one.get("by_epoch")]
        count = min(map(len, runs), default=0)
        if count < 2:
            continue
        cells = []
        for epoch in range(count):
            of_epoch = [run[epoch] for run in runs]
            cell = f"{statistics.median(one['seconds'] for one in of_epoch):.3f} s"
            fetched = [one["pfs"]["read_bytes"] for one in of_epoch if one["pfs"]]
            cells.append(cell + (f" ({_bytes_text(statistics.median(fetched))} fetched)" if fetched else ""))
        yield f"{row['name']} by epoch: {', '.join(cells)}"


def lines_below(result: dict[str, Any]) -> Iterator[str]:
    """Return the lines below the table: limit, comparison, slow reading, errors and warnings."""
    limit = result["limit"]["rate_mib_s"]
    emulator = result["pfs"]
    if limit is not None:
        state = "cold" if result["cold"] else "with what the page cache holds"
        yield f"limit measured on the same path, {state}: {limit:.0f} MiB/s"
    if emulator is not None:
        yield (
            f"emulated file system {emulator['spec']['name']}, time scale {emulator['time_scale']:g}: times and rates are the "
            f"model's, which allows {emulator['limit_mib_s']:.0f} MiB/s on {_number(result['nodes'], 'node')}"
        )
    for one in result["verified"]:
        what = (
            "the same samples at every step" if one["what"] == "steps" else "the same samples over an epoch"
        )
        names = ", ".join(one["rows"])
        yield f"verified, {what}: {names}" if one["equal"] else f"DIFFERENT: {one['difference']}"
    yield from _epochs(result)
    yield from _behind(result)
    for row in result["rows"]:
        if row["status"] != "ok":
            yield f"{row['name']} {row['status']}: {_shortened(row['error'])}"
        if (simulated := row.get("simulated")) and simulated["error"]:
            yield f"{row['name']}: {simulated['error']}"
    workload = result.get("workload")
    if workload is not None and workload["utilisation_line"] is not None:
        yield f"{workload['name']} passes the benchmark it is from with an AU of {workload['utilisation_line']:g} or more"
    for note in () if workload is None else workload["notes"]:
        yield f"note: {note}"
    for warning in result["warnings"]:
        yield f"warning: {warning}"
