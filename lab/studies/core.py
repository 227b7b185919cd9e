"""Measure the figures of docs/results/core.md.

Usage: ``make bench``, or ``python lab/studies/core.py [--only ROW ...] [--save]``

Each row runs in a new process, so it inherits no memory, mappings or page cache use of another
row. Data sets are made once and kept in ``$FOREBAY_BENCH_DIR`` (default ``./bench-data``, about
3.5 GB); ``--clean`` removes them. A row that misses its bar is reported,
and is no error; a row that cannot be measured is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import figures
from bench import datasets, report
from bench.harness import REPETITIONS, Outcome, Row, Settings, SkipError
from bench.rows import ROWS

DIRECTORY = Path(os.environ.get("FOREBAY_BENCH_DIR", "bench-data"))


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    settings = Settings(options.directory, options.scale, options.repetitions)
    if options.clean:
        datasets.clean(settings)
        return 0
    if options.inside:
        return _inside(_named(options.inside), settings)
    rows = [_named(name) for name in options.only] or list(ROWS)
    lines = []
    for row in rows:
        print(f"{row.name} ...", file=sys.stderr, flush=True)
        lines.append(_line(row, settings))
    if options.json:
        print(json.dumps([_as_json(line) for line in lines]))
    else:
        print(report.text(lines))
    if options.save:
        rows_found = [line.stored() for line in lines]
        figures.save("core", "core", {"command": "make bench", "runs": [], "rows": rows_found})
    return 1 if any(line.failed for line in lines) else 0


def _line(row: Row, settings: Settings) -> report.Line:
    """Measure a row in a new process."""
    arguments = ["--inside", row.name, "--directory", str(settings.directory)]
    arguments += ["--scale", str(settings.scale), "--repetitions", str(settings.repetitions)]
    cache = datasets.directory(settings) / "cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"FOREBAY_CACHE_DIR": str(cache.resolve())},
    )
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return report.Line(
            row, None, f"the measuring process ended with exit code {done.returncode}", failed=True
        )
    if "skipped" in answer:
        return report.Line(row, None, answer["skipped"])
    if "failed" in answer:
        return report.Line(row, None, answer["failed"], failed=True)
    answer["parts"] = tuple(map(tuple, answer["parts"]))
    answer["profile"] = tuple(map(tuple, answer["profile"]))
    return report.Line(row, Outcome(**answer))


def _inside(row: Row, settings: Settings) -> int:
    """Measure a row here; one line of JSON."""
    try:
        answer = dataclasses.asdict(row.measure(settings))
    except SkipError as skip:
        answer = {"skipped": str(skip)}
    except Exception as error:
        traceback.print_exc()
        answer = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer))
    return 0


def _as_json(line: report.Line) -> dict[str, object]:
    found = dataclasses.asdict(line.outcome) if line.outcome else {"why_not": line.why_not}
    return {"row": line.row.name, "bar": line.row.bar, "unit": line.row.unit, "met": line.met, **found}


def _named(name: str) -> Row:
    for row in ROWS:
        if row.name == name:
            return row
    sys.exit(f"unknown row {name!r}; the rows are: {', '.join(row.name for row in ROWS)}")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW", help="only these rows")
    parser.add_argument("--json", action="store_true", help="one JSON list on standard output")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="data sets (default: %(default)s)")
    parser.add_argument(
        "--save", action="store_true", help="store the figures and update docs/results/core.md"
    )
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="(default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the data sets, to try the rows")
    parser.add_argument("--clean", action="store_true", help="remove the data sets")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.save and (options.only or options.scale != 1):
        parser.error("--save stores all rows on full data: leave out --only and --scale")
    return options


if __name__ == "__main__":
    sys.exit(main())
