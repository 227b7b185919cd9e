"""Wide sweeps of parameters: which cases `make test` runs; `make test-long` runs all.

A test marked ``sweep(together=k)`` runs as few cases as let every k values of different parameters
meet at least once: with k = 1 each value once, with k = 2 each pair. Faults come from one value, or
from two that meet; others are for the long run. The choice depends on the cases alone, so it is the
same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

Case = Mapping[str, object]


def chosen(cases: Sequence[Case], together: int) -> set[int]:
    """Return the places of the cases to run, each given as parameter → value."""
    told = [sorted((name, repr(value)) for name, value in case.items()) for case in cases]
    meetings = [set(combinations(case, min(together, len(case)))) for case in told]
    missing = set[tuple[tuple[str, str], ...]]().union(*meetings)
    found: set[int] = set()
    while missing:
        # The first of those that bring most together.
        best = max(range(len(cases)), key=lambda place: (len(meetings[place] & missing), -place))
        found.add(best)
        missing -= meetings[best]
    return found
