"""Datasets: samples by number, extents, several files as one, records that become fields."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

import forebay
import support


def test_a_dataset_is_a_sequence_of_records(small_lmdb, small_records):
    dataset = forebay.open(small_lmdb)
    assert len(dataset) == 100
    assert list(dataset) == small_records
    assert dataset[-1] == small_records[-1]
    assert dataset.format == "lmdb"
    assert dataset.fields == {"data": ("uint8", (300,))}
    for wrong in (100, -101):
        with pytest.raises(IndexError, match=r"100"):
            dataset[wrong]


def test_extents_say_where_a_record_lies(small_lmdb, small_records):
    dataset = forebay.open(small_lmdb)
    for number in (0, 50, 99):
        found = b""
        for path, offset, length in dataset.extents(number):
            with open(path, "rb") as file:  # noqa: PTH123
                file.seek(offset)
                found += file.read(length)
        assert small_records[number] in found


def test_several_paths_and_patterns_are_shards_of_one_dataset(tmp_path):
    for shard in range(3):
        support.write_lmdb(
            tmp_path / f"s-{shard}.lmdb", [support.record(10 * shard + i, 50) for i in range(10)]
        )
    whole = forebay.open(f"{tmp_path}/s-*.lmdb")
    assert [whole[i] for i in range(30)] == [support.record(i, 50) for i in range(30)]
    assert len(whole.paths) == 3
    turned = forebay.open([tmp_path / "s-2.lmdb", tmp_path / "s-0.lmdb"])
    assert turned[0] == support.record(20, 50)
    assert turned.fingerprint != whole.fingerprint


def test_a_file_that_is_given_twice_is_warned_of(tmp_path):
    path = tmp_path / "0.lmdb"
    support.write_lmdb(path, [support.record(number, 100) for number in range(5)], subdir=False)
    (tmp_path / "1.lmdb").symlink_to(path)
    for paths in ([path, path], str(tmp_path / "*.lmdb"), [path, tmp_path / "x" / ".." / "0.lmdb"]):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.warns(RuntimeWarning, match="given more than once") as told:
            assert len(forebay.open(paths)) == 10
        assert len(told) == 1
        # It points to this line, not to one of the package.
        assert told[0].filename == __file__


def test_a_dataset_can_be_pickled_for_spawned_processes(small_lmdb):
    dataset = forebay.open(small_lmdb, schema="raw")
    again = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint == dataset.fingerprint
    assert again[3] == dataset[3]


def test_a_named_database_is_opened_by_name(tmp_path):
    path = support.write_lmdb(tmp_path / "x.lmdb", [b"abc", b"defg"], database="train")
    assert list(forebay.open(path, database="train")) == [b"abc", b"defg"]
    with pytest.raises(forebay.ForebayError, match=r"nothing"):
        len(forebay.open(path, database="nothing"))


def test_datum_records_become_images_and_labels(datum_lmdb):
    dataset = forebay.open(datum_lmdb)
    assert dataset.fields == {"image": ("uint8", (3, 8, 8)), "label": ("int64", ())}
    sample = dataset[7]
    assert int(sample["label"]) == 7
    assert sample["image"].tobytes() == support.record(7, 192)
    with forebay.Loader(dataset, 16, order="sequential", node_memory="16MiB") as loader:
        for batch in loader:
            assert batch["image"].shape == (16, 3, 8, 8)
            assert list(batch["label"]) == list(batch.indices)
            for row, number in zip(batch["image"], batch.indices, strict=True):
                assert row.tobytes() == support.record(int(number), 192)


@pytest.mark.parametrize(
    ("make_path", "values"),
    [
        (lambda path: path / "gone.lmdb", ("gone.lmdb",)),
        (lambda path: ((path / "empty.mdb").write_bytes(b"") and None) or path / "empty.mdb", ("empty.mdb",)),
        (
            lambda path: (path / "text.mdb").write_text("no database " * 1000) and path / "text.mdb",
            ("text.mdb",),
        ),
        (lambda path: (path / "folder.lmdb").mkdir() or path / "folder.lmdb", ("folder.lmdb",)),
        (lambda path: f"{path}/nothing-*.lmdb", ()),
        (lambda path: [], ()),
        (lambda path: "", ()),
        (lambda path: 3, (3,)),
        (lambda path: [b"x"], ()),
    ],
)
def test_what_is_no_dataset_is_told_with_its_path(tmp_path, make_path, values, says):
    with says(forebay.ForebayError, *values):
        forebay.open(make_path(tmp_path))


def test_a_path_that_is_no_utf8_comes_back_and_can_be_pickled(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.npy")
    np.save(path, np.arange(5))
    dataset = forebay.open(path)
    assert dataset.paths == [path]
    assert list(pickle.loads(pickle.dumps(dataset)))[3] == {"data": 3}


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"fields": ["data", "data"]}, ("fields=", "data")),
        ({"format": "npy", "record_bytes": 8}, ("record_bytes=",)),
        ({"database": "train"}, ("database=", "LMDB")),
        ({"record_bytes": -1}, ("record_bytes=", 1, -1)),
        ({"record_bytes": "8"}, ("record_bytes=", 1, 8)),
        ({"record_bytes": 8, "header_bytes": -1}, ("header_bytes=", 0)),
        ({"format": "raw", "fields": {}}, ("fields=",)),
        ({"fields": []}, ("fields=",)),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(tmp_path, options, values, says):
    np.save(tmp_path / "a.npy", np.arange(5))
    with says(forebay.OptionError, *values):
        forebay.open(tmp_path / "a.npy", **options)
