"""The sections: this build against another one, and ``pread`` against mappings."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from forebay_lab.bench.turns import in_turn, median_interval
from studies.harness.program import Program
from studies.harness.sections import LAB, ROOT, Row, Scope, Study
from studies.lost_pages.side import ROWS

SCALE = 0.25
"""Of the datasets of ``core``: so much stays in the page cache."""
EPOCHS = 8
"""Of each process."""
OF_PREAD = ("random-3k", "sequential-3k", "group-3k", "shuffle-110k", "group-110k")


def handler(scope: Scope) -> list[Row]:
    """Time and processor time of this build over those of another."""
    return [_row(scope, name, scope.options.against, ()) for name in scope.few(tuple(ROWS))]


def pread(scope: Scope) -> list[Row]:
    """Time and processor time with `pread` over those with what is default."""
    return [_row(scope, name, ROOT / "python", ("strategy=pread",)) for name in scope.few(OF_PREAD)]


def _row(scope: Scope, name: str, other: Path, options: Sequence[str]) -> Row:
    pairs = [_pair(scope, name, other, options) for _ in range(scope.repetitions)]
    times, cpus = zip(*pairs, strict=True)
    return {
        "name": name,
        **median_interval("time", times),
        **median_interval("cpu", cpus),
        "pairs": len(pairs),
    }


def _pair(scope: Scope, name: str, other: Path, options: Sequence[str]) -> tuple[float, float]:
    """Measure a pair of processes; return time and CPU time of this build over the other's."""
    scale = scope.scale if scope.tiny else SCALE
    words = [sys.executable, "-W", "ignore", "-m", "studies.lost_pages.side", name, str(scope.directory)]
    sides = {"other": (other, ()), "ours": (ROOT / "python", options)}
    with contextlib.ExitStack() as stack:
        measures = {}
        for side, (package, own) in sides.items():
            path = os.pathsep.join(map(str, (package.resolve(), LAB, LAB / "python")))
            program = stack.enter_context(Program([*words, str(scale), *own], {"PYTHONPATH": path}))
            program.line()
            measures[side] = partial(program.ask, "go")
        found = in_turn(measures, 2 if scope.tiny else EPOCHS, warm_ups=0)
    seconds, cpu = (
        statistics.median(one[figure] for one in found["ours"])
        / statistics.median(one[figure] for one in found["other"])
        for figure in (0, 1)
    )
    return seconds, cpu


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against", type=Path, default=ROOT / "python", metavar="OTHER/python",
        help="python directory of the other build, of `handler` [default: this one]",
    )  # fmt: skip


STUDY = Study(
    sections={"handler": handler, "pread": pread},
    repetitions=9,
    options=_options,
    words=lambda section: ("--against", "OTHER/python") if section == "handler" else (),
)
