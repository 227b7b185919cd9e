"""Axes of any range, linear or logarithmic: where a value lies, and which values get a tick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_lab.report import numbers

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Axis"]

_ROUND = (1.0, 2.0, 5.0, 10.0)
"""Ends of logarithmic axes, times a power of ten; also ticks of those below two decades."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high`."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], *, log: bool = False) -> Axis:
        """Make the axis that has all values: from 0 on, if linear; else between round numbers.

        Raises
        ------
        ValueError
            A value is not finite, or has no place on the axis: below 0, or 0 on a logarithmic one.
        """
        found = list(values)
        for value in found:
            if not math.isfinite(value) or value < 0 or (log and not value):
                raise ValueError(f"expected a value above 0 for this axis, found {value}")
        if not log:
            return cls(0.0, max(found, default=0.0) or 1.0)
        low, high = _below(min(found, default=1.0)), _above(max(found, default=1.0))
        return cls(low, high if high > low else low * 10, log=True)

    def share(self, value: float) -> float:
        """Return where a value lies: 0 at the low end, 1 at the high one."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return values for ticks, ascending."""
        if not self.log:
            return numbers.ticks(self.high)
        bases = _ROUND[:1] if self.high / self.low >= 100 else _ROUND[:3]
        powers = range(math.floor(math.log10(self.low)) - 1, math.ceil(math.log10(self.high)) + 1)
        found = (base * 10.0**power for power in powers for base in bases)
        return [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]


def _below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(base * power for base in _ROUND if base * power <= value * 1.000001)


def _above(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return min(base * power for base in _ROUND if base * power >= value * 0.999999)
