"""Compare two builds on the warm rows of ``core.py``.

Usage: ``python lab/studies/pairs.py --against OTHER/python``

``OTHER`` is another checkout in which ``make build`` was run. Each pair is two new processes, one
of either build, which take turns: one epoch each, the first of a turn alternating, so that both
meet the same neighbours on the machine. Of a pair counts the ratio of the medians of its epochs, of
all pairs the median, with a 95 % interval from 10,000 bootstrap samples. Processor time is the
process's own, user and system.

``--options`` gives this side other options: ``--options strategy=pread`` measures what reading
costs where copying from a mapping would do.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import figures
from bench import datasets
from bench.feed import Feed
from bench.harness import Settings
from figures import Row

ROOT = Path(__file__).resolve().parents[2]

# Row: data set, order, batch, options.
ROWS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "random-3k": ("small", "shuffle", 256, {}),
    "shuffle-110k": ("large", "shuffle", 32, {}),
    "sequential-3k": ("small", "sequential", 256, {}),
    "group-3k": ("small", "group", 256, {}),
    "group-110k": ("large", "group", 32, {}),
    "datum-3k": ("labelled", "shuffle", 256, {"schema": "caffe-datum"}),
    "mmap-110k": ("large", "sequential", 32, {"strategy": "mmap"}),
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    settings = Settings(options.directory, options.scale, 7)
    if options.inside:
        _serve(options.inside, settings, dict(one.split("=", 1) for one in options.options))
        return
    found = []
    for name in options.rows or ROWS:
        times, cpus = [], []
        for _ in range(options.pairs):
            seconds, cpu = _pair(name, options)
            times.append(seconds)
            cpus.append(cpu)
        row = {"name": name, **_interval("time", times), **_interval("cpu", cpus), "pairs": len(times)}
        found.append(row)
        print(
            "{name:14} time {time:.3f} ({time_low:.3f} to {time_high:.3f})   "
            "processor {cpu:.3f} ({cpu_low:.3f} to {cpu_high:.3f})   {pairs} pairs".format_map(row),
            flush=True,
        )
    if options.save:
        figures.save("lost-pages", options.save, {"command": _command(options), "runs": [], "rows": found})


def _command(options: argparse.Namespace) -> str:
    """Return the command line, without what is this machine's."""
    words = [*options.rows]
    if options.against.resolve() != (ROOT / "python").resolve():
        words += ["--against", "OTHER/python"]
    if options.options:
        words += ["--options", *options.options]
    return shlex.join(["python", "lab/studies/pairs.py", *words, "--pairs", str(options.pairs)])


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", choices=[*ROWS, []], help=f"default: {', '.join(ROWS)}"
    )
    parser.add_argument(
        "--against", type=Path, default=ROOT / "python", help="python directory of the other build"
    )
    parser.add_argument(
        "--options", nargs="*", default=[], metavar="NAME=VALUE", help="options of this side only"
    )
    parser.add_argument(
        "--save", choices=("handler", "pread"), help="store as these figures of docs/results/lost-pages.md"
    )
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=8, help="epochs of each process")
    parser.add_argument("--scale", type=float, default=0.25, help="of the data sets")
    parser.add_argument(
        "--directory", type=Path, default=Path(os.environ.get("FOREBAY_BENCH_DIR", "bench-data"))
    )
    parser.add_argument("--inside", choices=ROWS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"no row is called {', '.join(sorted(unknown))}: expected one of {', '.join(ROWS)}")
    return options


def _serve(name: str, settings: Settings, options: dict[str, Any]) -> None:
    """Drain an epoch whenever a line comes, and answer with what it took."""
    kind, order, batch, own = ROWS[name]
    dataset = getattr(datasets, kind)(settings)
    datasets.warm(dataset.file)
    feed = Feed(dataset, order, batch, **{**own, **options})
    feed.drain()
    print("ready", flush=True)
    for _ in sys.stdin:
        before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        feed.drain()
        seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(json.dumps([seconds, cpu]), flush=True)
    feed.close()


def _pair(name: str, options: argparse.Namespace) -> tuple[float, float]:
    """Measure a pair of processes; return time and CPU time of this build over the other's."""
    cache = datasets.directory(Settings(options.directory, options.scale, 7)) / "cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    arguments = ["--inside", name, "--scale", str(options.scale), "--directory", str(options.directory)]
    sides = []
    for package, own in ((options.against, []), (ROOT / "python", options.options)):
        sides.append(
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, *arguments, *(["--options", *own] if own else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ
                | {"PYTHONPATH": str(package.resolve()), "FOREBAY_CACHE_DIR": str(cache.resolve())},
            )
        )
        assert _ask(sides[-1], None) == "ready"
    found: list[list[list[float]]] = [[], []]
    for turn in range(options.epochs):
        for side in (0, 1) if turn % 2 else (1, 0):
            found[side].append(json.loads(_ask(sides[side], "go")))
    for side in sides:
        side.communicate()
    middle = [[statistics.median(column) for column in zip(*one, strict=True)] for one in found]
    return middle[1][0] / middle[0][0], middle[1][1] / middle[0][1]


def _ask(process: subprocess.Popen[str], line: str | None) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if line is not None:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def _interval(name: str, ratios: Sequence[float]) -> Row:
    """Return the median with its 95 % interval."""
    generator = random.Random(1)
    middles = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return {name: statistics.median(ratios), f"{name}_low": middles[250], f"{name}_high": middles[9750]}


if __name__ == "__main__":
    main()
