"""The study of published figures: its rows are those of the simulator, beside what is published."""

from __future__ import annotations

import pytest

from forebay_lab.bench.strategies import LADDER
from studies.harness.sections import Scope
from studies.simulate import lmdbio, study
from studies.simulate.lmdbio import published

TINY = Scope(tiny=True)


@pytest.fixture(scope="module")
def steps():
    """Rows of the steps of LMDBIO at 4 and 8 ranks."""
    return lmdbio.ladder(TINY)


def test_every_section_is_named_after_its_paper():
    for paper, found in study.PAPERS.items():
        assert found
        assert all(name.startswith(f"{paper}-") for name in found), paper
    assert set(study.STUDY.sections) == {name for found in study.PAPERS.values() for name in found}


def test_each_step_of_the_ladder_is_compared_with_lmdb(steps):
    assert [row["ranks"] for row in steps] == [4] * len(LADDER) + [8] * len(LADDER)
    assert [row["name"] for row in steps[: len(LADDER)]] == list(LADDER)
    for row in steps:
        base = next(one for one in steps if (one["name"], one["ranks"]) == ("lmdb", row["ranks"]))
        assert row["factor"] == pytest.approx(base["read_time_ms"] / row["read_time_ms"])
        assert row["step_ms_low"] <= row["step_ms"] * (1 + 1e-9)
        assert row["step_ms"] <= row["step_ms_high"] * (1 + 1e-9)
        # A page for each record, at least.
        assert row["amplification"] > 1.3
        assert row["published"] is None, "it is published for more ranks"


def test_the_parts_of_a_step_are_all_of_it(steps):
    for row in steps:
        parts = row["read_ms"] + row["skew_ms"] + row["compute_ms"]
        assert parts == pytest.approx(row["step_ms"], rel=0.02), row["name"]
    assert all(row["compute_ms"] < 1 for row in steps), "only the messages of a step"


def test_factors_are_published_for_steps_of_the_ladder():
    names = {*published.READ_FACTORS, *published.SEEK_SHARES, *published.SKEW_SHARES}
    assert names <= set(LADDER)


def test_training_with_lmdb_is_compared_with_ideal_scaling():
    rows = lmdbio.scaling(TINY)
    assert {row["name"] for row in rows} == {*published.ABOVE_IDEAL, *published.IO_SHARES}
    for row in rows:
        assert row["above_ideal"] == pytest.approx(1 / (1 - row["io_share"]), rel=0.02)


def test_walks_fetch_the_samples_of_all_ranks():
    rows = lmdbio.redundant(TINY)
    assert [row["published"] for row in rows] == [1, 1, 2, 2]
    assert all(row["ratio"] >= 1 for row in rows)


def test_only_a_mapping_is_read_at_one_rate_whatever_the_block():
    rows = lmdbio.blocks(TINY)
    names = ("pread", "pread, O_DIRECT", "mapping")
    rates = {name: [row["mib_s"] for row in rows if row["name"] == name] for name in names}
    assert rates["mapping"][0] == pytest.approx(rates["mapping"][-1], rel=0.1)
    assert rates["pread, O_DIRECT"][-1] > 10 * rates["pread, O_DIRECT"][0]
    assert [row["name"] for row in rows if row["published"]] == ["pread"]


def test_requests_come_out_of_turn_where_nodes_read_side_by_side():
    rows = lmdbio.order(TINY)
    assert {row["nodes"] for row in rows} == {2, 4}
    for row in rows:
        assert 0 < row["seek_share_low"] <= row["seek_share"] <= row["seek_share_high"] <= 1


def test_waits_are_those_of_each_node():
    rows = lmdbio.nodes(TINY)
    assert [(row["name"], row["node"]) for row in rows] == [
        (name, node) for name in ("lmm", "lmm-dio") for node in range(4)
    ]


@pytest.mark.full
@pytest.mark.parametrize("section", ["lmdbio-blues", "lmdbio-strong", "lmdbio-weak"])
def test_whole_training_is_compared_with_lmdb(section):
    rows = lmdbio.SECTIONS[section](TINY)
    assert {row["dataset"] for row in rows} >= {"cifar10-large"}
    for row in rows:
        assert row["published"] is None, "it is published for more ranks"
        assert row["factor"] == pytest.approx(1) or row["name"] != "lmdb"
        assert row["compute_ms"] > 0
