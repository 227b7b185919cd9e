"""Nulls in the columns of tables: an error, or told by a mask, as pyarrow reads them."""

from __future__ import annotations

import numpy as np
import pytest

import forebay
from forebay.tools.convert import convert
from forebay.tools.convert.source import open_source
from support.table_files import COLUMNS, ROWS, expected, flat, outcomes_of_damage, walk, write_arrow

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

# Arrays have no mask.
MASKED = [name for name in COLUMNS if "fixed_list" not in name and name != "tensor"]
IS_NULL = np.arange(ROWS) % 5 == 2


def with_nulls(column):
    """Return a column that is null in some rows."""
    if pa.types.is_struct(column.type):
        members = [with_nulls(column.field(number)) for number in range(column.type.num_fields)]
        return pa.StructArray.from_arrays(members, fields=list(column.type))
    if pa.types.is_dictionary(column.type):
        return with_nulls(column.cast(column.type.value_type)).dictionary_encode()
    return pa.array(
        [None if null else value for value, null in zip(column, IS_NULL, strict=True)], column.type
    )


def write(path, table, kind, rows=10, **options):
    """Write a table in parts of ten rows."""
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=rows, **options)
    else:
        layout, compression = {
            "arrow": ("file", None), "arrow_zstd": ("file", "zstd"), "arrow_lz4": ("stream", "lz4")
        }[kind]  # fmt: skip
        write_arrow(path, table, layout, compression, rows=rows)
    return path


def check(samples, table):
    """Compare samples with a table: masks, values, and zeros or nothing in the place of nulls."""
    columns = dict(zip(flat(table).column_names, flat(table).columns, strict=True))
    values = {}
    for name, column in columns.items():
        present = pa.table({name: column.drop_null().combine_chunks()})
        values[name] = iter([sample[name] for sample in expected(present)])
    assert len(samples) == table.num_rows
    for number, sample in enumerate(samples):
        assert list(sample) == [name for column in columns for name in (column, f"{column}.valid")]
        for name, column in columns.items():
            found, valid = np.asarray(sample[name]), sample[f"{name}.valid"]
            assert (valid.dtype, valid.shape) == (np.bool_, ())
            assert bool(valid) is column[number].is_valid
            if not valid:
                assert not found.tobytes().strip(b"\0")
                continue
            value = next(values[name])
            assert found.tobytes() == value if isinstance(value, bytes) else np.array_equal(found, value)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow_zstd", "arrow_lz4"])
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_tells_nulls_from_values_of_every_type(tmp_path, name, kind):
    if (name, kind) == ("date64", "parquet"):
        pytest.skip("Parquet has milliseconds for dates only")
    table = pa.table({"x": with_nulls(COLUMNS[name])})
    dataset = forebay.open(write(tmp_path / "a", table, kind), nulls="mask")
    check([dataset[number] for number in range(ROWS)], table)
    check(walk(dataset, "group"), table)


def mixed_table():
    """A table of all lengths of values: some, all and none of them null."""
    names = ["int16", "bool", "string", "list", "dictionary", "timestamp_ms", "fixed_binary", "struct"]
    columns = {name: with_nulls(COLUMNS[name]) for name in names}
    columns |= {f"no_{name}": pa.nulls(ROWS, COLUMNS[name].type) for name in names[:4]}
    return pa.table(columns | {f"all_{name}": COLUMNS[name] for name in names[:4]})


@pytest.mark.parametrize("order", ["group", "shuffle"])
@pytest.mark.parametrize(
    "options",
    [
        {"data_page_version": "1.0", "use_dictionary": False, "data_page_size": 64, "compression": "none"},
        {"data_page_version": "2.0", "use_dictionary": False, "data_page_size": 64, "compression": "zstd"},
        {"data_page_version": "2.0", "write_statistics": False, "store_schema": False},
        {"version": "1.0", "write_statistics": False, "compression": "gzip"},
    ],
    ids=str,
)
def test_nulls_are_told_in_every_kind_of_page(tmp_path, options, order):
    table = mixed_table()
    for rows in (7, 1000):
        path = write(tmp_path / f"{rows}.parquet", table, "parquet", rows, **options)
        check(walk(forebay.open(path, nulls="mask"), order), table)


@pytest.mark.parametrize("kind", ["arrow", "arrow_zstd", "arrow_lz4"])
def test_nulls_are_told_in_slices_and_several_files(tmp_path, kind):
    table = mixed_table()
    parts = [table.slice(3, 11), table.slice(0, 0), table.slice(14, 39)]
    for number, part in enumerate(parts):
        write(tmp_path / f"part-{number}.arrow", part, kind)
    dataset = forebay.open(tmp_path / "part-*.arrow", nulls="mask")
    check(walk(dataset, "shuffle"), pa.concat_tables(parts))
    for name, column in dataset.read(range(50)).items():
        if name.endswith(".valid") and "struct" not in name:
            valid = pa.concat_tables(parts)[name.removesuffix(".valid")].is_valid()
            assert column.tolist() == valid.to_pylist()


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow_zstd"])
def test_what_a_file_holds_in_the_place_of_a_null_does_not_come_out(tmp_path, kind):
    values, mask = np.arange(1, 10), np.arange(9) % 4 == 1
    bits = pa.py_buffer(np.packbits(~mask, bitorder="little").tobytes())
    text = pa.array([str(n) * n for n in values])
    text = pa.Array.from_buffers(pa.string(), 9, [bits, *text.buffers()[1:]])
    lists = pa.array([[n] * n for n in values.tolist()])
    item = lists.values
    lists = pa.Array.from_buffers(lists.type, 9, [bits, lists.buffers()[1]], children=[item])
    far = pa.Array.from_buffers(
        pa.int8(), 9, [bits, pa.py_buffer(np.where(mask, 99, 0).astype("i1").tobytes())]
    )
    coded = pa.DictionaryArray.from_arrays(far, pa.array([7.0]), safe=False)
    table = pa.table({"n": pa.array(values, mask=mask), "t": text, "v": lists, "d": coded})
    path = write(tmp_path / "a", table, kind)
    check(walk(forebay.open(path, nulls="mask")), table)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_the_mask_of_a_column_without_nulls_is_true_and_a_required_column_has_none(tmp_path, kind):
    schema = pa.schema([pa.field("x", pa.int64()), pa.field("y", pa.int64(), nullable=False)])
    table = pa.table({"x": range(9), "y": range(9)}, schema)
    dataset = forebay.open(write(tmp_path / "a", table, kind), nulls="mask")
    assert list(dataset.fields) == ["x", "x.valid", "y"]
    batch = dataset.read(range(9))
    assert batch["x.valid"].tolist() == [True] * 9
    assert batch["x"].tolist() == batch["y"].tolist() == list(range(9))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_field_that_is_named_brings_its_mask(tmp_path, kind):
    table = pa.table({"x": [1, None], "y": ["a", None], "z": [None, 2.0]})
    path = write(tmp_path / "a", table, kind)
    fields = {
        ("z", "x"): ["z", "z.valid", "x", "x.valid"],
        ("x.valid", "x"): ["x.valid", "x"],
        ("y.valid",): ["y.valid"],
    }
    for asked, found in fields.items():
        dataset = forebay.open(path, nulls="mask", fields=list(asked))
        assert list(dataset.fields) == list(dataset[0]) == found
        for name in found:
            if name.endswith(".valid"):
                valid = table[name.removesuffix(".valid")].is_valid().to_pylist()
                assert [bool(dataset[row][name]) for row in range(2)] == valid


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow_zstd"])
def test_null_structures_and_lists_are_told(tmp_path, kind):
    table = pa.table({
        "s": [{"a": 1, "b": "u"}, None, {"a": None, "b": "v"}, {"a": 4, "b": None}],
        "v": [[1], None, [], [2, 3]],
    })  # fmt: skip
    dataset = forebay.open(write(tmp_path / "a", table, kind), nulls="mask")
    check(walk(dataset), table)
    batch = dataset.read(range(4))
    assert batch["s.a.valid"].tolist() == [True, False, False, True]
    assert batch["v.valid"].tolist() == [True, False, True, True]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow_zstd"])
@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1], [2, None]]),
        pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
        pa.array([[1, 2], [3, None]], pa.list_(pa.int32(), 2)),
    ],
    ids=str,
)
def test_null_items_and_arrays_are_refused_with_a_hint_that_works(tmp_path, kind, column):
    path = write(tmp_path / "a", pa.table({"x": column, "y": [1, None]}), kind)
    for nulls, fields in [("mask", []), ("raise", ["x"])]:
        with pytest.raises(
            forebay.FormatError, match=r'a null in column "x", in a list or array.*row 1'
        ) as error:
            len(forebay.open(path, nulls=nulls, fields=fields or None))
        assert "nulls=" not in str(error.value)
    assert forebay.open(path, nulls="mask", fields=["y"]).read([0, 1])["y.valid"].tolist() == [True, False]


@pytest.mark.parametrize("kind", ["arrow", "arrow_zstd"])
def test_a_null_among_the_entries_of_a_dictionary_is_refused(tmp_path, kind):
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(["a", None]))
    path = write(tmp_path / "a", pa.table({"x": column}), kind)
    for nulls in ("mask", "raise"):
        with pytest.raises(forebay.FormatError, match='a null in the dictionary of column "x"'):
            len(forebay.open(path, nulls=nulls))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("values", [[1, None], ["a", None], [[1], None], [{"a": 1}, None]], ids=str)
def test_without_the_option_a_null_is_an_error_that_names_it(tmp_path, kind, values):
    path = write(tmp_path / "a", pa.table({"x": values}), kind)
    with pytest.raises(forebay.FormatError, match=r'a null in column "x.*row 1') as error:
        len(forebay.open(path))
    assert 'nulls="mask"' in str(error.value)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_masks_are_converted_and_kept_by_a_sidecar(tmp_path, kind):
    table = pa.table({"x": with_nulls(COLUMNS["int64"]), "y": with_nulls(COLUMNS["string"])})
    path = write(tmp_path / "a", table, kind)
    for _ in range(2):
        dataset = forebay.open(path, nulls="mask")
        dataset.native.build_index()
        check(walk(dataset), table)
    convert(open_source(lambda: forebay.open(path, nulls="mask"), [str(path)], []), tmp_path / "b.tfrecord")
    copy = forebay.open(tmp_path / "b.tfrecord")
    assert copy.read(range(ROWS))["x.valid"].ravel().tolist() == (~IS_NULL).tolist()
    assert copy.read(range(ROWS))["x"].ravel().tolist() == table["x"].fill_null(0).to_pylist()


@pytest.mark.parametrize("fields", [None, ["string.valid", "bool.valid", "all_int16.valid"]])
@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow_lz4"])
def test_damaged_masks_are_refused_or_read(tmp_path, kind, fields):
    whole = write(tmp_path / "a", mixed_table(), kind).read_bytes()
    outcomes = outcomes_of_damage(
        tmp_path, whole, kind.split("_")[0], seed=11, rows=ROWS, nulls="mask", fields=fields
    )
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("kind", ["arrow", "arrow_lz4"])
@pytest.mark.parametrize("name", ["int16", "bool", "string", "list", "dictionary"])
def test_a_batch_of_more_rows_than_its_file_holds_is_refused(tmp_path, name, kind):
    table = pa.table({"x": COLUMNS[name].slice(0, 49)})
    path = write(tmp_path / "a", table, kind, rows=49)
    rows = np.array([49], "<i8").tobytes()
    whole = path.read_bytes()
    # The length of the batch and of its array.
    assert whole.count(rows) >= 2
    path.write_bytes(whole.replace(rows, np.array([1 << 40], "<i8").tobytes()))
    with pytest.raises(forebay.FormatError, match="column"):
        len(forebay.open(path, format="arrow", nulls="mask", fields=["x.valid"]))


def test_nulls_of_other_formats_or_words_are_wrong_use(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(forebay.OptionError, match="nulls= is for Arrow and Parquet"):
        forebay.open(tmp_path / "a.npy", nulls="mask")
    with pytest.raises(forebay.OptionError, match="found 'fill'"):
        forebay.open(tmp_path / "a.npy", nulls="fill")
