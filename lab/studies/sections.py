"""Shared parts of the scripts of pages: command line, `forebay` runs, rows of a result.

A section is a function that measures and returns rows. ``run_sections`` prints them in the tables
of the page; ``--save`` stores them and updates the page (figures.py).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import figures
from figures import Row

__all__ = [
    "DIRECTORY",
    "MIB",
    "Result",
    "Row",
    "bench_rows",
    "fetched",
    "keep_indexes",
    "run",
    "run_sections",
    "with_indexes",
]

DIRECTORY = Path(os.environ.get("FOREBAY_BENCH_DIR", "bench-data"))
MIB = 1 << 20

Result = dict[str, Any]
Study = TypeVar("Study")

_RUNS: list[str] = []
"""Commands of `forebay` that the present section ran."""

_MEDIANS = (
    "total_seconds",
    "startup_seconds",
    "exposed_seconds",
    "locate_seconds",
    "locate_and_read_seconds",
    "skew_seconds",
    "samples_per_second",
    "read_amplification",
    "messages_per_step",
)
"""Stored of a row's medians."""


def run_sections(
    doc: str | None,
    page: str,
    sections: Mapping[str, Callable[[Study], list[Row]]],
    groups: Mapping[str, Sequence[str]],
    study: Callable[[bool], Study],
) -> None:
    """Run what the command line asks for; `study` is made of whether the data shall be tiny."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small data, one shape each: whether it runs")
    parser.add_argument("--save", action="store_true", help="store the figures and update the page")
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"{', '.join((*groups, *sections))} [default: all]"
    )
    options = parser.parse_args()
    names = [part for name in options.sections or sections for part in groups.get(name, (name,))]
    if unknown := [name for name in names if name not in sections]:
        parser.error(f"no section {', '.join(unknown)}: choose from {', '.join((*groups, *sections))}")
    if options.save and options.tiny:
        parser.error("--save stores figures, and those of --tiny mean nothing")
    made = study(options.tiny)
    for name in names:
        section = sections[name]
        print(f"\n## {name}\n\n{getattr(section, 'func', section).__doc__}", flush=True)
        _RUNS.clear()
        rows = section(made)
        print(f"\n{figures.printed(page, name, rows)}", flush=True)
        for row in rows:
            if "error" in row:
                print(f"{row['name']} {row['status']}: {row['error']}", flush=True)
        if options.save:
            command = f"python lab/studies/{Path(sys.argv[0]).name} {name}"
            figures.save(page, name, {"command": command, "runs": list(_RUNS), "rows": rows})


def keep_indexes() -> None:
    """Keep sidecars beside the data, so that they go when the data goes."""
    cache = DIRECTORY / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o700)
    os.environ.setdefault("FOREBAY_CACHE_DIR", str(cache.resolve()))


def with_indexes(tiny: bool) -> bool:
    """Keep sidecars beside the data; return whether the data shall be tiny, which sections take."""
    keep_indexes()
    return tiny


def run(*arguments: str, quiet: bool = False) -> Result:
    """Run a command of forebay and return its JSON; print and store it unless quiet."""
    line = f"forebay {shlex.join(arguments)}"
    print(f"\n    {line}\n", file=sys.stderr if quiet else sys.stdout, flush=True)
    if not quiet:
        # Without what is this machine's.
        _RUNS.append(re.sub(r"\S*/forebay-study-\w+", "MOUNT", line).replace(str(DIRECTORY), "bench-data"))
    command = [sys.executable, "-m", "forebay", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        # A bench with a row that failed ends with 1, and its table says so.
        answer: Result = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return answer


def fetched(row: Result) -> tuple[int, int]:
    """Requests and bytes that reached the file system, in the first repetition."""
    nodes = row["repetitions"][0]["pfs"]["nodes"]
    return sum(node["reads"] for node in nodes), sum(node["read_bytes"] for node in nodes)


def bench_rows(result: Result, *, base: str | None = None, name: str = "name", **more: Any) -> list[Row]:
    """Flatten a bench result; `*_speedup` is over the row of strategy `base`, else the first."""
    pfs = result["pfs"]
    shared = {
        "pfs": pfs["spec"]["name"],
        "time_scale": pfs["time_scale"],
        "limit_mib_s": pfs["limit_mib_s"],
        **{
            key: result[key]
            for key in ("ranks", "world_size", "nodes", "global_batch", "steps", "compute_seconds")
        },
    }
    ended = [row for row in result["rows"] if row["status"] == "ok"]
    against = next((row for row in ended if base in (None, row["strategy"])), None)
    return [
        {"name": row[name], **shared, **more, **_measured(row, against, pfs["limit_mib_s"])}
        if row in ended
        else {"name": row[name], **shared, **more, "status": row["status"], "error": _cause(row)}
        for row in result["rows"]
    ]


def _measured(row: Result, against: Result | None, limit_mib_s: float) -> Row:
    median = row["median"]
    reads, read_bytes = fetched(row)
    rate = read_bytes / MIB / median["total_seconds"]
    servers = [one["pfs"]["servers"] for one in row["repetitions"]]
    found = {
        **{key: median[key] for key in _MEDIANS},
        "switches": _switches(row),
        "faults": median["minor_faults"] + median["major_faults"],
        "reads": reads,
        "bytes_per_read": read_bytes / max(reads, 1),
        "seeks": statistics.median(sum(server["seeks"] for server in one) for one in servers),
        "fetched_ratio": read_bytes / median["requested_bytes"],
        "fetched_mib_s": rate,
        "limit_share": rate / limit_mib_s,
        "total_spread": row["spread"]["total_seconds"],
    }
    if any(one["missed_deadlines"] for one in row["repetitions"]):
        found["missed_deadlines"] = True
    if against is not None:
        base = against["median"]
        found["total_speedup"] = _times(base["total_seconds"], median["total_seconds"])
        found["locate_and_read_speedup"] = _times(
            base["locate_and_read_seconds"], median["locate_and_read_seconds"]
        )
        found["switches_reduction"] = _times(_switches(against), _switches(row))
    return found


def _switches(row: Result) -> float:
    return float(row["median"]["voluntary_switches"] + row["median"]["involuntary_switches"])


def _times(first: float | None, value: float | None) -> float | None:
    return None if first is None or not value else first / value


def _cause(row: Result) -> str:
    """What a row that did not end said of a rank, or its first line."""
    said = (row["error"] or "").splitlines()
    return next((one for one in said if "rank" in one), next(iter(said), ""))
