"""Measure side by side: measures take turns, so that a change of the machine meets all of them.

Warm-up rounds come first and count nothing. Each round runs every measure once; the one that begins
a round changes. What counts is the ratio of neighbours, the measures of one round: `ratios` over
all rounds, their median, and their quartiles as its spread. Single times claim nothing.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

__all__ = [
    "in_turn",
    "mean_interval",
    "median_interval",
    "median_ratio",
    "medians_in_turn",
    "quartiles",
    "ratios",
    "spread",
    "student_quantile",
    "timed",
]

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


def median_interval(name: str, values: Sequence[float], samples: int = 10_000) -> dict[str, float]:
    """Return the median of a figure with its 95 % interval (bootstrap), as fields of a row."""
    generator = random.Random(1)
    middles = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(samples))
    low, high = middles[samples // 40], middles[samples * 39 // 40]
    return {name: statistics.median(values), f"{name}_low": low, f"{name}_high": high}


def mean_interval(values: Sequence[float]) -> dict[str, float]:
    """Return the 95 % interval of a mean (Student's t), as fields of a row; of one value, none."""
    if len(values) < 2:
        return {}
    error = statistics.stdev(values) / math.sqrt(len(values)) * student_quantile(len(values) - 1)
    mean = statistics.mean(values)
    return {"low": mean - error, "high": mean + error}


def student_quantile(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t from a table of degrees of freedom."""
    known = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23]
    return known[min(max(int(freedom), 1), len(known)) - 1]
