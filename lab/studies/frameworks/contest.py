"""Measure loaders side by side: they take turns, so that a change of the machine meets all.

In order:

1. The data is written in the format of every loader that is installed.
2. Every rank of every loader starts, and rehearses: an epoch that fills caches, starts workers and
   traces graphs.
3. Warm rounds: each loader in turn iterates an epoch, or as many as take ``TURN_S``.
4. Cold rounds: before each turn the ranks let go of the files, their pages are dropped, and a probe
   shows that they are gone.

Every turn is checked: each sample exactly once. A loader that fails is a row that says why.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import forebay
from forebay_lab.ranks import page_cache
from studies.frameworks import formats
from studies.frameworks.job import Job, Turn
from studies.frameworks.place import Place
from studies.frameworks.registry import Entry
from studies.harness.program import ProgramError
from studies.harness.sections import DIRECTORY, Row

__all__ = ["compare", "prepared", "write_formats"]

ROUNDS = 5
COLD_ROUNDS = 3
TURN_S = 0.3
PAUSE_S = 0.05
STAYED = 0.02
"""Share of a file's pages that may stay: more is an error of the row."""
DROP_S = 2
"""Time in which the pages of a file have to go: the kernel keeps those that it is at work on."""
WRITE_S = 180
BUDGET_S = {"warm": 90, "cold": 150}
"""Time after the start of a section; later, only the first round of a state begins."""


def prepared(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of a dataset, which is made once."""
    folder = (DIRECTORY / "frameworks" / name).resolve()
    if not (folder / "made").exists():
        folder.mkdir(parents=True, exist_ok=True)
        make(folder)
        (folder / "made").touch()
    return folder


def compare(
    entries: Sequence[Entry],
    folder: Path,
    facts: Mapping[str, Any],
    ranks: int,
    states: Sequence[str],
    *,
    tiny: bool,
) -> list[Row]:
    """Measure all entries; return rows, with ratios to the best stock loader and the bound."""
    begun = time.monotonic()
    rows = {entry.name: _row(entry, ranks) for entry in entries}
    # Those that are not installed are rows without figures.
    present = [entry for entry in entries if "status" not in rows[entry.name]]
    write_formats(folder, sorted({entry.format for entry in present} & set(formats.FORMATS)))
    with contextlib.ExitStack() as stack:
        runners: dict[str, _Runner] = {}
        for entry in present:
            with _failing(rows[entry.name]):
                runners[entry.name] = _Runner(entry, folder, facts, ranks)
                stack.callback(_Runner.close, runners[entry.name])
        alive = _each(runners, rows, _Runner.rehearse)
        for state in states:
            rounds = 1 if tiny else ROUNDS if state == "warm" else COLD_ROUNDS
            for runner in alive.values():
                if state == "cold":
                    # What is mapped cannot be dropped.
                    stays = state in runner.entry.states and not runner.entry.restarts
                    runner.job.release() if stays else runner.job.close()
            alive = {
                name: one for name, one in alive.items() if state in one.entry.states or state != states[-1]
            }
            for round_ in range(rounds):
                if round_ and time.monotonic() - begun > BUDGET_S[state]:
                    break
                chosen = {name: one for name, one in alive.items() if state in one.entry.states}
                kept = _each(chosen, rows, _Runner.cold if state == "cold" else _Runner.warm)
                alive = {name: one for name, one in alive.items() if name not in chosen or name in kept}
            for name, runner in alive.items():
                if runner.turns[state]:
                    rows[name] |= _figures(state, runner.turns[state])
    for state in states:
        _ratios(list(rows.values()), state)
    return list(rows.values())


@dataclass
class _Runner:
    """The job of an entry and its turns."""

    entry: Entry
    folder: Path
    facts: Mapping[str, Any]
    ranks: int
    turns: dict[str, list[Turn]] = field(default_factory=lambda: {"warm": [], "cold": []})
    first: int = 0
    epochs: int = 1

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the ranks; their loaders are made while others start."""
        job = f"compared-{os.getpid()}-{abs(hash(self.entry.name))}"
        places = [
            Place(
                **self.facts,
                folder=str(self.folder),
                rank=rank,
                ranks=self.ranks,
                job=job,
                settings=dict(self.entry.settings),
            )
            for rank in range(self.ranks)
        ]
        self.job = Job(self.entry.loader, places)

    def close(self) -> None:
        self.job.close()

    def rehearse(self) -> None:
        self.job.ready()
        self._take(1)
        # Once more: the first turn started workers.
        turn = self._take(1)
        self.epochs = max(1, math.ceil(TURN_S / turn.seconds))

    def warm(self) -> None:
        self.turns["warm"].append(self._take(self.epochs))

    def cold(self) -> None:
        if self.entry.restarts:
            self.job.close()
            self.start()
            self.job.ready()
        else:
            self.job.release()
        for path in formats.files(self.folder, self.entry.format):
            _drop(path)
        self.turns["cold"].append(self._take(1))
        # What it maps would keep the pages of rows that read the same files.
        self.job.close() if self.entry.restarts else self.job.release()

    def _take(self, epochs: int) -> Turn:
        turn = self.job.turn(self.first, epochs)
        self.first += epochs
        samples = self.facts["samples"]
        expected = epochs * samples
        if turn.samples != expected:
            raise ProgramError(f"expected {expected} samples, found {turn.samples}")
        if self.facts["kind"] == "raw" and turn.total != epochs * samples * (samples - 1) // 2:
            raise ProgramError(
                "the numbers of the samples do not add up: some are missing, others come twice"
            )
        time.sleep(PAUSE_S)
        return turn


def _drop(path: Path) -> None:
    """Drop a file from the page cache; raise where it stays."""
    begun = time.monotonic()
    while True:
        page_cache.drop(path)
        stayed = page_cache.resident_share(path)
        if stayed is None or stayed <= STAYED:
            return
        if time.monotonic() - begun > DROP_S:
            raise ProgramError(f"{path.name}: expected no pages in the page cache, found {stayed:.0%}")
        time.sleep(PAUSE_S)


def _each(
    runners: Mapping[str, _Runner], rows: Mapping[str, Row], what: Callable[[_Runner], None]
) -> dict[str, _Runner]:
    """Call a method of all runners in turn; return those that did not fail."""
    alive = {}
    for name, runner in runners.items():
        with _failing(rows[name]):
            what(runner)
            alive[name] = runner
        if name not in alive:
            runner.job.close()
    return alive


@contextlib.contextmanager
def _failing(row: Row) -> Iterator[None]:
    try:
        yield
    except (ProgramError, OSError) as error:
        row |= {"status": "failed", "error": str(error)}


def _row(entry: Entry, ranks: int) -> Row:
    row: Row = {"name": entry.name, "role": entry.role, "ranks": ranks}
    missing = [name for name in entry.packages if find_spec(name) is None]
    if missing:
        row |= {"status": "skipped", "error": f"not installed: {', '.join(missing)}"}
    elif entry.settings.get("function") == "engine" and not hasattr(forebay, "image"):
        row |= {"status": "skipped", "error": "forebay.image is not built"}
    return row


def _figures(state: str, turns: Sequence[Turn]) -> Row:
    rates = [turn.samples / turn.seconds for turn in turns]
    middle = statistics.median(rates)
    return {
        f"{state}_samples_s": middle,
        f"{state}_cpu_us_sample": statistics.median(turn.cpu_seconds / turn.samples for turn in turns) * 1e6,
        f"{state}_spread": (max(rates) - min(rates)) / middle,
        f"{state}_rounds": len(turns),
    }


def _ratios(rows: Sequence[Row], state: str) -> None:
    """Add each row's rate over the best stock loader's, and over the bound's."""
    key = f"{state}_samples_s"
    rates = {
        role: [row[key] for row in rows if row["role"] == role and key in row] for role in ("stock", "bound")
    }
    for row in rows:
        if key in row and rates["stock"]:
            row[f"{state}_times_best"] = row[key] / max(rates["stock"])
        if key in row and rates["bound"]:
            row[f"{state}_bound_share"] = row[key] / max(rates["bound"])


def write_formats(folder: Path, names: Sequence[str]) -> None:
    """Write formats in a new process, as this one imports no frameworks."""
    command = [sys.executable, "-m", "studies.frameworks.formats", str(folder), json.dumps(list(names))]
    done = subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=WRITE_S,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
