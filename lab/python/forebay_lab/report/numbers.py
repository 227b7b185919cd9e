"""Numbers for people: three significant digits, one unit for all that stands side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Unit", "choose", "digits", "percent", "text", "tick", "ticks"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit, and what a value is divided by to be in it."""

    name: str
    factor: float = 1.0

    def digits(self, value: float) -> str:
        """Write a value in this unit, without its name."""
        return digits(value / self.factor)

    def text(self, value: float) -> str:
        """Write a value in this unit, with its name."""
        return f"{self.digits(value)} {self.name}".rstrip()


_UNITS = {
    "seconds": (Unit("µs", 1e-6), Unit("ms", 1e-3), Unit("s")),
    "bytes": (
        Unit("B"),
        Unit("KiB", 2.0**10),
        Unit("MiB", 2.0**20),
        Unit("GiB", 2.0**30),
        Unit("TiB", 2.0**40),
    ),
    "rate": (Unit("MiB/s"),),
    "samples": (Unit("samples/s"),),
    "share": (Unit("%", 0.01),),
    "count": (Unit(""),),
    "ratio": (Unit("×"),),
}


def choose(kind: str, values: Iterable[float]) -> Unit:
    """Return the unit in which the largest of the values is at least 1.

    Parameters
    ----------
    kind
        `seconds`, `bytes`, `rate` (given in MiB/s), `samples` (per second), `share` (of 1), `ratio`
        or `count`.
    values
        What stands side by side.
    """
    units = _UNITS[kind]
    largest = max((abs(value) for value in values), default=0.0)
    if not largest:
        return units[-1] if kind == "seconds" else units[0]
    return next((unit for unit in reversed(units) if largest >= unit.factor), units[0])


def digits(value: float) -> str:
    """Write a number with three significant digits, more for integers above them, and commas."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 9)}f}"


def percent(share: float, places: int | None = None) -> str:
    """Format a share of 1 as percent: rounded, below 10 with two significant digits."""
    if not math.isfinite(share):
        return "–"
    if places is None:
        size = abs(100 * share)
        places = 0 if size >= 10 or not size else min(6, 1 - math.floor(math.log10(size)))
    return f"{100 * share:,.{places}f} %"


def tick(value: float) -> str:
    """Write the number at a tick: no more digits than it needs."""
    whole = f"{value:,.6f}".rstrip("0").rstrip(".")
    return whole or "0"


def text(kind: str, value: float) -> str:
    """Write one number in the unit that fits it."""
    return choose(kind, [value]).text(value)


def ticks(largest: float, most: int = 6) -> list[float]:
    """Return round numbers from 0 up to `largest`, at most so many."""
    if largest <= 0 or not math.isfinite(largest):
        return [0.0]
    power = 10.0 ** math.floor(math.log10(largest / most))
    step = next(power * one for one in (1, 2, 2.5, 5, 10, 20) if power * one * (most - 1) >= largest * 0.999)
    return [step * at for at in range(int(largest / step * 1.000001) + 1)]
