"""Which tests a run has: `make test` few, `make test-all` all, `make test-long` the long ones too.

========================  =============  ================================  ==============
Tests                     `make test`    `make test-all`, pytest alone     `make test-long`
========================  =============  ================================  ==============
with parameters           each value     each case                         each case
marked ``sweep``          each value     every ``together`` values meet    each case
marked ``full``           no             yes                               yes
marked ``long``           no             no                                yes
========================  =============  ================================  ==============

`scripts/run_tests.py` passes ``--short`` for `make test`, and sets ``FOREBAY_LONG_TESTS`` for
`make test-long`. A test that a run leaves out counts neither as passed nor as failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from support import sweeps

# How many tests a short run leaves to `make test-all`.
LEFT_TO_ALL = pytest.StashKey[int]()


def kept(items: Sequence[Any], *, short: bool) -> set[Any]:
    """Return the tests of a run that is not a long one."""
    families: dict[tuple[object, str], list[Any]] = {}
    for item in items:
        if item.get_closest_marker("long") or (short and item.get_closest_marker("full")):
            continue
        families.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    found = set()
    for family in families.values():
        sweep = family[0].get_closest_marker("sweep")
        together = 1 if short else sweep.kwargs["together"] if sweep else None
        if together is None or not hasattr(family[0], "callspec"):
            found.update(family)
        else:
            cases = [item.callspec.params for item in family]
            found.update(family[place] for place in sweeps.chosen(cases, together))
    return found


def left_out(count: int) -> str:
    """Return the line that says how many tests a short run has left out."""
    return f"{count} tests run only by make test-all"
