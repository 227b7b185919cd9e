"""Raw files of fixed-size records that the caller describes; numpy's structures are the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import forebay
import forebay_lab

RECORDS = {
    "cifar": np.dtype([("label", "u1"), ("image", "u1", (3, 32, 32))]),
    "mixed": np.dtype([("a", "<f4", (3,)), ("b", "<i8"), ("c", "?"), ("d", "<f2", (2, 2))]),
    "foreign": np.dtype(
        [
            ("big", ">f4", (2, 3)),
            ("when", "<M8[ns]"),
            ("name", "<U5"),
            ("point", [("x", "<f8"), ("y", ">i2")]),
        ]
    ),
    "holes": np.dtype({"names": ["x", "y"], "formats": ["<u2", "<f8"], "offsets": [3, 11], "itemsize": 40}),
}


def random_records(rng, dtype, count):
    """Return records of any bytes that all types take."""
    records = np.frombuffer(rng.integers(0, 2, count * dtype.itemsize, dtype="u1").tobytes(), dtype)
    return records.copy()


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_sample_is_what_numpy_sees(tmp_path, rng, kind, shards):
    dtype = RECORDS[kind]
    parts = [random_records(rng, dtype, 40 + shard) for shard in range(shards)]
    for number, part in enumerate(parts):
        (tmp_path / f"{number}.bin").write_bytes(part.tobytes())
    records = np.concatenate(parts)
    dataset = forebay.open(str(tmp_path / "*.bin"), format="raw", fields=dtype)
    assert len(dataset) == len(records)
    for index in (0, 17, len(records) - 1):
        sample = dataset[index]
        assert list(sample) == list(dtype.names)
        for name in dtype.names:
            assert sample[name].dtype == dtype[name].base
            np.testing.assert_array_equal(sample[name], records[name][index])
    with forebay.Loader(
        dataset, batch_size=7, order="group", last_batch="partial", expected_epochs=1, world="single"
    ) as loader:
        seen = 0
        for batch in loader:
            seen += len(batch.indices)
            for name in dtype.names:
                assert batch[name].dtype == dtype[name].base
                np.testing.assert_array_equal(batch[name], records[name][batch.indices])
    assert seen == len(records)


def test_fields_may_be_told_by_name_and_the_header_is_passed_over(tmp_path, rng):
    images = rng.integers(0, 255, (9, 28, 28), dtype="u1")
    path = tmp_path / "idx"
    path.write_bytes(bytes(16) + images.tobytes())
    dataset = forebay.open(path, format="raw", header_bytes=16, fields={"image": ("u1", (28, 28))})
    np.testing.assert_array_equal(dataset[8]["image"], images[8])
    assert dataset.extents(2) == [(str(path), 16 + 2 * 784, 784)]


def test_a_record_without_fields_is_bytes(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(range(30)))
    dataset = forebay.open(path, record_bytes=10)
    assert dataset[1] == bytes(range(10, 20))
    assert dataset.fields == {"data": ("uint8", (10,))}
    assert dataset.format == "raw"


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"format": "raw"}, ("raw",)),
        ({"format": "raw", "fields": ["label"]}, ("fields=",)),
        ({"format": "raw", "fields": {"x": "O"}}, ("x",)),
        ({"format": "raw", "fields": {"x": "u9"}}, ("fields=",)),
        ({"record_bytes": 7, "fields": {"x": "<f8"}}, ("x", 7)),
        ({"header_bytes": 7}, ("header_bytes=", "raw")),
        ({"fields": {"x": "u1"}}, ("raw",)),
        ({"format": "lmbd"}, ("lmbd",)),
    ],
)
def test_what_is_no_description_of_a_record_is_refused(tmp_path, options, values, says):
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(70))
    with says(forebay.OptionError, *values):
        forebay.open(path, **options)


def test_a_file_that_ends_within_a_record_names_where_that_begins(tmp_path, says):
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(75))
    with says(forebay.FormatError, 70, 10, 5):
        forebay.open(path, record_bytes=10)


def test_files_of_two_formats_are_no_dataset(tmp_path, small_lmdb):
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(70))
    with pytest.raises(forebay.FormatError):
        forebay.open([small_lmdb, path])


def test_steps_that_walk_refuse_what_is_not_lmdb(tmp_path, says):
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(70))
    dataset = forebay.open(path, record_bytes=10)
    for strategy in ("lmdb", "lmm", "lmm-dio"):
        with says(forebay.OptionError, "LMDB"):
            forebay.Loader(
                dataset,
                batch_size=2,
                strategy=forebay_lab.strategy(strategy),
                order="sequential",
                world="single",
            )
    with forebay.Loader(
        dataset,
        batch_size=2,
        strategy=forebay_lab.strategy("lmm-dio-prov"),
        order="sequential",
        world="single",
    ) as loader:
        assert [one.wanted for one in loader.config.fallbacks] == ["recipe"]
        assert next(iter(loader)).indices.tolist() == [0, 1]
