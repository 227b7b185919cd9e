"""The study of published figures: its rows are those of the simulator, beside what is published."""

from __future__ import annotations

import pytest

from forebay_lab.bench.strategies import LADDER
from studies.harness.sections import Scope
from studies.simulate import lmdbio, study


def test_every_section_is_named_after_its_paper():
    for paper, found in study.PAPERS.items():
        assert found
        assert all(name.startswith(f"{paper}-") for name in found), paper
    assert set(study.STUDY.sections) == {name for found in study.PAPERS.values() for name in found}


def test_each_step_of_the_ladder_is_compared_with_lmdb():
    rows = lmdbio.ladder(Scope(tiny=True))
    assert [row["ranks"] for row in rows] == [4] * len(LADDER) + [8] * len(LADDER)
    assert [row["name"] for row in rows[: len(LADDER)]] == list(LADDER)
    for row in rows:
        base = next(one for one in rows if (one["name"], one["ranks"]) == ("lmdb", row["ranks"]))
        assert row["factor"] == pytest.approx(base["step_ms"] / row["step_ms"])
        assert row["step_ms_low"] <= row["step_ms"] * (1 + 1e-9)
        assert row["step_ms"] <= row["step_ms_high"] * (1 + 1e-9)
        # A page for each record, at least.
        assert row["amplification"] > 1.3
        assert row["published"] is None, "it is published for more ranks"
