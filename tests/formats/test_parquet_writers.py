"""Parquet of other writers: what pyarrow reads comes out, whatever the footer looks like."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import forebay
from support.parquet_files import (
    BYTE_ARRAY,
    I64,
    INT32,
    INT64,
    OPTIONAL,
    REPEATED,
    REQUIRED,
    RLE_DICTIONARY,
    SNAPPY,
    data_page,
    page,
    strings,
    varint,
    write,
)  # fmt: skip
from support.table_files import assert_equal, walk, write_arrow

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NUMBERS = np.arange(5, dtype="<i8") * 3 + 1
LONGS = {"type": INT64, "path": ["x"], "values": 5, "pages": data_page(5, NUMBERS.tobytes())}
X = {1: INT64, 3: REQUIRED, 4: "x"}


def assert_as_pyarrow(path, **options):
    """Compare all samples, read in both ways, with pyarrow."""
    table = pq.read_table(path)
    dataset = forebay.open(path, **options)
    assert_equal([dataset[number] for number in range(len(dataset))], table)
    assert_equal(walk(dataset), table)


def test_schema_elements_without_a_repetition_are_required_as_hyparquet_writes_them(tmp_path):
    chunk = {"type": BYTE_ARRAY, "values": 2, "pages": data_page(2, strings(b"alpha", b"be"))}
    path = write(
        tmp_path / "a.parquet",
        [{1: BYTE_ARRAY, 4: "bytes"}, {1: BYTE_ARRAY, 4: "text", 6: 0}],
        [(2, [{**chunk, "path": ["bytes"]}, {**chunk, "path": ["text"]}])],
    )
    assert_as_pyarrow(path)


def test_metadata_whose_values_are_no_strings_are_passed_over_as_fastparquet_writes_them(tmp_path):
    keys = [{1: "pandas", 2: "{}"}, {1: "none"}, {1: "int", 2: I64(1)}, {1: "bool", 2: True}]
    assert_as_pyarrow(write(tmp_path / "a.parquet", [X], [(5, [LONGS])], keys=keys))


def test_a_dictionary_at_offset_0_is_none_and_fields_of_other_types_are_passed_over(tmp_path):
    odd = {11: I64(0), 15: [{1: 3}], 16: [{1: {1: 2}}], 30: 7}
    assert_as_pyarrow(write(tmp_path / "a.parquet", [X], [(5, [{**LONGS, **odd}])]))


@pytest.mark.parametrize(
    "schema",
    [
        [
            {3: OPTIONAL, 4: "v", 5: 1, 6: 3},
            {1: INT32, 3: REPEATED, 4: "array", "inner": True},
        ],
        [{1: INT32, 3: REPEATED, 4: "v"}],
    ],
    ids=["two levels", "without annotation"],
)
def test_lists_of_old_writers_are_lists(tmp_path, schema):
    # Rows [7, 8], [], [9]: levels in runs of one, each after its length.
    has_list = len(schema) == 2
    filled, empty = (2, 1) if has_list else (1, 0)

    def levels(width, *found):
        runs = b"".join(varint(1 << 1) + bytes([level]) for level in found)
        return struct.pack("<I", len(runs)) + runs

    body = levels(1, 0, 1, 0, 0) + levels(2, filled, filled, empty, filled)
    pages = data_page(4, body + np.array([7, 8, 9], "<i4").tobytes())
    path = ["v", "array"] if has_list else ["v"]
    chunk = {"type": INT32, "path": path, "values": 4, "pages": pages}
    path = write(tmp_path / "a.parquet", schema, [(3, [chunk])])
    assert pq.read_table(path)["v"].to_pylist() == [[7, 8], [], [9]]
    dataset = forebay.open(path)
    assert list(dataset.fields) == ["v"]
    assert_as_pyarrow(path)


def test_pages_of_version_2_of_pyarrow_before_3_are_compressed_whatever_they_say(tmp_path):
    body = pa.compress(NUMBERS.tobytes(), codec="snappy", asbytes=True)
    details = {1: 5, 2: 0, 3: 5, 4: 0, 5: 0, 6: 0, 7: False}
    chunk = {**LONGS, "codec": SNAPPY, "pages": page(3, details, body, decoded=NUMBERS.nbytes)}
    path = write(tmp_path / "old", [X], [(5, [chunk])], created_by="parquet-cpp version 1.5.1-SNAPSHOT")
    assert_as_pyarrow(path, format="parquet")
    # Of another writer the flag is believed, and the length of the page is not that of its values.
    path = write(tmp_path / "new", [X], [(5, [chunk])], created_by="parquet-cpp version 2.0.0")
    with pytest.raises(forebay.FormatError, match="40 bytes, as it is not compressed"):
        forebay.open(path, format="parquet")[0]


def test_pages_of_another_length_than_they_say_are_errors(tmp_path):
    pages = page(0, {1: 5, 2: 0, 3: 3, 4: 3}, NUMBERS.tobytes(), decoded=41)
    path = write(tmp_path / "a.parquet", [X], [(5, [{**LONGS, "pages": pages}])])
    with pytest.raises(forebay.FormatError, match="length of a page at offset 4: expected 41 bytes"):
        forebay.open(path)[0]


@pytest.mark.parametrize("values", [4, 6])
def test_pages_of_another_number_of_values_than_rows_are_errors(tmp_path, values):
    pages = data_page(values, np.arange(values, dtype="<i8").tobytes())
    path = write(tmp_path / "a.parquet", [X], [(5, [{**LONGS, "pages": pages}])])
    with pytest.raises(forebay.FormatError, match="length at offset 4: expected 40 bytes"):
        forebay.open(path)[0]


def test_row_groups_without_rows_hold_no_samples(tmp_path):
    table = pa.table({"x": NUMBERS, "s": ["a", "bc", "", "d", "e"], "v": [[1], [], [2, 3], [4], [5]]})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for part in [table.slice(0, 0), table.slice(0, 2), table.slice(0, 0), table.slice(2)]:
            writer.write_table(part)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 4
    assert_as_pyarrow(tmp_path / "a.parquet")
    # A chunk without rows may have no pages at all, and no place.
    nothing = {**LONGS, "values": 0, "pages": b"", 9: I64(0)}
    assert_as_pyarrow(write(tmp_path / "b.parquet", [X], [(0, [nothing]), (5, [LONGS]), (0, [nothing])]))


def test_a_file_without_rows_is_a_shard_without_samples(tmp_path):
    table = pa.table({"x": NUMBERS})
    pq.write_table(table.slice(0, 0), tmp_path / "0.parquet")
    pq.write_table(table, tmp_path / "1.parquet")
    assert_equal(walk(forebay.open(tmp_path / "*.parquet")), table)


def runs_of_one_value(values):
    """The pages of a chunk that repeats one value of a dictionary in a few bytes."""
    dictionary = page(2, {1: 1, 2: 0}, struct.pack("<q", 42))
    body = b"\x01" + varint(values << 1) + b"\0"
    return dictionary, data_page(values, body, RLE_DICTIONARY)


def constant(path, values, groups=1):
    """A file of a few hundred bytes with this many equal rows."""
    dictionary, data = runs_of_one_value(values)
    places = {9: I64(4 + len(dictionary)), 11: I64(4)}
    chunk = {**LONGS, "values": values, "pages": dictionary + data, **places}
    return write(path, [X], [(values, [chunk])] * groups)


def test_a_few_bytes_may_hold_many_equal_rows(tmp_path):
    dataset = forebay.open(constant(tmp_path / "a.parquet", 1_000_000))
    assert (len(dataset), dataset[0], dataset[999_999]) == (1_000_000, {"x": 42}, {"x": 42})


def test_more_rows_than_a_file_can_hold_are_an_error_at_once(tmp_path):
    path = constant(tmp_path / "a.parquet", 2**31 - 1, groups=3)
    assert path.stat().st_size < 500
    with pytest.raises(
        forebay.FormatError, match=r"rows of all row groups.*at most 67108864.*found 6442450941"
    ):
        forebay.open(path)


def test_more_values_than_a_page_can_hold_are_an_error_at_once(tmp_path):
    dictionary, data = runs_of_one_value(2**31 - 1)
    places = {9: I64(4 + len(dictionary)), 11: I64(4)}
    chunk = {**LONGS, "pages": dictionary + data, **places}
    with pytest.raises(
        forebay.FormatError, match="values of the pages at offset 4: expected at most 67108864"
    ):
        forebay.open(write(tmp_path / "a.parquet", [X], [(5, [chunk])]))[0]


def test_a_chunk_that_many_row_groups_share_is_an_error(tmp_path):
    path = write(tmp_path / "a.parquet", [X], [(5, [{**LONGS, 9: I64(4), 7: I64(1000)}])] * 60)
    with pytest.raises(forebay.FormatError, match='bytes of column "x"'):
        forebay.open(path)


def test_a_sample_of_one_column_is_a_dict_whatever_the_column_is_called(tmp_path):
    for values in (["foo", "bar", "ba"], ["foo", "bar", "baz"]):
        table = pa.table({"data": values})
        paths = [tmp_path / f"{values[-1]}.{suffix}" for suffix in ("parquet", "arrow")]
        pq.write_table(table, paths[0])
        write_arrow(paths[1], table, "file", None, rows=2)
        for path in paths:
            dataset = forebay.open(path)
            assert [bytes(sample["data"]).decode() for sample in dataset[:]] == values
            for sample in (*dataset[:], dataset[0]):
                assert (sample.keys(), sample["data"].dtype) == ({"data"}, np.uint8)


def test_encrypted_columns_are_refused_by_name_and_others_are_read(tmp_path):
    """``crypto_metadata``: with the key of the footer, or of the column."""
    for number, marks in enumerate([{8: {1: {}}}, {8: {2: {1: ["y"]}}}, {9: b"ciphertext"}]):
        hidden = {**LONGS, "path": ["y"], "chunk": marks}
        path = write(tmp_path / f"{number}.parquet", [X, {**X, 4: "y"}], [(5, [LONGS, hidden])])
        for options in ({}, {"fields": ["y"]}):
            with pytest.raises(forebay.FormatError, match=r'column "y" \(it is marked as encrypted'):
                forebay.open(path, **options)
        assert [sample["x"] for sample in forebay.open(path, fields=["x"])[:]] == NUMBERS.tolist()
    with pytest.raises(OSError, match="encrypted"):
        pq.read_table(tmp_path / "0.parquet", columns=["y"])


def test_an_encrypted_footer_is_refused_with_the_way_out(tmp_path, says):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PARE" + bytes(100) + b"PARE")
    with says(forebay.FormatError, path, "decrypt"):
        forebay.open(path)


@pytest.mark.parametrize(
    "odd",
    [{6: 24}, {6: 5, 7: -1, 8: 5}, {6: 0, 10: {4: {}}, 1: BYTE_ARRAY}],
    ids=["unknown converted type", "decimal of scale -1", "enum that is a string"],
)
def test_an_annotation_that_is_not_known_concerns_its_column_alone(tmp_path, odd):
    schema = [X, {**X, 4: "y", **odd}, {**X, 4: "z"}]
    chunks = [LONGS, {**LONGS, "path": ["y"], "type": odd.get(1, INT64)}, {**LONGS, "path": ["z"]}]
    path = write(tmp_path / "a.parquet", schema, [(5, chunks)])
    for options in ({}, {"fields": ["y"]}):
        with pytest.raises(forebay.FormatError, match=r'not supported: .*column "y" \('):
            forebay.open(path, **options)
    dataset = forebay.open(path, fields=["x", "z"])
    assert dataset[:] == [{"x": number, "z": number} for number in NUMBERS]


def test_chunks_of_old_parquet_mr_lack_the_header_of_their_dictionary(tmp_path):
    dictionary = page(2, {1: 2, 2: 0}, strings(b"no", b"yes, of course"))
    header = len(dictionary) - len(strings(b"no", b"yes, of course"))
    body = b"\x01\x03\x16"  # eight indices of one bit, packed
    pages = dictionary + data_page(8, body, RLE_DICTIONARY)
    chunk = {
        "type": BYTE_ARRAY, "path": ["x"], "values": 8, "pages": pages, 2: [RLE_DICTIONARY],
        7: I64(len(pages) - header), 9: I64(4 + len(dictionary)), 11: I64(4),
    }  # fmt: skip
    schema = [{1: BYTE_ARRAY, 3: REQUIRED, 4: "x"}]
    for writer in ("parquet-mr", "parquet-mr version 1.2.8 (build x)"):
        path = write(tmp_path / "a.parquet", schema, [(8, [chunk])] * 2, created_by=writer)
        assert_as_pyarrow(path)
    path = write(tmp_path / "b.parquet", schema, [(8, [chunk])], created_by="parquet-mr version 1.10.0")
    with pytest.raises(forebay.FormatError, match="its pages"):
        len(forebay.open(path))


def test_a_structure_is_named_with_its_members(tmp_path):
    table = pa.table({"box": [{"x": 1, "at": {"y": 2}}]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(forebay.OptionError, match=r'"box" is a structure.*\n.*box.x, box.at.y'):
        forebay.open(tmp_path / "a.parquet", fields=["box"])


def test_files_without_rows_have_no_transaction(tmp_path):
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    with pytest.raises(forebay.FormatError, match="without records") as caught:
        forebay.open(tmp_path / "a.parquet")
    assert "transaction" not in str(caught.value)
