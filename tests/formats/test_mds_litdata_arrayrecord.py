"""MDS, LitData and ArrayRecord: files that their own libraries wrote, as all ranks deliver them."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest

import forebay
from support import run_python
from support.ranks import fields
from support.shard_records import (
    ARRAY_RECORD_OPTIONS,
    MDS_COLUMNS,
    array_records,
    mds_fields,
    token_sample,
    tree_sample,
)

GOLDEN = Path(__file__).parent / "golden"
FOREBAY = [sys.executable, "-m", "forebay"]
SAMPLES = 20


def same(found, expected):
    """Compare a field: an array with its type, all else by its bytes."""
    if isinstance(expected, np.ndarray | np.generic):
        assert np.asarray(found).dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    else:
        assert bytes(found) == expected


def tree_fields(number):
    """Return a sample of LitData as Forebay delivers it."""
    sample = tree_sample(number)
    return {
        **sample,
        "even": np.bool_(sample["even"]),
        "label": np.int64(sample["label"]),
        "text": sample["text"].encode(),
        "weight": np.float64(sample["weight"]),
    }


CASES = {
    "mds": (GOLDEN / "mds" / "columns", mds_fields),
    "litdata": (GOLDEN / "litdata" / "trees", tree_fields),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize(("ranks", "order"), [(1, "sequential"), (3, "group")])
def test_every_field_is_what_the_library_wrote(pool, kind, ranks, order):
    path, expected = CASES[kind]
    dataset = forebay.open(path)
    assert (dataset.format, len(dataset), len(dataset.paths)) == (
        kind,
        SAMPLES,
        len(list(path.glob("*.[bm]*"))),
    )
    samples = fields.everything(pool, str(path), {}, ranks, order)
    assert sorted(samples) == list(range(SAMPLES))
    for number, sample in samples.items():
        assert sorted(sample) == sorted(expected(number))
        for name, value in expected(number).items():
            same(sample[name], value)


@pytest.mark.parametrize("kind", CASES)
def test_fields_are_chosen_in_an_order(kind):
    path, expected = CASES[kind]
    names = list(expected(0))[3:0:-1]
    dataset = forebay.open(path, fields=names)
    assert list(dataset.fields) == names
    for number in (0, 19):
        for name in names:
            same(dataset[number][name], expected(number)[name])


@pytest.mark.parametrize("kind", CASES)
def test_a_dataset_of_listed_shards_is_pickled(kind):
    path, expected = CASES[kind]
    copy = pickle.loads(pickle.dumps(forebay.open(path)))
    assert len(copy) == SAMPLES
    for name, value in expected(11).items():
        same(copy[11][name], value)


_OPEN_MANY = """
import resource, sys
import forebay
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[2])))
print(len(forebay.open(sys.argv[1])))
"""


@pytest.mark.parametrize("hard", [4096, 64])
def test_more_listed_shards_than_the_limit_on_open_files(tmp_path, hard):
    source, shards = GOLDEN / "mds" / "columns", 100
    index = json.loads((source / "index.json").read_text())
    first = index["shards"][0]
    for number in range(shards):
        shutil.copy(source / "shard.00000.mds", tmp_path / f"{number}.mds")
    listed = [
        {**first, "raw_data": {**first["raw_data"], "basename": f"{number}.mds"}} for number in range(shards)
    ]
    (tmp_path / "index.json").write_text(json.dumps({**index, "shards": listed}))
    done = run_python(_OPEN_MANY, tmp_path, hard)
    if hard > 64:
        assert int(done.stdout) == shards * first["samples"], done.stderr
    else:
        assert done.returncode == 1
        assert "StorageError" in done.stderr
        assert "ulimit -n" in done.stderr


def test_types_and_shapes_of_mds_are_those_of_the_encodings():
    dataset = forebay.open(GOLDEN / "mds" / "columns")
    assert list(dataset.fields) == sorted(MDS_COLUMNS)
    assert dataset.fields["label"] == ("int64", ())
    assert dataset.fields["grid"] == ("float32", (2, 3))
    assert dataset.fields["pixels"] == ("uint8", (2, 4))
    assert dataset.fields["tokens"] == ("int32", None)
    assert dataset.fields["image"] == ("uint8", None)


def test_a_shard_of_mds_is_opened_without_its_directory():
    dataset = forebay.open(GOLDEN / "mds" / "columns" / "shard.00001.mds")
    first = len(forebay.open(GOLDEN / "mds" / "columns" / "shard.00000.mds"))
    assert dataset.format == "mds"
    same(dataset[0]["tokens"], mds_fields(first)["tokens"])


def test_one_length_per_sample_needs_no_read_of_samples():
    dataset = forebay.open(GOLDEN / "mds" / "tokens")
    assert [bytes(dataset[number]["tokens"]) for number in range(SAMPLES)] == [
        token_sample(number).tobytes() for number in range(SAMPLES)
    ]


def test_arrays_stay_as_they_are_stored_with_the_schema_raw():
    dataset = forebay.open(GOLDEN / "mds" / "columns", schema="raw", fields=["pixels", "label"])
    value = bytes(dataset[3]["pixels"])
    # uint8, two axes of one byte each.
    assert value[:4] == bytes([8, 2 << 2, 2, 4])
    same(value[4:], mds_fields(3)["pixels"].tobytes())
    assert dataset.fields["label"] == ("int64", ())


def test_decompressed_shards_beside_compressed_ones_are_read(tmp_path, says):
    source = GOLDEN / "mds" / "zstd"
    copy = Path(shutil.copytree(source, tmp_path / "zstd"))
    with says(forebay.FormatError, copy / "shard.00000.mds.zstd"):
        forebay.open(copy)
    for listed in json.loads((copy / "index.json").read_text())["shards"]:
        raw, zipped = listed["raw_data"], copy / listed["zip_data"]["basename"]
        data = pyarrow.decompress(zipped.read_bytes(), raw["bytes"], codec="zstd", asbytes=True)
        (copy / raw["basename"]).write_bytes(data)
    assert len(forebay.open(copy)) == SAMPLES


def test_a_leaf_alone_is_called_data():
    dataset = forebay.open(GOLDEN / "litdata" / "leaf")
    assert dataset.fields == {"data": ("uint16", None)}
    for number in range(SAMPLES):
        same(dataset[number]["data"], token_sample(number))


@pytest.mark.parametrize("stride", [None, 3])
def test_tokens_of_litdata_are_windows(stride):
    directory = GOLDEN / "litdata" / "tokens"
    with pytest.raises(forebay.FormatError, match=r"forebay\.tokens"):
        forebay.open(directory)
    dataset = forebay.tokens(directory, window=8, stride=stride)
    with pytest.warns(RuntimeWarning, match="fill no window"):
        assert len(dataset) > 10
    found = [dataset[number]["tokens"] for number in range(len(dataset))]
    index = json.loads((directory / "index.json").read_text())
    tokens = np.concatenate([token_sample(number) for number in range(SAMPLES)]).astype(np.int32)
    expected, first = [], 0
    for chunk in index["chunks"]:
        own = tokens[first : first + chunk["dim"]]
        first += chunk["dim"]
        expected += [own[at : at + 8] for at in range(0, len(own) - 7, stride or 8)]
    assert first == len(tokens)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["arrow", "zstd", "framed"])
def test_chunks_of_litdata_without_offsets_are_refused(name, says):
    with says(forebay.FormatError, GOLDEN / "litdata" / name):
        forebay.open(GOLDEN / "litdata" / name)


@pytest.mark.parametrize("name", ARRAY_RECORD_OPTIONS)
@pytest.mark.parametrize(("ranks", "order"), [(1, "sequential"), (3, "group")])
def test_every_record_is_what_array_record_wrote(pool, name, ranks, order):
    path = str(GOLDEN / "arrayrecord" / f"{name}.array_record")
    records = array_records()
    dataset = forebay.open(path)
    assert (dataset.format, len(dataset)) == ("arrayrecord", len(records))
    samples = fields.everything(pool, path, {}, ranks, order)
    assert [samples[number]["data"].tobytes() for number in range(len(records))] == records


def test_blocks_cut_records_into_extents():
    dataset = forebay.open(GOLDEN / "arrayrecord" / "plain.array_record")
    lengths = [len(dataset.extents(number)) for number in range(len(dataset))]
    assert (min(lengths), max(lengths)) == (1, 2)


@pytest.mark.parametrize(("name", "offset"), [("brotli", 104), ("transposed", 64)])
def test_records_of_other_encodings_are_refused(name, offset, says):
    dataset = forebay.open(GOLDEN / "arrayrecord" / f"{name}.array_record")
    with says(forebay.FormatError, offset):
        len(dataset)


@pytest.mark.parametrize("kind", ["mds", "litdata", "arrayrecord"])
def test_files_that_are_cut_are_refused(tmp_path, kind):
    source = GOLDEN / "arrayrecord" / "plain.array_record" if kind == "arrayrecord" else CASES[kind][0]
    target = tmp_path / source.name
    if source.is_dir():
        shutil.copytree(source, target)
        file = sorted(target.glob("*.[bm]*"))[1]
    else:
        file = Path(shutil.copy(source, target))
    # The last block of ArrayRecord is padded.
    file.write_bytes(file.read_bytes()[: -66_000 if kind == "arrayrecord" else -700])
    with pytest.raises(forebay.FormatError) as caught:
        len(forebay.open(target))
    assert str(target) in str(caught.value)


def test_damaged_records_are_found_by_verify(tmp_path):
    path = Path(shutil.copy(GOLDEN / "arrayrecord" / "plain.array_record", tmp_path))
    data = bytearray(path.read_bytes())
    at = data.index(array_records()[3][:16])
    data[at] ^= 1
    path.write_bytes(data)
    done = subprocess.run([*FOREBAY, "verify", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "hash of the data of a chunk" in done.stdout + done.stderr


def test_lengths_that_contradict_the_table_are_found_by_verify(tmp_path):
    directory = Path(shutil.copytree(GOLDEN / "mds" / "tokens", tmp_path / "mds"))
    path = directory / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    first = struct.unpack_from("<I", data, 4)[0]
    struct.pack_into("<I", data, first, 3)
    path.write_bytes(data)
    done = subprocess.run([*FOREBAY, "verify", str(directory)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"at offset {first}" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda index: index["shards"][1].update(samples=99), "samples of a shard"),
        (lambda index: index["shards"][1]["raw_data"].update(bytes=99), "size of a shard"),
        (lambda index: index["shards"][1]["raw_data"].update(basename="../x.mds"), "name of a shard"),
        (lambda index: index["shards"][1].update(format="csv"), "a shard of another format"),
        (lambda index: index["shards"][1].pop("samples"), "list of shards"),
    ],
)
def test_lists_of_shards_are_compared_with_the_shards(tmp_path, change, named):
    directory = Path(shutil.copytree(GOLDEN / "mds" / "columns", tmp_path / "mds"))
    path = directory / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    with pytest.raises(forebay.FormatError, match=named) as caught:
        forebay.open(directory)
    assert str(path) in str(caught.value)


def test_a_directory_with_another_index_is_refused(tmp_path, says):
    (tmp_path / "index.json").write_text("{}")
    (tmp_path / "a.txt").write_text("a")
    with says(forebay.FormatError, tmp_path):
        forebay.open(tmp_path)


@pytest.mark.parametrize("kind", CASES)
def test_samples_are_converted(tmp_path, kind):
    path, expected = CASES[kind]
    names = [name for name, value in expected(0).items() if not isinstance(value, np.ndarray)]
    target = tmp_path / "x.tar"
    arguments = [argument for name in names for argument in ("--field", name)]
    subprocess.run([*FOREBAY, "convert", str(path), str(target), *arguments], check=True, capture_output=True)
    assert len(forebay.open(target)) == SAMPLES
