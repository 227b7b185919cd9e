"""What the sections share: where data is, how a table is printed, and runs of programs in turn."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from access_patterns import DIRECTORY

__all__ = ["DIRECTORY", "Study", "share", "table", "times"]


@dataclass(frozen=True)
class Study:
    """What the command line asked for."""

    tiny: bool
    directory: Path = DIRECTORY

    @property
    def repetitions(self) -> int:
        """Runs of each row, of which the median counts."""
        return 1 if self.tiny else 3

    def pick(self, whole: Any, tiny: Any) -> Any:
        """Take the one or the other."""
        return tiny if self.tiny else whole

    def in_turn(self, measures: Mapping[str, Callable[[], float]]) -> dict[str, float]:
        """Run each once to warm up, then all in turn; return the median seconds of each."""
        found: dict[str, list[float]] = {name: [] for name in measures}
        for number in range(self.repetitions + 1):
            for name, measure in measures.items():
                seconds = measure()
                if number:
                    found[name].append(seconds)
        return {name: statistics.median(seconds) for name, seconds in found.items()}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, each row as soon as it is there."""
    print(f"| {' | '.join(header)} |\n{'|---' * len(header)}|", flush=True)
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
    print()
    sys.stdout.flush()


def times(first: float | None, value: float) -> str:
    """How many times less than the first."""
    if first is None:
        return "–"
    return f"{first / value:,.1f}×" if value > 0 else "nothing left"


def share(part: float, whole: float) -> str:
    """A part of the whole."""
    return f"{part / whole:.1%}" if whole > 0 else "–"
