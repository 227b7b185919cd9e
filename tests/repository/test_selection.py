"""Which tests a run has: a short one has each value in a case, of sweeps every few values meet."""

from __future__ import annotations

from itertools import combinations, product
from types import SimpleNamespace

import pytest

from support import selection, sweeps

SIZES = {"strategy": 9, "order": 5, "last_batch": 4}
CASES = [dict(zip(SIZES, values, strict=True)) for values in product(*map(range, SIZES.values()))]


@pytest.mark.parametrize(("together", "most"), [(1, 9), (2, 50), (3, 180)])
def test_every_so_many_values_meet_in_few_cases(together, most):
    kept = [CASES[place] for place in sorted(sweeps.chosen(CASES, together))]
    for names in combinations(SIZES, together):
        met = {tuple(case[name] for name in names) for case in kept}
        assert met == set(product(*(range(SIZES[name]) for name in names)))
    assert len(kept) <= most


def test_a_choice_is_the_same_in_every_run_and_nothing_is_chosen_of_nothing():
    assert sweeps.chosen(CASES, 2) == sweeps.chosen(CASES, 2)
    assert sweeps.chosen([], 2) == set()
    assert sweeps.chosen([{"order": 0}, {"order": 1}], 2) == {0, 1}


class Item:
    """What a collected test has, as far as a selection looks at it."""

    def __init__(self, name, params=None, **marks):
        self.path, self.originalname, self.name = "test_x.py", name, f"{name}{params or ''}"
        self._marks = {mark: SimpleNamespace(kwargs=kwargs) for mark, kwargs in marks.items()}
        if params:
            self.callspec = SimpleNamespace(params=params)

    def get_closest_marker(self, name):
        return self._marks.get(name)


def test_a_short_run_has_each_value_and_the_other_one_all_but_long_tests():
    pairs = [{"order": order, "ranks": ranks} for order in "abc" for ranks in (1, 4)]
    plain = [Item("plain")]
    table = [Item("table", pair) for pair in pairs]
    sweep = [Item("sweep", pair, sweep={"together": 1}) for pair in pairs]
    full, long = [Item("full", pair, full={}) for pair in pairs], [Item("long", long={})]
    items = plain + table + sweep + full + long
    everything, short = selection.kept(items, short=False), selection.kept(items, short=True)
    assert everything - set(sweep) == set(plain + table + full)
    assert short < everything
    assert short - set(table) - set(sweep) == set(plain)
    for family, run in ((table, short), (sweep, short), (sweep, everything)):
        cases = [item.callspec.params for item in family if item in run]
        assert len(cases) == 3
        assert {case["order"] for case in cases} == set("abc")
        assert {case["ranks"] for case in cases} == {1, 4}
