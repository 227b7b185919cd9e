"""RecordIO: files of MXNet 1.9.1, with parts, with and without an index file, with images."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

import forebay
import support
from support.ranks import fields
from support.recordio_records import HEADERS, MAGIC, image_records, plain_records

GOLDEN = Path(__file__).parent / "golden" / "recordio"
FORMS = {"scalar": (), "five": (5,), "varying": None, "single": (1,)}


def part(kind: int, data: bytes) -> bytes:
    """Return a part as dmlc-core writes it."""
    return MAGIC + struct.pack("<I", kind << 29 | len(data)) + data + bytes(-len(data) % 4)


@pytest.mark.parametrize("name", ["plain", "indexed"])
def test_every_record_is_what_mxnet_wrote(pool, name):
    path = str(GOLDEN / f"{name}.rec")
    records = plain_records()
    dataset = forebay.open(path)
    assert (dataset.format, len(dataset)) == ("recordio", len(records))
    assert [dataset[number] for number in range(len(records))] == records
    for ranks, order in ((1, "sequential"), (3, "group")):
        samples = fields.everything(pool, path, {}, ranks, order)
        assert [samples[number]["data"].tobytes() for number in range(len(records))] == records


def test_golden_files_hold_records_in_parts():
    extents = [forebay.open(GOLDEN / "plain.rec").extents(number) for number in range(120)]
    assert max(map(len, extents)) >= 3
    assert sum(len(one) > 1 for one in extents) > 10


@pytest.mark.parametrize("name", HEADERS)
def test_image_records_are_labels_id_and_image(pool, name):
    path = str(GOLDEN / f"{name}.rec")
    records = image_records(name)
    dataset = forebay.open(path)
    assert dataset.fields == {
        "label": ("float32", FORMS[name]),
        "id": ("uint64", ()),
        "data": ("uint8", None),
    }
    for ranks, order in ((1, "group"), (3, "sequential")):
        samples = fields.everything(pool, path, {}, ranks, order)
        assert sorted(samples) == list(range(len(records)))
        for number, (label, identity, image) in enumerate(records):
            fields.same(samples[number]["label"], label, "float32")
            fields.same(samples[number]["id"], identity, "uint64")
            assert samples[number]["data"].tobytes() == image


def test_several_shards_are_one_dataset(tmp_path):
    for number in range(3):
        shutil.copy(GOLDEN / "five.rec", tmp_path / f"{number}.rec")
    dataset = forebay.open(str(tmp_path / "*.rec"))
    assert len(dataset) == 120
    label, identity, image = image_records("five")[7]
    sample = dataset[87]
    np.testing.assert_array_equal(sample["label"], np.float32(label))
    assert (sample["id"], bytes(sample["data"])) == (identity, image)


def test_images_of_one_size_are_an_array(tmp_path):
    header = struct.pack("<IfQQ", 0, 3.0, 5, 0)
    path = tmp_path / "x.rec"
    path.write_bytes(b"".join(part(0, header + bytes([number]) * 784) for number in range(20)))
    dataset = forebay.open(path)
    assert dataset.fields["data"] == ("uint8", (784,))
    assert bytes(dataset[9]["data"]) == bytes([9]) * 784


def test_schemas_that_are_asked_for_are_kept_to(tmp_path, says):
    assert isinstance(forebay.open(GOLDEN / "scalar.rec", schema="raw")[0], bytes)
    path = tmp_path / "x.rec"
    path.write_bytes(part(0, b"short"))
    with says(forebay.FormatError, 0, 5):
        len(forebay.open(path, schema="image-record"))
    with says(forebay.OptionError, "fields="):
        len(forebay.open(path, fields=["label"]))


@pytest.fixture
def indexed(tmp_path):
    """A copy of a file with its index file."""
    for suffix in ("rec", "idx"):
        shutil.copy(GOLDEN / f"indexed.{suffix}", tmp_path / f"x.{suffix}")
    return tmp_path / "x.rec"


def test_an_index_file_that_contradicts_its_file_is_refused(indexed, says):
    index = indexed.with_suffix(".idx")
    lines = index.read_text().splitlines()
    lines[3] = "3\t17"
    index.write_text("\n".join(lines))
    offset = len("\n".join(lines[:3])) + 1
    with says(forebay.FormatError, "x.idx", 17, offset):
        len(forebay.open(indexed))
    index.write_text("0 0\n")
    with says(forebay.FormatError, "x.idx", 0):
        len(forebay.open(indexed))
    index.unlink()
    assert len(forebay.open(indexed)) == 120


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (part(0, b"data") + bytes(8), (12, "0xced7230a", "0x00000000")),
        (part(0, b"data") + part(5, b""), (16, 0, 3, 5)),
        (part(0, b"data") + part(3, b""), ()),
        (part(0, b"data") + part(1, b""), (20, 8)),
        (part(1, b"") + part(0, b""), ()),
        (part(0, b"data") + MAGIC + struct.pack("<I", (1 << 29) - 1) + b"x", (16,)),
    ],
    ids=["magic", "kind", "order", "cut", "unfinished", "hostile"],
)
def test_damage_is_named_with_file_and_offset(tmp_path, content, values, says):
    path = tmp_path / "x.rec"
    path.write_bytes(content)
    with says(forebay.FormatError, "x.rec", *values):
        len(forebay.open(path))


def test_a_file_that_is_cut_is_refused(indexed):
    size = indexed.stat().st_size
    indexed.with_suffix(".idx").unlink()
    for length in (size - 1, size - 4, size // 2 + 1, 7):
        os.truncate(indexed, length)
        with pytest.raises(forebay.FormatError):
            len(forebay.open(indexed, format="recordio"))


@pytest.mark.parametrize("name", HEADERS)
def test_image_records_are_read_from_lmdb_as_well(pool, tmp_path, name):
    kept = forebay.open(GOLDEN / f"{name}.rec", schema="raw")
    records = image_records(name)
    path = support.write_lmdb(tmp_path / "x.lmdb", [kept[number] for number in range(len(kept))])
    opening = {"schema": "image-record"}
    assert forebay.open(path, **opening).fields["label"] == ("float32", FORMS[name])
    samples = fields.everything(pool, str(path), opening, 2, "group")
    assert sorted(samples) == list(range(len(records)))
    for number, (label, identity, image) in enumerate(records):
        fields.same(samples[number]["label"], label, "float32")
        fields.same(samples[number]["id"], identity, "uint64")
        assert samples[number]["data"].tobytes() == image
