"""Sweeps are cut so that every value, or every pair of values, is still run."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from support import sweeps

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
