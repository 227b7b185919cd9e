"""Rows of forebay bench: strategies, orders and programs by name, datasets, ranks on nodes."""

from __future__ import annotations

import pytest

import forebay
from forebay import OptionError
from forebay_lab.bench import baselines, facts, strategies
from forebay_lab.bench.containers import framed
from forebay_lab.bench.settings import Settings
from support.bench import SAMPLES


def test_rows_are_strategies_in_orders_and_baselines_have_their_own():
    text = "pylmdb-skipping, forebay,forebay@shuffle,pread@sequential,pylmdb-contiguous@contiguous"
    rows = strategies.parse(text, "group", baselines.find())
    assert [row.name for row in rows] == [
        "pylmdb-skipping@sequential", "forebay@group", "forebay@shuffle", "pread@sequential",
        "pylmdb-contiguous@contiguous",
    ]  # fmt: skip
    assert [row.baseline is not None for row in rows] == [True, False, False, False, True]


def test_parameters_of_a_strategy_and_of_an_order_keep_their_commas():
    text = "forebay:access=pread,readers=2@group:samples=64,window=2,h5py"
    first, second = strategies.parse(text, "group", baselines.find())
    assert (first.strategy, first.order) == ("forebay:access=pread,readers=2", "group:samples=64,window=2")
    assert second.name == "h5py@sequential"


@pytest.mark.parametrize(
    ("text", "strategy", "store"),
    [
        ("forebay", forebay.Strategy(), None),
        ("store", forebay.Strategy(), "auto"),
        ("store:direct=true", forebay.Strategy(direct=True), "auto"),
        ("forebay:store=8MiB,direct=true,readers=1", forebay.Strategy(direct=True, readers=1), "8MiB"),
    ],
)
def test_a_row_with_a_store_is_the_option_of_the_loader(text, strategy, store):
    assert strategies.loader_options(text) == {"strategy": strategy, "store": store}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("fastest", ("fastest", "forebay", "pylmdb-skipping")),
        ("forebay@backwards", ("backwards",)),
        ("forebay:speed=9", ("speed",)),
        ("pylmdb-skipping@group", ()),
        ("forebay,forebay", ("twice",)),
        (" , ", ()),
        ("forebay:store=little", ("store=", "little")),
    ],
)
def test_a_row_that_is_none_is_refused_and_the_valid_ones_are_named(text, values, says):
    with says(OptionError, *values):
        strategies.parse(text, "group", baselines.find())


def test_a_preset_that_walks_takes_an_order_that_can_be_walked(says):
    found = [strategies.parse("lmdb", order, {})[0].order for order in ("group", "sequential", "contiguous")]
    assert found == ["sequential", "sequential", "contiguous"]
    with says(OptionError):
        strategies.parse("lmdb@group", "group", {})


def test_every_pylmdb_program_comes_with_read_ahead_on_and_off():
    names = baselines.find().keys()
    for name in ("pylmdb-skipping", "pylmdb-contiguous", "pylmdb-ownlock"):
        assert {name, f"{name}-noreadahead"} <= names


def test_ranks_go_to_nodes_in_blocks(says):
    assert Settings(ranks=7, nodes=3).ranks_of_nodes() == ((0, 1), (2, 3), (4, 5, 6))
    with says(OptionError):
        Settings(ranks=1, nodes=2)
    with pytest.raises(OptionError, match="--world-size"):
        Settings(ranks=4, world_size=2)


def test_a_pattern_stands_for_the_files_that_it_matches(data):
    found = facts.look((str(data.parent / "tr*.lmdb"),))
    assert (found.paths, found.samples) == ((str(data),), SAMPLES)


def test_formats_are_told_apart(data, tmp_path):
    assert facts.look((str(data),)).format == "lmdb"
    record = tmp_path / "a.tfrecord"
    pytest.importorskip("google_crc32c", reason="google-crc32c is not installed")
    record.write_bytes(3 * framed(bytes(4)))
    found = facts.look((str(record),))
    assert (found.format, found.samples, found.mean_bytes, found.for_engine) == ("tfrecord", 3, 4, True)
