"""Directories of Hugging Face: which of their files are a dataset, and what is refused."""

from __future__ import annotations

import json

import pytest

import forebay
from support.table_files import assert_equal, plain_table, walk, write_arrow

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def save(directory, tables, **more):
    """Write what `save_to_disk` writes."""
    directory.mkdir(parents=True)
    names = [f"data-{number:05}-of-{len(tables):05}.arrow" for number in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        write_arrow(directory / name, table, "stream", None, rows=10)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train", **more}
    (directory / "state.json").write_text(json.dumps(state))
    (directory / "dataset_info.json").write_text("{}")
    return directory


def test_the_files_of_a_state_are_read_in_its_order(tmp_path):
    table = plain_table()
    directory = save(tmp_path / "saved", [table.slice(0, 20), table.slice(20)])
    assert_equal(walk(forebay.open(directory)), table)
    state = json.loads((directory / "state.json").read_text())
    state["_data_files"].reverse()
    (directory / "state.json").write_text(json.dumps(state))
    assert_equal(walk(forebay.open(directory)), pa.concat_tables([table.slice(20), table.slice(0, 20)]))


def test_the_names_of_the_one_class_label_are_those_of_the_classes(tmp_path):
    directory = save(tmp_path / "saved", [plain_table()])
    assert forebay.open(directory).classes is None
    # As `datasets` writes the features of a dataset with ClassLabel(names=["cat", "dog"]).
    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    features = {"label": label, "text": {"dtype": "string", "_type": "Value"}}
    (directory / "dataset_info.json").write_text(json.dumps({"features": features}))
    assert forebay.open(directory).classes == ["cat", "dog"]
    # Of two, none is meant.
    features["other"] = {"names": ["a", "b", "c"], "_type": "ClassLabel"}
    (directory / "dataset_info.json").write_text(json.dumps({"features": features}))
    assert forebay.open(directory).classes is None


def test_saved_row_numbers_select_the_rows(tmp_path):
    table = plain_table()
    directory = save(tmp_path / "saved", [table], _indices_files=[{"filename": "indices.arrow"}])
    numbers = pa.table({"indices": pa.array([30, 2, 7], pa.uint64())})
    write_arrow(directory / "indices.arrow", numbers, "stream", None, rows=10)
    assert_equal(walk(forebay.open(directory)), table.take([30, 2, 7]))


@pytest.mark.parametrize(
    ("rows", "found"),
    [([30, 2, 30], "expected each row once, found 30 more than once"), ([30, 10**6], "found 1000000")],
)
def test_row_numbers_that_no_selection_has_are_refused_with_their_file(tmp_path, rows, found):
    directory = save(tmp_path / "saved", [plain_table()], _indices_files=[{"filename": "indices.arrow"}])
    numbers = pa.table({"indices": pa.array(rows, pa.uint64())})
    write_arrow(directory / "indices.arrow", numbers, "stream", None, rows=10)
    with pytest.raises(
        forebay.FormatError, match=r"indices\.arrow: row numbers of datasets: expected"
    ) as caught:
        forebay.open(directory)
    assert found in str(caught.value)


def test_several_splits_are_named(tmp_path, says):
    for split in ("train", "test"):
        save(tmp_path / "both" / split, [plain_table()])
    (tmp_path / "both/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with says(forebay.OptionError, tmp_path / "both", tmp_path / "both/train", tmp_path / "both/test"):
        forebay.open(tmp_path / "both")


def test_split_names_one_of_several(tmp_path, says):
    table = plain_table()
    (tmp_path / "repository/data").mkdir(parents=True)
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        pq.write_table(table, tmp_path / f"repository/data/{name}.parquet")
    assert len(forebay.open(tmp_path / "repository", split="train")) == 2 * len(table)
    assert_equal(walk(forebay.open(tmp_path / "repository", split="test")), table)
    with says(forebay.OptionError, "validation"):
        forebay.open(tmp_path / "repository", split="validation")
    save(tmp_path / "both" / "test", [table])
    (tmp_path / "both/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert_equal(walk(forebay.open(tmp_path / "both", split="test")), table)
    with pytest.raises(forebay.OptionError, match=r"has no split 'train'; it holds dataset_dict\.json, test"):
        forebay.open(tmp_path / "both", split="train")


@pytest.mark.parametrize(
    "names",
    [
        ["part-0", "part-1"],
        ["train_0", "train_1", "train_2"],
        ["2023", "2024"],
        [
            "part-00000-1b671a64-40d5-491e-99b0-da01ff1f3341-c000.snappy",
            "part-00001-9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d-c000.snappy",
        ],
    ],
)
def test_tables_whose_names_differ_by_numbers_are_one_dataset(tmp_path, names):
    table = plain_table()
    directory = tmp_path / "tables"
    directory.mkdir()
    rows = -(-len(table) // len(names))
    for number, name in enumerate(names):
        pq.write_table(table.slice(number * rows, rows), directory / f"{name}.parquet")
    # What Spark and others leave behind.
    for name in ("_SUCCESS", "._SUCCESS.crc", "_metadata", "_committed_123", ".DS_Store", "Thumbs.db"):
        (directory / name).write_bytes(b"x")
    assert_equal(walk(forebay.open(directory)), table)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("state.json", "{"),
        ("state.json", "[]"),
        ("state.json", "{}"),
        ("state.json", '{"_data_files": [{"filename": "../secret.arrow"}]}'),
        ("state.json", '{"_data_files": [7]}'),
        ("dataset_dict.json", "nothing"),
    ],
)
def test_a_damaged_description_is_an_error(tmp_path, name, text):
    directory = save(tmp_path / "saved", [plain_table()])
    (directory / name).write_text(text)
    with pytest.raises(forebay.FormatError, match=name):
        forebay.open(directory)


def test_a_repository_with_one_split_is_opened(tmp_path):
    table = plain_table()
    inside = tmp_path / "repository/data"
    inside.mkdir(parents=True)
    (tmp_path / "repository/README.md").write_text("a dataset")
    (tmp_path / "repository/.gitattributes").write_text("")
    for number, part in enumerate([table.slice(0, 30), table.slice(30)]):
        pq.write_table(part, inside / f"train-{number:05}-of-00002.parquet")
    assert_equal(walk(forebay.open(tmp_path / "repository")), table)


UUID = "3f2a9a54-0d0c-4a2e-9a6b-1c1f6a3d0b7e"


@pytest.mark.parametrize(
    ("names", "beside"),
    [
        ([f"part-{number}.parquet" for number in range(12)], []),
        ([f"part.{number}.parquet" for number in range(12)], ["_metadata", "_common_metadata"]),
        ([f"{number:04}.parquet" for number in range(12)], ["README.md"]),
        (
            [f"part-{number:05}-{UUID}-c000.snappy.parquet" for number in range(12)],
            ["_SUCCESS", "._SUCCESS.crc", f".part-00000-{UUID}-c000.snappy.parquet.crc"],
        ),
        ([f"part-r-{number:05}-{UUID}.gz.parquet" for number in range(12)], ["_SUCCESS"]),
    ],
    ids=["pyarrow", "dask", "numbers", "spark", "old spark"],
)
def test_parts_in_a_directory_are_one_dataset_in_the_order_of_their_numbers(tmp_path, names, beside):
    table = pa.table({"x": range(24)})
    (tmp_path / "d").mkdir()
    for number, name in enumerate(names):
        pq.write_table(table.slice(2 * number, 2), tmp_path / "d" / name)
    for name in beside:
        (tmp_path / "d" / name).write_bytes(b"")
    assert_equal(walk(forebay.open(tmp_path / "d")), table)


def test_parts_beside_a_split_are_several_datasets(tmp_path):
    directory = tmp_path / "d"
    directory.mkdir()
    for name in ("part-0.parquet", "part-1.parquet", "test.parquet", "partial.parquet"):
        pq.write_table(pa.table({"x": [1]}), directory / name)
    with pytest.raises(forebay.OptionError, match="holds several splits") as raised:
        forebay.open(directory)
    for name in ("part-*.parquet", "test.parquet", "partial.parquet"):
        assert str(directory / name) in str(raised.value)


def test_a_repository_with_several_splits_or_a_missing_shard_is_refused(tmp_path, says):
    repository = tmp_path / "repository"
    repository.mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        pq.write_table(plain_table(), repository / f"{name}.parquet")
    with says(
        forebay.OptionError, repository / "train-*.parquet", repository / "test-00000-of-00001.parquet"
    ):
        forebay.open(repository)
    (repository / "test-00000-of-00001.parquet").unlink()
    (repository / "train-00000-of-00002.parquet").unlink()
    with says(forebay.FormatError, repository, 2, 1):
        forebay.open(repository)


def test_the_cache_of_the_library_has_the_files_of_its_split(tmp_path):
    table = plain_table()
    info = {"dataset_name": "things", "splits": {"train": {"name": "train"}}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    write_arrow(tmp_path / "cache-0123456789abcdef.arrow", table.slice(5), "stream", None, rows=10)
    for number, part in enumerate([table.slice(0, 30), table.slice(30)]):
        write_arrow(tmp_path / f"things-train-{number:05}-of-00002.arrow", part, "stream", None, rows=10)
    assert_equal(walk(forebay.open(tmp_path)), table)


def test_other_directories_are_what_they_were(tmp_path):
    folder = tmp_path / "folder/cat"
    folder.mkdir(parents=True)
    (folder / "1.jpg").write_bytes(b"\xff\xd8\xff")
    assert forebay.open(folder.parent).format == "folder"
    pq.write_table(plain_table(), folder / "a.parquet")
    assert forebay.open(folder, format="folder").format == "folder"


def test_descriptions_that_name_other_classes_are_refused(tmp_path):
    for name, classes in (("a", ["cat", "dog"]), ("b", ["dog", "cat"])):
        directory = save(tmp_path / name, [plain_table()])
        features = {"label": {"names": classes, "_type": "ClassLabel"}}
        (directory / "dataset_info.json").write_text(json.dumps({"features": features}))
    pattern = str(tmp_path / "*" / "data-*.arrow")
    with pytest.raises(forebay.OptionError, match=r"dog, cat, .* cat, dog"):
        forebay.open(pattern)
    one, other = (forebay.open(tmp_path / name) for name in "ab")
    with pytest.raises(forebay.OptionError, match="one label would mean two classes"):
        forebay.mix({"one": one, "other": other})
    (tmp_path / "b" / "dataset_info.json").write_text((tmp_path / "a" / "dataset_info.json").read_text())
    assert len(forebay.open(pattern)) == 2 * len(one)


@pytest.mark.parametrize("names", ["train-{}.parquet", "train_{}.parquet", "train.{}.parquet"])
def test_split_opens_the_files_that_begin_with_its_name(tmp_path, names):
    table, d = pa.table({"x": range(6)}), tmp_path / "d"
    d.mkdir()
    for number in range(2):
        pq.write_table(table.slice(3 * number, 3), d / names.format(number))
    pq.write_table(table.slice(0, 1), d / "test-0.parquet")
    with pytest.raises(forebay.OptionError, match="split= names one of them"):
        forebay.open(d)
    assert_equal(walk(forebay.open(d, split="train")), table)
    assert len(forebay.open(d, split="test")) == 1
    with pytest.raises(forebay.OptionError, match="has no split 'tr'"):
        forebay.open(d, split="tr")


def test_the_pattern_of_a_hint_skips_what_the_directory_skips(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "_SUCCESS").write_bytes(b"")
    (tmp_path / "d" / "part-00000.crc").write_bytes(b"crc")
    pq.write_table(pa.table({"x": range(6)}), tmp_path / "d" / "part-00000")
    with pytest.raises(forebay.OptionError, match=r"d/\*\""):
        forebay.open(tmp_path / "d")
    assert len(forebay.open(str(tmp_path / "d" / "*"))) == 6
    assert forebay.open([str(tmp_path / "d" / "part-*")]).format == "parquet"
