"""What a row is: Forebay compared with something plain on the same bytes, and a bar.

Both sides run in one process, in turn (`forebay_lab.bench.turns`). What counts is the median of the
ratios of neighbours; the quartiles are its spread. Single times are shown but claim nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forebay_lab.bench.turns import in_turn, quartiles, ratios
from studies.harness import rows
from studies.harness.measured_loader import MeasuredLoader
from studies.harness.sections import Scope, Section

WARM_UPS = 3


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
    measure: Callable[[Scope], Outcome] = field(compare=False)

    def section(self) -> Section:
        """Return what measures the row."""

        def measure(scope: Scope) -> list[rows.Row]:
            return [self.stored(self.measure(scope))]

        measure.__doc__ = f"{self.title}, against {self.against}."
        return measure

    def stored(self, found: Outcome) -> rows.Row:
        """Return the row of docs/results/data/core.json."""
        met = found.figure >= self.bar if self.at_least else found.figure <= self.bar
        return {
            "name": self.name,
            "title": self.title,
            "against": self.against,
            "unit": self.unit,
            "kind": "ratio" if self.unit == "×" else "absolute",
            "bar_is": "≥" if self.at_least else "≤",
            "bar": self.bar,
            "met": "yes" if met else "no",
            "figure": found.figure,
            "low": found.low,
            "high": found.high,
            "parts": dict((*found.parts, *found.profile)),
        }


def side_by_side(
    scope: Scope,
    ours: MeasuredLoader,
    name: str,
    theirs: Callable[[], float],
    moved_bytes: int,
    share: float = 1.0,
) -> Outcome:
    """Let a loader's epochs and something plain take turns, and close the loader.

    `theirs` returns its seconds for `moved_bytes`, of which the loader delivers `share`.
    """
    found = in_turn({"forebay": ours.drain, name: theirs}, scope.repetitions, WARM_UPS)
    middle, low, high = (share * value for value in ratio(found["forebay"], found[name]))
    parts = (
        ("forebay", rate(moved_bytes * share, found["forebay"])),
        (name, rate(moved_bytes, found[name])),
    )
    profile = ours.profile()
    ours.close()
    return Outcome(middle, low, high, parts, profile)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return median and quartiles of theirs / ours: how many times faster we are."""
    return quartiles(ratios(theirs, ours))


def rate(bytes_moved: float, seconds: Sequence[float]) -> str:
    """Return the median rate as text."""
    return f"{bytes_moved / statistics.median(seconds) / 1e6:,.0f} MB/s"
