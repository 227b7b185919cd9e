"""Wide sweeps of parameters: few cases in which every k values of different parameters meet.

With k = 1 each value is in one case, with k = 2 each pair. Faults come from one value, or from two
that meet; others are for the long run. The choice depends on the cases alone, so it is the
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
    # What only one case has needs that case; mostly this is all, as in tables of cases.
    holders: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for place, meeting in enumerate(meetings):
        for one in meeting:
            holders.setdefault(one, []).append(place)
    for places in holders.values():
        if len(places) == 1 and places[0] not in found:
            found.add(places[0])
            missing -= meetings[places[0]]
    while missing:
        # The first of those that bring most together.
        best = max(range(len(cases)), key=lambda place: (len(meetings[place] & missing), -place))
        found.add(best)
        missing -= meetings[best]
    return found
