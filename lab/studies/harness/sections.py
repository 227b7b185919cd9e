"""The command line of all studies, runs of `forebay`, and rows of their results.

A section is a function that measures and returns rows. `main` prints them in the tables of the
study's page; ``--save`` stores them and updates the page (`pages`). What a study needs beside that
is in its `Study`.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forebay_lab.ranks import launch
from studies.harness import pages
from studies.harness.rows import Row

__all__ = [
    "DIRECTORY",
    "LAB",
    "MIB",
    "ROOT",
    "Result",
    "Row",
    "Scope",
    "SkipError",
    "Study",
    "bench_rows",
    "ended",
    "fetched",
    "main",
    "run",
    "shape",
    "studies",
    "title",
]

LAB = Path(__file__).resolve().parents[2]
"""Where the package `studies` is."""
ROOT = LAB.parent
DIRECTORY = Path(os.environ.get("FOREBAY_BENCH_DIR", "bench-data"))
MIB = 1 << 20
TINY_SCALE = 0.01
"""Share of the datasets that a tiny run makes."""

Result = dict[str, Any]

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


class SkipError(Exception):
    """A section that cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Scope:
    """What the command line asked for: all of a section, or a tiny run that shows that it runs."""

    tiny: bool = False
    directory: Path = DIRECTORY
    """Where datasets are kept."""
    repetitions: int = 1
    scale: float = 1.0
    """Share of the datasets of `scaled`."""
    options: argparse.Namespace = field(default_factory=argparse.Namespace)
    """Those of the study itself."""

    def pick(self, whole: Any, tiny: Any) -> Any:
        """Take the one or the other."""
        return tiny if self.tiny else whole

    def few(self, values: Sequence[Any]) -> Sequence[Any]:
        """Take all values; of a tiny run, the last one only."""
        return values[-1:] if self.tiny else values

    def scaled(self, samples: int) -> int:
        """Return how many samples to make of a dataset: at least about a thousand."""
        return max(int(samples * self.scale), 1024)


Section = Callable[[Scope], list[Row]]


@dataclass(frozen=True, kw_only=True)
class Study:
    """The entry point of a scope."""

    sections: Mapping[str, Section]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names for several sections."""
    repetitions: int = 3
    """Of `Scope`; a tiny run has one."""
    prepare: Callable[[Scope], None] = lambda scope: None
    """Called before the first section."""
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    """Adds options of the study itself."""
    words: Callable[[str], Sequence[str]] = lambda section: ()
    """Words of such options, for the stored command of a section."""
    isolated: bool = False
    """Whether each section runs in a new process, so that it inherits no memory, mappings or page
    cache use; then all rows are stored as the figures of the study's name."""
    is_simulated: bool = False
    """Whether nothing is measured: the rows are the same on every machine."""

    @property
    def names_sections(self) -> bool:
        """Whether a stored command names its section: there are others, or groups for more."""
        return not self.isolated and (len(self.sections) > 1 or bool(self.groups))


def studies() -> list[str]:
    """Name all studies."""
    folders = Path(__file__).resolve().parents[1].glob("*/study.py")
    return sorted(path.parent.name.replace("_", "-") for path in folders)


def main(words: Sequence[str]) -> int:
    """Run ``STUDY [OPTIONS] [SECTION ...]``; return the exit code."""
    name, *rest = words or ("--help",)
    if name == "pages":
        return pages.main(rest)
    if name in {"-h", "--help"}:
        print(_usage())
        return 0
    if name not in studies():
        print(f"no study {name}: choose from {', '.join(studies())}", file=sys.stderr)
        return 2
    # Programs of studies are modules of this package.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(LAB), os.environ.get("PYTHONPATH"))))
    package = f"studies.{name.replace('-', '_')}"
    study: Study = importlib.import_module(f"{package}.study").STUDY
    with launch.terminations_as_interrupts():
        return _run_study(
            name, study, _parse(name, importlib.import_module(package).__doc__ or "", study, rest)
        )


def _usage() -> str:
    lines = ["usage: python lab/studies STUDY [--tiny] [--save] [SECTION ...]", "", "studies:"]
    for name in studies():
        about = (importlib.import_module(f"studies.{name.replace('-', '_')}").__doc__ or "").splitlines()[0]
        lines.append(f"  {name:16} {about}")
    return "\n".join(
        [*lines, f"  {'pages':16} Write the tables and pictures of docs/results from the stored figures."]
    )


def _parse(name: str, about: str, study: Study, words: Sequence[str]) -> argparse.Namespace:
    sections = "\n".join(f"  {one:24} {title(section)}" for one, section in study.sections.items())
    parser = argparse.ArgumentParser(
        prog=f"python lab/studies {name}", description=about, epilog=f"sections:\n{sections}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    known = (*study.groups, *study.sections)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="[default: all]")
    parser.add_argument("--tiny", action="store_true", help="small data, few shapes: whether it runs")
    parser.add_argument("--save", action="store_true", help="store the figures and update the page")
    parser.add_argument("--json", action="store_true", help="print the rows of all sections as JSON")
    parser.add_argument(
        "--repetitions", type=int, default=study.repetitions, metavar="N",
        help="where rows are repeated [default: %(default)s]",
    )  # fmt: skip
    study.options(parser)
    options = parser.parse_args(words)
    if unknown := [one for one in options.sections if one not in known]:
        parser.error(f"no section {', '.join(unknown)}: choose from {', '.join(known)}")
    options.sections = [
        part for one in options.sections or study.sections for part in study.groups.get(one, (one,))
    ]
    if options.save and options.tiny:
        parser.error("--save stores figures, and those of --tiny mean nothing")
    if options.save and not pages.has(name):
        parser.error(f"--save needs a page: expected {pages.DATA / name}.json, found none")
    if options.save and study.isolated and len(options.sections) < len(study.sections):
        parser.error("--save stores all sections at once: name none")
    return options


def _run_study(name: str, study: Study, options: argparse.Namespace) -> int:
    make_directory()
    scope = Scope(options.tiny, repetitions=options.repetitions, options=options)
    if options.tiny:
        scope = replace(scope, repetitions=1, scale=TINY_SCALE)
    isolated = study.isolated and not options.json
    if not isolated:
        study.prepare(scope)
    found: dict[str, list[Row]] = {}
    for one in options.sections:
        section = study.sections[one]
        print(f"\n## {one}\n\n{title(section)}", file=sys.stderr if options.json else sys.stdout, flush=True)
        _RUNS.clear()
        found[one] = _in_new_process(name, one, options) if isolated else _rows(one, section, scope)
        stored = name if study.isolated else one
        if not options.json:
            print(f"\n{pages.printed(name, stored, found[one])}", flush=True)
            for row in found[one]:
                if "error" in row:
                    print(f"{row['name']} {row['status']}: {row['error']}", flush=True)
        if options.save and not study.isolated:
            words = [name, *([one] if study.names_sections else []), *study.words(one)]
            if options.repetitions != study.repetitions:
                words += ["--repetitions", str(options.repetitions)]
            _save(study, (name, one), words, found[one])
    every = [row for rows in found.values() for row in rows]
    if options.json:
        print(json.dumps(found))
    elif options.save and study.isolated:
        _save(study, (name, name), [name], every)
    return 1 if any(row.get("status") == "failed" and study.isolated for row in every) else 0


def _rows(name: str, section: Section, scope: Scope) -> list[Row]:
    try:
        return section(scope)
    except SkipError as skip:
        return [{"name": name, "status": "skipped", "error": str(skip)}]


def _in_new_process(study: str, section: str, options: argparse.Namespace) -> list[Row]:
    tiny = ["--tiny"] if options.tiny else []
    command = [sys.executable, str(LAB / "studies"), study, section, *tiny, "--json"]
    command += ["--repetitions", str(options.repetitions)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        rows: list[Row] = json.loads(done.stdout.splitlines()[-1])[section]
    except (IndexError, ValueError):
        error = f"the measuring process ended with exit code {done.returncode}"
        return [{"name": section, "status": "failed", "error": error}]
    return rows


def _save(study: Study, place: tuple[str, str], words: Sequence[str], rows: Sequence[Row]) -> None:
    command = shlex.join(["python", "lab/studies", *words])
    figures = {"command": command, "runs": list(_RUNS), "rows": rows}
    pages.save(*place, figures, is_simulated=study.is_simulated)


def title(section: Any) -> str:
    """Return what a section says that it measures."""
    return (
        inspect.cleandoc(getattr(section, "func", section).__doc__ or "").split("\n\n")[0].replace("\n", " ")
    )


def make_directory() -> None:
    """Make the directory of data, which git does not see, and keep sidecars there."""
    cache = DIRECTORY / "cache"
    if not DIRECTORY.exists():
        DIRECTORY.mkdir(parents=True)
        (DIRECTORY / ".gitignore").write_text("*\n")
    cache.mkdir(mode=0o700, exist_ok=True)
    os.environ.setdefault("FOREBAY_CACHE_DIR", str(cache.resolve()))


def shape(ranks: int, nodes: int) -> tuple[str, ...]:
    """Return the options of a bench for ranks on nodes."""
    return ("--ranks", str(ranks), "--nodes", str(nodes))


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


def ended(row: Result) -> Result:
    """Return a row of a bench; raise what it says if it did not end."""
    if row["status"] != "ok":
        raise RuntimeError(f"{row['name']}: {row['error']}")
    return row


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
    done = [row for row in result["rows"] if row["status"] == "ok"]
    against = next((row for row in done if base in (None, row["strategy"])), None)
    return [
        {"name": row[name], **shared, **more, **_measured(row, against, pfs["limit_mib_s"])}
        if row in done
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
