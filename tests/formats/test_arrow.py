"""Arrow: what pyarrow writes is what comes out, in place; what is not read says why."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import forebay
from support.table_files import (
    COLUMNS,
    ROWS,
    UNREADABLE,
    assert_equal,
    flat,
    outcomes_of_damage,
    plain_table,
    walk,
    write_arrow,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("layout", ["file", "stream"])
@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_comes_out_as_pyarrow_reads_it(tmp_path, name, layout, compression):
    table = pa.table({"x": COLUMNS[name]})
    path = write_arrow(tmp_path / "a", table, layout, compression, rows=10)
    dataset = forebay.open(path)
    assert (dataset.format, len(dataset)) == ("arrow", ROWS)
    assert_equal([dataset[number] for number in range(ROWS)], table)
    assert_equal(walk(dataset, "group"), table)


@pytest.mark.parametrize("order", ["sequential", "group", "shuffle"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_all_columns_of_several_files_come_out_together(tmp_path, order, compression):
    table = plain_table()
    cuts = [(0, 20), (20, 21), (21, ROWS)]
    for number, (first, end) in enumerate(cuts):
        part = table.slice(first, end - first)
        layout = ["file", "stream"][number % 2]
        write_arrow(tmp_path / f"part-{number}.arrow", part, layout, compression, rows=7)
    dataset = forebay.open(tmp_path / "part-*.arrow")
    assert list(dataset.fields) == flat(table).column_names
    assert_equal(walk(dataset, order), table)


@pytest.mark.parametrize("write", ["arrow", "parquet"])
def test_shards_with_other_units_of_time_are_refused(tmp_path, write, says):
    types = {"a": pa.time32("s"), "b": pa.time32("ms"), "c": pa.date32(), "d": pa.int32()}
    if write == "parquet":
        types = {"a": pa.time32("ms"), "c": pa.date32(), "d": pa.int32()}
    for name, kind in types.items():
        table = pa.table({"when": pa.array([1, 2, 3], pa.int32()).cast(kind)})
        if write == "arrow":
            write_arrow(tmp_path / f"{name}.arrow", table, "file", None, rows=7)
        else:
            pq.write_table(table, tmp_path / f"{name}.parquet")
    paths = [tmp_path / f"{name}.{write}" for name in types]
    assert len(forebay.open([paths[0]])) == 3
    for path in paths[1:]:
        with says(forebay.FormatError, path):
            len(forebay.open([paths[0], path]))


def test_shards_may_differ_in_their_compression(tmp_path):
    table = plain_table()
    write_arrow(tmp_path / "0.arrow", table, "file", None, rows=7)
    write_arrow(tmp_path / "1.arrow", table, "file", "lz4", rows=50)
    assert_equal(walk(forebay.open(tmp_path / "*.arrow")), pa.concat_tables([table, table]))


def test_uncompressed_values_are_extents_of_the_file(tmp_path):
    values = np.arange(ROWS, dtype="<i4")
    path = write_arrow(tmp_path / "a", pa.table({"x": values}), "file", None, rows=10)
    bytes_of_file = path.read_bytes()
    dataset = forebay.open(path)
    for number in range(ROWS):
        [(name, offset, length)] = dataset.extents(number)
        assert (name, bytes_of_file[offset : offset + length]) == (str(path), values[number].tobytes())


def test_an_index_of_plain_columns_reads_no_values(tmp_path):
    path = write_arrow(tmp_path / "a", pa.table({"x": np.zeros(1_000_000)}), "file", None, rows=250_000)
    report = forebay.open(path).native.build_index()
    assert report["samples"] == 1_000_000
    assert report["read_bytes"] < 64 << 10


def test_slices_of_arrays_are_written_and_read_from_their_first_row(tmp_path):
    whole = plain_table()
    path = write_arrow(tmp_path / "a", whole.slice(3, 11), "file", None, rows=100)
    assert_equal(walk(forebay.open(path)), whole.slice(3, 11))


def test_dictionaries_of_a_stream_may_grow_and_change(tmp_path):
    schema = pa.schema([("x", pa.dictionary(pa.int8(), pa.string()))])
    batches = [
        pa.record_batch([pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), values)], schema=schema)
        for indices, values in [([0, 1, 1], ["a", "b"]), ([2, 0], ["a", "b", "c"]), ([0, 1], ["x", "yz"])]
    ]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with (
        pa.OSFile(str(tmp_path / "a"), "wb") as file,
        pa.ipc.new_stream(file, schema, options=options) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    found = [bytes(sample["x"]).decode() for sample in walk(forebay.open(tmp_path / "a"))]
    assert found == ["a", "b", "b", "c", "a", "x", "yz"]


def test_structures_are_flattened_and_images_are_their_bytes(tmp_path):
    images = pa.array([{"bytes": bytes([n] * n), "path": None} for n in range(1, 5)])
    box = pa.array([{"x": n, "at": {"y": 2 * n}} for n in range(1, 5)])
    path = write_arrow(tmp_path / "a", pa.table({"image": images, "box": box}), "file", None, rows=4)
    dataset = forebay.open(path)
    assert list(dataset.fields) == ["image", "box.x", "box.at.y"]
    assert [bytes(sample["image"]) for sample in walk(dataset)] == [bytes([n] * n) for n in range(1, 5)]
    assert [int(sample["box.at.y"]) for sample in walk(dataset)] == [2, 4, 6, 8]
    chosen = forebay.open(path, fields=["box.at.y", "image"])
    assert list(chosen[2]) == ["box.at.y", "image"]


def test_a_null_is_named_with_its_column_and_first_row(tmp_path, says):
    values = pa.array([*range(37), None, 3, None])
    path = write_arrow(tmp_path / "a", pa.table({"x": values, "y": range(40)}), "file", None, rows=10)
    with says(forebay.FormatError, path, "x", 37):
        len(forebay.open(path))
    assert len(forebay.open(path, fields=["y"])) == 40


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([[1], [2, None], [3]], pa.list_(pa.int32())),
        pa.array([[1], None, [3]], pa.list_(pa.int32())),
        pa.array([[1, 2], [2, None], [3, 4]], pa.list_(pa.int32(), 2)),
        pa.array([{"a": 1}, None, {"a": 2}], pa.struct([("a", pa.int32())])),
        pa.array([{"a": 1}, {"a": None}, {"a": 2}], pa.struct([("a", pa.int32())])),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.array([True, None, False]),
        pa.array(["a", None, "b"], pa.large_string()),
    ],
    ids=str,
)
def test_a_null_in_any_type_is_found(tmp_path, values, compression):
    path = write_arrow(tmp_path / "a", pa.table({"x": values}), "file", compression, rows=10)
    with pytest.raises(forebay.FormatError, match=r"a null in column \"x.*row 1"):
        len(forebay.open(path))


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_type_that_is_not_read_is_named_and_may_be_left_out(tmp_path, name):
    table = pa.table({"x": UNREADABLE[name], "y": pa.array(range(len(UNREADABLE[name])))})
    path = write_arrow(tmp_path / "a", table, "file", None, rows=10)
    with pytest.raises(forebay.FormatError, match=r'not supported: .*column "x[^"]*" \('):
        forebay.open(path)
    assert_equal(walk(forebay.open(path, fields=["y"])), table.select(["y"]))


def test_a_column_that_is_not_there_is_named(tmp_path, says):
    path = write_arrow(tmp_path / "a", plain_table().select(["text", "label"]), "file", None, rows=10)
    with says(forebay.OptionError, path, "z", "text, label"):
        forebay.open(path, fields=["z"])


def test_a_file_without_rows_says_so(tmp_path, says):
    path = write_arrow(tmp_path / "a", plain_table().slice(0, 0), "file", None, rows=10)
    with says(forebay.FormatError, path):
        len(forebay.open(path))


@pytest.mark.parametrize("layout", ["file", "stream"])
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_damage_is_an_error_or_leaves_the_rows_readable(tmp_path, layout, compression):
    table = plain_table().slice(0, 8)
    whole = write_arrow(tmp_path / "a", table, layout, compression, rows=4).read_bytes()
    outcomes = outcomes_of_damage(tmp_path, whole, "arrow", seed=7, rows=20)
    assert outcomes == {"read", "refused"}


def test_a_rewritten_file_is_noticed(tmp_path):
    path = write_arrow(tmp_path / "a", plain_table(), "file", None, rows=10)
    with forebay.Loader(path, 4, order="sequential", world="single") as loader:
        next(iter(loader))
        write_arrow(path, plain_table().slice(1), "file", None, rows=10)
        with pytest.raises(forebay.StorageError):
            for _ in loader:
                pass


def test_the_sidecar_is_found_again(tmp_path):
    path = write_arrow(tmp_path / "a", plain_table(), "file", "zstd", rows=10)
    first = forebay.open(path)
    len(first)
    again = forebay.open(path)
    assert again.fingerprint == first.fingerprint
    assert_equal(walk(again), plain_table())


def test_resume_equals_an_uninterrupted_run(tmp_path):
    path = write_arrow(tmp_path / "a", plain_table(), "file", "zstd", rows=10)
    options = {"order": "group", "seed": 5, "expected_epochs": 1, "world": "single"}
    with forebay.Loader(path, 4, **options) as loader:
        whole = [batch.indices.tolist() for batch in loader]
    with forebay.Loader(path, 4, **options) as loader:
        steps = iter(loader)
        begun = [next(steps).indices.tolist() for _ in range(3)]
        state = loader.state_dict()
    with forebay.Loader(path, 4, **options) as loader:
        loader.load_state_dict(state)
        assert begun + [batch.indices.tolist() for batch in loader] == whole


def test_the_codec_of_arrow_0_17_is_in_the_metadata_of_the_message(tmp_path):
    """A file that pyarrow 0.17 wrote, as pyarrow keeps it for its own tests."""
    feather = pytest.importorskip("pyarrow.feather")
    path = Path(pa.__file__).parent / "tests/data/feather/v0.17.0.version.2-compression.lz4.feather"
    table = feather.read_table(path)
    dataset = forebay.open(path, format="arrow")
    assert_equal([dataset[number] for number in range(len(dataset))], table)
    assert_equal(walk(dataset), table)
    other = tmp_path / "other.feather"
    other.write_bytes(path.read_bytes().replace(b"LZ4\0", b"LZ5\0"))
    with pytest.raises(forebay.FormatError, match="an unknown compression"):
        len(forebay.open(other, format="arrow"))


def test_a_block_that_a_footer_lists_many_times_is_an_error(tmp_path):
    path = tmp_path / "a.arrow"
    large, small = (pa.record_batch({"x": list(range(rows))}) for rows in (1000, 1))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, large.schema) as writer:
        for batch in [large, *[small] * 5]:
            writer.write_batch(batch)
    whole = bytearray(path.read_bytes())
    footer = len(whole) - 10 - int.from_bytes(whole[-10:-6], "little")
    # A block is an offset, the length of its metadata and that of its body.
    first = whole.index((8000).to_bytes(8, "little"), footer) - 16
    whole[first + 24 : first + 6 * 24] = whole[first : first + 24] * 5
    path.write_bytes(whole)
    with pytest.raises(forebay.FormatError, match=r"length of an Arrow message.*after the blocks before it"):
        len(forebay.open(path))


def write_legacy(path, table, layout, **options):
    """Write messages that begin with their lengths, as Arrow did before version 0.15."""
    new = pa.ipc.new_file if layout == "file" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True, **options)
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=7)
    return path


@pytest.mark.parametrize("layout", ["file", "stream"])
def test_messages_without_a_continuation_are_read_as_arrow_wrote_them_before_0_15(tmp_path, layout):
    table = plain_table()
    path = write_legacy(tmp_path / "a", table, layout, metadata_version=pa.ipc.MetadataVersion.V4)
    assert b"\xff\xff\xff\xff" not in path.read_bytes()[:512]
    dataset = forebay.open(path)
    assert dataset.format == "arrow"
    assert_equal(walk(dataset), table)


@pytest.mark.parametrize("end", [b"", bytes(4), b"\xff\xff\xff\xff" + bytes(4)], ids=["none", "old", "new"])
def test_a_stream_ends_in_each_way_that_writers_end_it(tmp_path, end):
    table = plain_table()
    whole = write_arrow(tmp_path / "a", table, "stream", None, rows=10).read_bytes()
    assert whole.endswith(b"\xff\xff\xff\xff" + bytes(4))
    path = tmp_path / "b.arrows"
    path.write_bytes(whole[:-8] + end)
    assert pa.ipc.open_stream(path).read_all() == table
    assert_equal(walk(forebay.open(path)), table)


def with_the_vtable_last(stream):
    """Move the vtable of the first message behind a kibibyte of zeros, as other libraries do."""
    (length,) = struct.unpack_from("<i", stream, 4)
    metadata = bytearray(stream[8 : 8 + length])
    (root,) = struct.unpack_from("<I", metadata)
    (back,) = struct.unpack_from("<i", metadata, root)
    vtable = metadata[root - back :][: struct.unpack_from("<H", metadata, root - back)[0]]
    metadata += bytes(1024)
    struct.pack_into("<i", metadata, root, root - len(metadata))
    metadata += vtable + bytes(-len(vtable) % 8)
    return stream[:4] + struct.pack("<i", len(metadata)) + metadata + stream[8 + length :]


def test_a_stream_is_recognized_wherever_its_tables_lie(tmp_path):
    table = plain_table()
    whole = write_arrow(tmp_path / "a", table, "stream", None, rows=10).read_bytes()
    path = tmp_path / "b.arrows"
    path.write_bytes(with_the_vtable_last(whole))
    assert pa.ipc.open_stream(path).read_all() == table
    dataset = forebay.open(path)
    assert dataset.format == "arrow"
    assert_equal(walk(dataset), table)


def test_old_metadata_and_big_endian_numbers_are_refused_by_name(tmp_path):
    stream = bytearray(write_arrow(tmp_path / "a", pa.table({"x": [1, 2]}), "stream", None, 2).read_bytes())
    metadata = memoryview(stream)[8:]

    def place(table, field):
        """Where a field of the table at a place lies."""
        (back,) = struct.unpack_from("<i", metadata, table)
        (offset,) = struct.unpack_from("<H", metadata, table - back + 4 + 2 * field)
        return table + offset if offset else None

    (root,) = struct.unpack_from("<I", metadata)
    version = place(root, 0)
    struct.pack_into("<h", metadata, version, 2)
    path = tmp_path / "old.arrows"
    path.write_bytes(stream)
    with pytest.raises(forebay.FormatError, match=r"version before 4.*\n.*rewrite the file"):
        forebay.open(path)
    struct.pack_into("<h", metadata, version, 4)
    header = place(root, 2)
    schema = header + struct.unpack_from("<I", metadata, header)[0]
    # Little-endian is left out, as the default: the reference to the fields stands in for a number.
    (back,) = struct.unpack_from("<i", metadata, schema)
    struct.pack_into("<H", metadata, schema - back + 4, 4)
    assert struct.unpack_from("<h", metadata, place(schema, 0)) != (0,)
    path = tmp_path / "big.arrows"
    path.write_bytes(stream)
    with pytest.raises(forebay.FormatError, match=r"big-endian.*\n.*rewrite the file"):
        forebay.open(path)
