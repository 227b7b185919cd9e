"""Parquet: what pyarrow writes is what comes out, decoded in the engine; the rest says why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import forebay
from support.table_files import (
    COLUMNS,
    ROWS,
    UNREADABLE,
    assert_equal,
    fixed_lists,
    outcomes_of_damage,
    plain_table,
    walk,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

# Parquet has milliseconds for dates, and no unions.
WRITTEN = {name: column for name, column in COLUMNS.items() if name != "date64"}
REFUSED = {
    name: UNREADABLE[name]
    for name in [
        "decimal",
        "null",
        "list_of_strings",
        "list_of_lists",
        "list_of_structs",
        "map",
        "list_of_timestamps",
    ]
}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_type_comes_out_as_pyarrow_reads_it(tmp_path, name):
    table = pa.table({"x": WRITTEN[name]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    dataset = forebay.open(tmp_path / "a.parquet")
    assert (dataset.format, len(dataset)) == ("parquet", ROWS)
    assert_equal([dataset[number] for number in range(ROWS)], table)
    assert_equal(walk(dataset, "group"), table)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none"},
        {"compression": "snappy"},
        {"compression": "gzip"},
        {"compression": "lz4"},
        {"compression": "zstd"},
        {"use_dictionary": False, "data_page_size": 64},
        {"data_page_version": "2.0", "compression": "zstd"},
        {"version": "1.0", "write_statistics": False},
        {"write_statistics": False, "store_schema": False},
        {
            "use_dictionary": False,
            "column_encoding": {"text": "DELTA_BYTE_ARRAY", "label": "DELTA_BINARY_PACKED"},
        },
        {
            "use_dictionary": False,
            "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY", "ratio": "BYTE_STREAM_SPLIT"},
        },
        {"write_page_checksum": True},
        {"write_page_index": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [7, 1000])
def test_every_way_of_writing_is_read(tmp_path, options, rows):
    table = plain_table().select(["text", "label", "bool", "list", "struct"])
    table = table.append_column("ratio", COLUMNS["float32"]).append_column("time", COLUMNS["timestamp_ms"])
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=rows, **options)
    assert_equal(walk(forebay.open(tmp_path / "a.parquet"), "shuffle"), table)


def test_shards_with_other_row_groups_and_compression_are_one_dataset(tmp_path):
    table = plain_table()
    for number, (rows, compression) in enumerate([(5, "snappy"), (17, "zstd"), (100, "none")]):
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=rows, compression=compression)
    assert_equal(walk(forebay.open(tmp_path / "*.parquet")), pa.concat_tables([table] * 3))


def test_an_index_of_plain_columns_reads_the_footer_only(tmp_path):
    pq.write_table(pa.table({"x": np.arange(1_000_000)}), tmp_path / "a.parquet", row_group_size=100_000)
    report = forebay.open(tmp_path / "a.parquet").native.build_index()
    assert report["samples"] == 1_000_000
    assert report["read_bytes"] < 64 << 10


def test_images_of_hugging_face_are_their_bytes(tmp_path):
    images = pa.array([{"bytes": bytes([n] * n), "path": f"{n}.png"} for n in range(1, 5)])
    pq.write_table(pa.table({"image": images, "label": range(4)}), tmp_path / "a.parquet")
    dataset = forebay.open(tmp_path / "a.parquet")
    assert list(dataset.fields) == ["image", "label"]
    assert [bytes(sample["image"]) for sample in walk(dataset)] == [bytes([n] * n) for n in range(1, 5)]
    paths = forebay.open(tmp_path / "a.parquet", fields=["image.path"])
    assert bytes(paths[3]["image.path"]) == b"4.png"


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([*range(12), None, 3]),
        pa.array([*map(str, range(12)), None, "3"]),
        pa.array([*([n] for n in range(12)), None, [3]]),
        pa.array([*([n] for n in range(12)), [1, None], [3]]),
        pa.array([*({"a": n} for n in range(12)), None, {"a": 1}]),
        pa.array([*([n, n] for n in range(12)), None, [3, 3]], pa.list_(pa.int64(), 2)),
    ],
    ids=str,
)
def test_a_null_is_named_with_its_column_and_first_row(tmp_path, values, statistics):
    pq.write_table(
        pa.table({"x": values}), tmp_path / "a.parquet", row_group_size=5, write_statistics=statistics
    )
    with pytest.raises(forebay.FormatError, match=r"a null in column \"x.*row 12"):
        len(forebay.open(tmp_path / "a.parquet"))


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_is_not_read_is_named_and_may_be_left_out(tmp_path, name):
    table = pa.table({"x": REFUSED[name], "y": pa.array(range(len(REFUSED[name])))})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(forebay.FormatError, match=r'not supported: .*column "x[^"]*" \('):
        forebay.open(tmp_path / "a.parquet")
    assert_equal(walk(forebay.open(tmp_path / "a.parquet", fields=["y"])), table.select(["y"]))


def test_a_compression_that_is_not_read_is_named(tmp_path, says):
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet", compression="brotli")
    with says(forebay.FormatError, tmp_path / "a.parquet", "x", "BROTLI"):
        forebay.open(tmp_path / "a.parquet")


def test_row_groups_beyond_the_memory_budget_are_read(tmp_path):
    values = np.random.default_rng(3).integers(0, 1 << 40, 3_000_000)
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", row_group_size=len(values))
    options = {"order": "sequential", "node_memory": "16MiB", "expected_epochs": 1, "world": "single"}
    with forebay.Loader(tmp_path / "a.parquet", 100_000, **options) as loader:
        found = np.concatenate([batch["x"].copy() for batch in loader])
    assert np.array_equal(found, values)


def one_row_group(path, rows=20_000):
    """A file of one row group of 10 MiB, more than a thread of a verification keeps by default."""
    values = np.arange(rows * 64, dtype="f8").reshape(rows, 64) % 251
    table = pa.table({"x": fixed_lists(values), "y": np.arange(rows)})
    pq.write_table(table, path, row_group_size=rows)
    return values


def bytes_read() -> int:
    """Bytes that this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_row_group_is_read_and_decoded_once_for_reads_by_id_and_by_verify(tmp_path):
    path = tmp_path / "a.parquet"
    values = one_row_group(path)
    dataset = forebay.open(path)
    len(dataset)
    numbers = np.random.default_rng(1).permutation(len(values))
    before = bytes_read()
    for number in numbers[:200].tolist():
        assert np.array_equal(dataset[number]["x"], values[number])
    for first in range(0, 2000, 100):
        ids = numbers[first : first + 100]
        assert np.array_equal(dataset.read(ids)["x"], values[ids])
    assert bytes_read() - before < 3 * path.stat().st_size
    before = bytes_read()
    found = forebay.open(path).native.verify(threads=2)
    assert (found["samples"], found["bad_samples"]) == (len(values), 0)
    assert bytes_read() - before < 6 * path.stat().st_size


def test_orders_that_come_back_to_a_row_group_keep_it(tmp_path):
    path = tmp_path / "a.parquet"
    values = one_row_group(path)
    for order in ("shuffle", "sequential"):
        with forebay.Loader(path, 64, order=order, expected_epochs=1, world="single") as loader:
            assert loader.config.memory.kept_unit_bytes >= values.nbytes
            assert loader.config.reading.decode_amplification == 1
            for batch in loader:
                assert np.array_equal(batch["x"], values[batch.indices])
            assert loader.stats()["read_bytes"] < 3 * path.stat().st_size


def test_shuffle_warns_of_row_groups_that_memory_does_not_hold_and_the_default_order_does_not(tmp_path):
    path = tmp_path / "a.parquet"
    one_row_group(path)
    options = {"node_memory": "6MiB", "expected_epochs": 1, "world": "single", "name": "train"}
    with (
        pytest.warns(RuntimeWarning) as caught,
        forebay.Loader(path, 16, order="shuffle", **options) as loader,
    ):
        amplification = loader.config.reading.decode_amplification
    assert amplification >= 4
    [text] = [str(warning.message) for warning in caught]
    assert f"order shuffle decodes about {amplification:.0f} samples for each one" in text
    assert "up to 20000 samples are decoded together" in text
    with forebay.Loader(path, 16, **options | {"node_memory": "64MiB"}) as loader:
        assert (loader.config.order.group_samples, loader.config.reading.decode_amplification) == (20_000, 1)


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_damage_is_an_error_or_leaves_the_rows_readable(tmp_path, compression):
    table = plain_table().slice(0, 12)
    pq.write_table(table, tmp_path / "a", row_group_size=6, compression=compression)
    whole = (tmp_path / "a").read_bytes()
    outcomes = outcomes_of_damage(tmp_path, whole, "parquet", seed=11, rows=12)
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("ranks", [1, 3])
def test_several_ranks_get_each_sample_once(pool, tmp_path, ranks):
    from support.ranks import work

    values = np.arange(ROWS)
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", row_group_size=10)
    options = {"batch_size": 4, "order": "group", "last_batch": "partial"}
    found = pool.run(ranks, work.samples, path=str(tmp_path / "a.parquet"), options=options)
    seen = {}
    for steps in found:
        for ids, fields in steps:
            for position, number in enumerate(ids):
                assert number not in seen
                seen[number] = fields["x"][position]
    assert seen == {number: values[number].tobytes() for number in range(ROWS)}
