"""The harness of the benchmarks: what a row is, how it is measured, how it is told.

A row compares Forebay with something plain on the same bytes, side by side in one process and one
run: warm-ups, then repetitions in turn (ours, theirs, ours, theirs ...), so that whatever else the
machine does hits both. What counts is the median of the ratios of neighbours; the quartiles are its
spread. Single times are shown but claim nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPETITIONS = 7
WARM_UPS = 3


class SkipError(Exception):
    """A row that cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Settings:
    """Where and how much."""

    directory: Path
    scale: float = 1.0
    """Share of the full data sets; below 1 the figures mean nothing, but everything is run."""
    repetitions: int = REPETITIONS

    def scaled(self, samples: int) -> int:
        return max(int(samples * self.scale), 1024)


@dataclass(frozen=True)
class Outcome:
    """What a row found."""

    figure: float
    low: float
    high: float
    """Quartiles of the repetitions."""
    parts: tuple[tuple[str, str], ...] = ()
    """What was compared: name and median, as text."""
    profile: tuple[tuple[str, str], ...] = ()
    """Where the time went: from the loader's own counters and the process's processor time."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    title: str
    against: str
    bar: float
    at_least: bool
    """True: the figure should reach the bar; False: stay below it."""
    unit: str
    measure: Callable[[Settings], Outcome] = field(compare=False)

    def meets(self, figure: float) -> bool:
        return figure >= self.bar if self.at_least else figure <= self.bar

    def bar_text(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.format(self.bar)}"

    def format(self, figure: float) -> str:
        digits = 2 if abs(figure) < 10 else 1
        return f"{figure:.{digits}f}{'' if self.unit == '×' else ' '}{self.unit}"


def in_turn(measures: dict[str, Callable[[], float]], repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of each measure, by name; measures return seconds and run in turn."""
    for _ in range(min(WARM_UPS, repetitions)):
        for measure in measures.values():
            measure()
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(repetitions):
        for name, measure in measures.items():
            found[name].append(measure())
    return found


def timed(action: Callable[[], Any]) -> float:
    """Wall time of an action [s]."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def ratio(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Median and quartiles of theirs / ours: how many times faster we are."""
    return quartiles([b / a for a, b in zip(ours, theirs, strict=True)])


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def rate(bytes_moved: float, seconds: list[float]) -> str:
    """Median rate as text."""
    return f"{bytes_moved / statistics.median(seconds) / 1e6:,.0f} MB/s"
