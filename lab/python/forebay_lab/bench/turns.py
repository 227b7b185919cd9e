"""Measure side by side: measures take turns, so that a change of the machine meets all of them.

Warm-up rounds come first and count nothing. Each round runs every measure once; the one that begins
a round changes. What counts is the ratio of neighbours, the measures of one round: `ratios` over
all rounds, their median, and their quartiles as its spread. Single times claim nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

__all__ = ["in_turn", "median_ratio", "medians_in_turn", "quartiles", "ratios", "spread", "timed"]

Found = TypeVar("Found")


def in_turn(
    measures: Mapping[str, Callable[[], Found]], rounds: int, warm_ups: int = 1
) -> dict[str, list[Found]]:
    """Return what each measure found, round by round, without the warm-ups."""
    names = list(measures)
    found: dict[str, list[Found]] = {name: [] for name in names}
    for number in range(-warm_ups, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            one = measures[name]()
            if number >= 0:
                found[name].append(one)
    return found


def medians_in_turn(measures: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median of what each measure found."""
    return {name: statistics.median(found) for name, found in in_turn(measures, rounds).items()}


def timed(action: Callable[[], Any]) -> float:
    """Return the wall time of an action [s]."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return first / second, round by round."""
    return [one / other for one, other in zip(first, second, strict=True)]


def median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the median of `ratios`."""
    return statistics.median(ratios(first, second))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return median, lower and upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the median of a figure, its lowest and its highest value, as fields of a row."""
    return {
        name: statistics.median(values),
        f"{name}_lowest": min(values),
        f"{name}_highest": max(values),
    }
