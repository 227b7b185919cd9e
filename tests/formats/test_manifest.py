"""Manifests: the files that a table lists, in its order, with its labels; Python reads the same."""

from __future__ import annotations

import csv
import errno
import json
import math
import pickle
import warnings

import numpy as np
import pytest

import forebay
from support.ranks import choice
from support.tiering import MEMORY

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 90


@pytest.fixture
def listed(tmp_path):
    """Files in directories, and rows that name them in another order."""
    rng = np.random.default_rng(1)
    rows = []
    for number in rng.permutation(ROWS):
        name = f"images/{number % 7}/{number:03}.jpg"
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.bytes(int(rng.integers(0, 900))))
        rows.append(
            {
                "file_name": name,
                "label": int(number) - 5,
                "score": number / 8,
                "breed": ["pug", "Akita", "collie", "Übung"][number % 4],
                "caption": "" if number == 3 else f"a dog, number {number}",
            }
        )
    return tmp_path / "set", rows


def write(path, rows):
    """Write a table in the format of its suffix."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    return path


def read(root, row, breeds=None):
    """Read a sample with the standard library."""
    sample = {**row, "data": (root / row["file_name"]).read_bytes()}
    del sample["file_name"]
    if breeds is not None:
        sample["breed"] = breeds.index(row["breed"])
    return sample


def values(sample):
    """A sample of Forebay as Python values."""
    return {
        name: bytes(value) if name == "data" else value.item() if hasattr(value, "item") else value
        for name, value in sample.items()
    }


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_samples_are_the_files_of_the_rows_with_their_values(listed, suffix):
    root, rows = listed
    dataset = forebay.manifest(
        write(root / f"labels{suffix}", rows), classes="breed", decode={"caption": "text"}
    )
    breeds = sorted({row["breed"] for row in rows})
    assert len(dataset) == ROWS
    assert dataset.classes == dataset.classes_of("breed") == breeds
    assert dataset.fields == {
        "data": ("uint8", None),
        "label": ("int64", ()),
        "score": ("float64", ()),
        "breed": ("int64", ()),
        "caption": ("object", ()),
    }
    expected = [read(root, row, breeds) for row in rows]
    assert [values(sample) for sample in dataset] == expected
    again = pickle.loads(pickle.dumps(dataset))
    with forebay.Loader(again, 16, order="shuffle", node_memory=MEMORY, last_batch="partial") as loader:
        seen = []
        for batch in loader:
            for place, number in enumerate(batch.indices):
                sample = {name: batch[name][place] for name in dataset.fields}
                assert values(sample) == expected[number]
            seen += batch.indices.tolist()
    assert sorted(seen) == list(range(ROWS))


def test_ranks_share_the_files_of_a_manifest(pool, listed):
    root, rows = listed
    dataset = forebay.manifest(write(root / "labels.csv", rows), fields=["label"])
    options = {"batch_size": 4, "node_memory": MEMORY, "last_batch": "drop"}
    two = pool.run(2, choice.deliver, dataset=dataset, options=options, epochs=1)
    seen = [number for steps, _ in two for ids, _ in steps for number in ids]
    assert len(seen) == len(set(seen)) == ROWS // 8 * 8


def test_fields_come_in_the_order_that_is_asked_for(listed):
    root, rows = listed
    path = write(root / "labels.csv", rows)
    dataset = forebay.manifest(path, fields=["label", "data"])
    assert list(dataset.fields) == ["label", "data"]
    assert [(int(one["label"]), one["data"]) for one in dataset] == [
        (row["label"], read(root, row)["data"]) for row in rows
    ]
    names = forebay.manifest(path, fields=["file_name", "breed"], decode={"file_name": "text"})
    assert [one["file_name"] for one in names] == [row["file_name"] for row in rows]
    assert bytes(names[0]["breed"]).decode() == rows[0]["breed"]


def test_tables_without_a_header_ids_without_a_suffix_and_another_root(listed, tmp_path):
    root, rows = listed
    # As the list of the validation set of ImageNet.
    (tmp_path / "val.txt").write_text("".join(f"{row['file_name']} {row['label']}\n" for row in rows))
    dataset = forebay.manifest(tmp_path / "val.txt", root=root, columns=["file", "label"])
    assert [int(one["label"]) for one in dataset] == [row["label"] for row in rows]
    # As many tables of Kaggle.
    with (tmp_path / "train.csv").open("w") as file:
        file.write("id;breed\n")
        file.writelines(f"{row['file_name'].removesuffix('.jpg')};{row['breed']}\n" for row in rows)
    dataset = forebay.manifest(
        tmp_path / "train.csv", root=root, file="id", suffix=".jpg", classes=["breed"], delimiter=";"
    )
    assert [dataset.classes[int(one["breed"])] for one in dataset] == [row["breed"] for row in rows]
    # Absolute paths below the folder.
    with (tmp_path / "absolute.csv").open("w") as file:
        file.write("path,label\n")
        file.writelines(f"{root / row['file_name']},{row['label']}\n" for row in rows)
    dataset = forebay.manifest(tmp_path / "absolute.csv", root=root)
    assert [one["data"] for one in dataset] == [read(root, row)["data"] for row in rows]


def test_cells_are_numbers_only_where_all_of_a_column_are(listed):
    root, rows = listed
    columns = {
        "whole": (["1", "-2", "9223372036854775807"], "int64"),
        "missing": (["1", "", "3"], "float64"),
        "real": (["1", "2.5", "-1e-3"], "float64"),
        "zeros": (["007", "8", "9"], "uint8"),
        "words": (["1", "two", "3"], "uint8"),
        "lines": (["a\nb", 'a "quoted", word', ""], "uint8"),
        "under": (["1_000", "2", "3"], "uint8"),
    }
    table = [
        {"file": row["file_name"], **{name: cells[number] for name, (cells, _) in columns.items()}}
        for number, row in enumerate(rows[:3])
    ]
    dataset = forebay.manifest(write(root / "cells.csv", table))
    for name, (cells, dtype) in columns.items():
        assert dataset.fields[name][0] == dtype
        found = [one[name] for one in dataset]
        if dtype == "uint8":
            assert [bytes(one).decode() for one in found] == cells
        else:
            expected = [float(cell) if cell else math.nan for cell in cells]
            np.testing.assert_array_equal(np.array(found, "f8"), expected)
    assert [int(one["whole"]) for one in dataset] == [1, -2, 2**63 - 1]


def test_a_file_that_is_missing_is_named_with_its_line(listed, says):
    root, rows = listed
    path = write(root / "labels.csv", rows)
    (root / rows[40]["file_name"]).unlink()
    (root / rows[50]["file_name"]).unlink()
    with says(forebay.StorageError, "line 42", "labels.csv") as error:
        len(forebay.manifest(path))
    assert (error.value.errno, error.value.filename) == (errno.ENOENT, str(root / rows[40]["file_name"]))
    (root / rows[40]["file_name"]).symlink_to("0")
    (root / rows[50]["file_name"]).mkdir()
    with says(forebay.FormatError, "line 42"):
        len(forebay.manifest(path))
    with says(forebay.FormatError, "line 2"):
        len(forebay.manifest(write(root / "other.csv", rows[50:51] + rows[:40])))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("file,label\na.jpg,1\nb.jpg\n", r"line 3: expected 2 cells: file, label, found 1 cells"),
        ("file,file\na.jpg,1\n", r"line 1: expected a name for each column, none twice"),
        ("file,label\n../a.jpg,1\n", r"line 2: expected a file below .*, found '../a.jpg'"),
        ("file,label\n/etc/passwd,1\n", r"line 2: expected a file below .*, found '/etc/passwd'"),
        ("file,label\n,1\n", r"line 2: expected a file below"),
        ('file,label\na.jpg,"1\n', r"line \d: expected a row"),
        ('{"file": "a.jpg"}\n{"file": \n', r"line 2: expected an object of JSON"),
        ('{"file": "a.jpg"}\n[1]\n', r"line 2: expected an object of JSON, found list"),
        ("name,label\na.jpg,1\n", r"no column is known to name files; the columns: name, label"),
        ("file,data\na.jpg,1\n", r"a column is called 'data'"),
        (b"file,label\na.jpg,\xff\n", r"text at offset \d+: expected UTF-8, found byte 0xff"),
        ("file,label\n", "without samples"),
    ],
)
def test_a_table_that_is_damaged_or_unclear_is_refused(tmp_path, text, found):
    root = tmp_path / "set"
    root.mkdir()
    (root / "a.jpg").write_bytes(b"a")
    (root / "x.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(forebay.ForebayError, match=found):
        len(forebay.manifest(root / "x.csv"))


def test_what_is_listed_twice_is_a_warning_and_an_edited_table_another_dataset(listed):
    root, rows = listed
    path = write(root / "labels.jsonl", rows + rows[7:9])
    dataset = forebay.manifest(path)
    with pytest.warns(
        RuntimeWarning, match=r"2 files are listed more than once, the first, images/.*, again in line 91"
    ):
        assert len(dataset) == ROWS + 2
    assert dataset[7]["data"] == dataset[ROWS]["data"]
    before = dataset.fingerprint
    # A file beside it changes nothing.
    (root / "log.txt").write_text("epoch 1")
    assert forebay.manifest(path).fingerprint == before
    write(path, [{**row, "box": [1, 2]} for row in rows])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        edited = forebay.manifest(path)
        assert len(edited) == ROWS
    assert edited.fingerprint != before
    assert any("columns of lists or objects are left out: box" in str(one.message) for one in told)


def test_wrong_arguments_of_a_manifest_say_what_there_is(listed, says):
    root, rows = listed
    path = write(root / "labels.csv", rows)
    with says(forebay.OptionError):
        len(forebay.manifest(path, fields=["data", "colour"]))
    with says(forebay.OptionError):
        len(forebay.manifest(path, file="name"))
    with says(forebay.OptionError):
        forebay.manifest(path, delimiter="::")
    with pytest.raises(forebay.StorageError, match="does not exist"):
        forebay.manifest(root / "lables.csv")
    rows[3]["caption"] = ""
    path = write(root / "empty.csv", rows)
    with pytest.raises(
        forebay.FormatError, match=r"line 5: expected a class in column 'caption', found an empty"
    ):
        len(forebay.manifest(path, classes="caption"))


def test_a_manifest_without_rows_is_named(tmp_path):
    (tmp_path / "labels.csv").write_text("file_name,label\n")
    with pytest.raises(forebay.FormatError, match=r"no row in the manifest .*labels.csv"):
        len(forebay.manifest(tmp_path / "labels.csv"))
