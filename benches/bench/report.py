"""The table, as text for the terminal and as the page `docs/results/core.md`."""

from __future__ import annotations

import os
import platform
import tomllib
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from bench.harness import Outcome, Row, Settings

REASONS = Path(__file__).parents[1] / "reasons.toml"


@dataclass(frozen=True)
class Line:
    """A row with what came out."""

    row: Row
    outcome: Outcome | None
    why_not: str = ""
    """Why it was skipped or failed."""
    failed: bool = False

    @property
    def met(self) -> bool:
        return self.outcome is not None and self.row.meets(self.outcome.figure)

    @property
    def verdict(self) -> str:
        if self.outcome is None:
            return "failed" if self.failed else "skipped"
        return "yes" if self.met else "NO"

    def figure(self) -> str:
        return self.row.format(self.outcome.figure) if self.outcome else "–"

    def spread(self) -> str:
        if self.outcome is None:
            return "–"
        return f"{self.row.format(self.outcome.low)} – {self.row.format(self.outcome.high)}"


def command(row: Row) -> str:
    return f"python benches/core.py --only {row.name}"


def text(lines: list[Line]) -> str:
    """For the terminal."""
    head = ("row", "median", "quartiles", "bar", "met")
    cells = [
        head,
        *((line.row.name, line.figure(), line.spread(), line.row.bar_text(), line.verdict) for line in lines),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    out = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    for line in lines:
        out.append(f"\n{line.row.name}: {line.row.title}, against {line.row.against}")
        if line.outcome is None:
            out.append(f"    {line.why_not}")
            continue
        out += [f"    {name}: {value}" for name, value in line.outcome.parts]
        if line.outcome.profile:
            out.append("    " + ", ".join(f"{name} {value}" for name, value in line.outcome.profile))
    return "\n".join(out)


def page(lines: list[Line], settings: Settings) -> str:
    """The page."""
    reasons = tomllib.loads(REASONS.read_text()) if REASONS.exists() else {}
    out = [
        "# The core, measured",
        "",
        "Made by `make bench`. Every figure compares two things on the same bytes, side by side in one run: "
        f"warm-ups, then {settings.repetitions} repetitions in turn; the figure is the median of the ratios of "
        "neighbours (a larger × is better for Forebay), the quartiles are its spread. Absolute times and rates say "
        "little on a shared virtual machine; ratios do.",
        "",
        f"Measured on {date.today().isoformat()}: {_machine()}.",
        *(
            [f"**Data sets scaled to {settings.scale}: these figures mean nothing.**"]
            if settings.scale != 1
            else []
        ),
        "",
        "| What | Against | Median | Quartiles | Bar | Met | Command |",
        "|---|---|---|---|---|---|---|",
    ]
    out += [
        f"| {line.row.title} | {line.row.against} | {line.figure()} | {line.spread()} | {line.row.bar_text()} "
        f"| {line.verdict} | `{command(line.row)}` |"
        for line in lines
    ]
    out += ["", "## In detail"]
    for line in lines:
        out += ["", f"### {line.row.name}", ""]
        if line.outcome is None:
            out.append(f"{line.verdict.capitalize()}: {line.why_not}")
            continue
        out += [f"- {name}: {value}" for name, value in line.outcome.parts]
        if line.outcome.profile:
            spent = ", ".join(f"{name} {value}" for name, value in line.outcome.profile)
            out.append(f"- the loader's own counters, all epochs of the run: {spent}")
        if not line.met:
            reason = reasons.get(line.row.name, "not yet looked into")
            out += [
                f"- **misses its bar**: {reason}",
                f"- to look into it: `perf record -g {command(line.row)}`",
            ]
    return "\n".join(out) + "\n"


def _machine() -> str:
    """The machine and what it was doing, in words."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "lmdb"))
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {packages}; load averages at the end {load}"
    )
