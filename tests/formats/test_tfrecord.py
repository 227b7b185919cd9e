"""TFRecord: framing and tf.train.Example, against the `tfrecord` package and protobuf."""

from __future__ import annotations

import gzip
import os
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from tfrecord import example_pb2
from tfrecord.writer import TFRecordWriter

import forebay
import support
from forebay import cli
from support.ranks import fields

FEATURES = {
    "box": ("float_list", lambda draw, number: [draw.uniform(-9, 9) for _ in range(4)]),
    "count": ("int64_list", lambda draw, number: [number - 50]),
    "image": ("bytes_list", lambda draw, number: [draw.randbytes(draw.randrange(300))]),
    "pixels": ("bytes_list", lambda draw, number: [draw.randbytes(784)]),
    "planes": ("bytes_list", lambda draw, number: [draw.randbytes(20) for _ in range(3)]),
    "scale": ("float_list", lambda draw, number: [draw.random()]),
    "tags": ("int64_list", lambda draw, number: [draw.randrange(-(2**63), 2**63) for _ in range(number % 4)]),
    "track": ("float_list", lambda draw, number: [draw.random() for _ in range(number % 3)]),
    "triple": ("int64_list", lambda draw, number: [number, -number, 2**40]),
}
SHAPES = {
    "box": ("float32", (4,)),
    "count": ("int64", ()),
    "image": ("uint8", None),
    "pixels": ("uint8", (784,)),
    "planes": ("uint8", (3, 20)),
    "scale": ("float32", ()),
    "tags": ("int64", None),
    "track": ("float32", None),
    "triple": ("int64", (3,)),
}


def example(number):
    """Return a message with every kind of feature; protobuf writes it, in an order of its own."""
    draw = random.Random(number)
    message = example_pb2.Example()
    for name, (kind, values) in FEATURES.items():
        getattr(message.features.feature[name], kind).value.extend(values(draw, number))
    return message


def write(path, records):
    """Write records with the checksums of the tfrecord package."""
    with path.open("wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            file.write(length + TFRecordWriter.masked_crc(length))
            file.write(record + TFRecordWriter.masked_crc(record))
    return path


def expected(message):
    """Return what protobuf reads of a message, as arrays."""
    features = example_pb2.Example.FromString(message).features.feature
    found = {}
    for name, (kind, _) in FEATURES.items():
        values = getattr(features[name], kind).value
        dtype, shape = SHAPES[name]
        if kind == "bytes_list":
            values = np.frombuffer(b"".join(values), "uint8")
        array = np.array(values, dtype)
        found[name] = array if shape is None else array.reshape(shape)
    return found


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Three shards, one of them without records, and the messages."""
    directory = tmp_path_factory.mktemp("shards")
    messages = [example(number).SerializeToString() for number in range(101)]
    write(directory / "train-0.tfrecord", messages[:60])
    write(directory / "train-1.tfrecord", [])
    write(directory / "train-2.tfrecord", messages[60:])
    return str(directory / "train-*.tfrecord"), messages


def test_every_sample_is_what_protobuf_reads(shards):
    path, messages = shards
    dataset = forebay.open(path)
    assert (dataset.format, len(dataset)) == ("tfrecord", 101)
    assert dataset.fields == SHAPES
    for number in (0, 1, 59, 60, 100):
        sample = dataset[number]
        for name, value in expected(messages[number]).items():
            fields.same(np.array(sample[name]), value)


@pytest.mark.parametrize("order", ["sequential", "group"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_get_every_sample_as_protobuf_reads_it(pool, shards, ranks, order):
    path, messages = shards
    samples = fields.everything(pool, path, {}, ranks, order)
    assert sorted(samples) == list(range(101))
    for number, sample in samples.items():
        for name, value in expected(messages[number]).items():
            fields.same(sample[name], value)


def message_of(numbers, texts):
    """Return a message with lists of integers and byte strings of these values."""
    message = example_pb2.Example()
    for place, values in enumerate(numbers):
        message.features.feature[f"numbers{place}"].int64_list.value.extend(values)
    for place, text in enumerate(texts):
        message.features.feature[f"text{place}"].bytes_list.value.append(text)
    return message.SerializeToString()


def test_many_ragged_features_share_the_room_of_their_records(tmp_path):
    draw = random.Random(6)
    numbers = [
        [[draw.randrange(120) for _ in range(draw.randrange(200))] for _ in range(30)] for _ in range(96)
    ]
    texts = [[draw.randbytes(draw.randrange(400)) for _ in range(30)] for _ in range(96)]
    path = write(tmp_path / "x", [message_of(*both) for both in zip(numbers, texts, strict=True)])
    dataset = forebay.open(path)
    assert len(dataset.fields) == 60
    assert {shape for _, shape in dataset.fields.values()} == {None}
    # A batch of 32 is some 300 KB in the file, and some 900 KB decoded.
    with forebay.Loader(
        dataset, batch_size=32, order="shuffle", node_memory="16MiB", world="single", name="ragged"
    ) as loader:
        for batch in loader:
            for slot, number in enumerate(batch.indices):
                for name, value in dataset[number].items():
                    fields.same(batch[name][slot], value)
                for place in range(30):
                    assert batch[f"numbers{place}"][slot].tolist() == numbers[number][place]
                    assert batch[f"text{place}"][slot].tobytes() == texts[number][place]
        assert loader.stats()["heap_batches"] == 0


def test_a_batch_whose_values_outgrow_its_room_is_delivered_all_the_same(tmp_path):
    # The few samples that are looked at have short lists; that of the last one is written in a byte
    # per number.
    numbers = [[number] * (1 + number % 2) for number in range(99)] + [list(range(100)) * 3000]
    path = write(tmp_path / "x", [message_of([values], [b"x"]) for values in numbers])
    with forebay.Loader(
        forebay.open(path),
        batch_size=10,
        order="shuffle",
        node_memory="64MiB",
        world="single",
        name="outgrown",
    ) as loader:
        for batch in loader:
            for slot, number in enumerate(batch.indices):
                assert batch["numbers0"][slot].tolist() == numbers[number]
        assert loader.stats()["heap_batches"] > 0


def test_records_of_the_package_s_own_writer_are_read(tmp_path):
    path = tmp_path / "x.tfrecord"
    writer = TFRecordWriter(str(path))
    for number in range(20):
        writer.write(
            {"label": (number, "int"), "text": (b"x" * number, "byte"), "pair": ([0.5, number], "float")}
        )
    writer.close()
    dataset = forebay.open(path)
    assert list(dataset.fields) == ["label", "pair", "text"]
    for number in range(20):
        sample = dataset[number]
        assert sample["label"] == number
        assert bytes(sample["text"]) == b"x" * number
        np.testing.assert_array_equal(sample["pair"], np.float32([0.5, number]))


def test_raw_records_are_their_bytes(pool, shards):
    path, messages = shards
    dataset = forebay.open(path, schema="raw")
    assert [dataset[number] for number in range(101)] == messages
    samples = fields.everything(pool, path, {"schema": "raw"}, 3, "group")
    assert [samples[number]["data"].tobytes() for number in range(101)] == messages
    (file, offset, length) = dataset.extents(1)[0]
    assert messages[1] in Path(file).read_bytes()[offset : offset + length]


def test_named_features_are_read_in_their_order(shards, says):
    path, messages = shards
    dataset = forebay.open(path, fields=["triple", "image"])
    assert list(dataset.fields) == ["triple", "image"]
    assert list(dataset[5]) == ["triple", "image"]
    np.testing.assert_array_equal(dataset[5]["triple"], expected(messages[5])["triple"])
    with says(forebay.OptionError, "other") as caught:
        len(forebay.open(path, fields=["other"]))
    assert "features: box, count" in str(caught.value)


def test_records_that_are_no_examples_are_raw_unless_examples_were_asked_for(tmp_path, says):
    path = write(tmp_path / "x", [support.record(number, 100) for number in range(30)])
    assert forebay.open(path).fields == {"data": ("uint8", (100,))}
    with says(forebay.FormatError, 0):
        len(forebay.open(path, schema="tf-example"))


def test_a_record_that_is_not_like_the_others_is_named(tmp_path, says):
    def message(values):
        one = example_pb2.Example()
        one.features.feature["label"].int64_list.value.extend(values)
        return one.SerializeToString()

    records = [message([number]) for number in range(1000)]
    records[500] = message([1, 2])
    path = write(tmp_path / "x", records)
    dataset = forebay.open(path)
    assert dataset.fields == {"label": ("int64", ())}
    with says(forebay.FormatError, "label", 1, 2):
        dataset[500]
    assert dataset[501]["label"] == 501


def test_a_damaged_record_among_those_looked_at_does_not_hide_the_others(tmp_path, capsys, says):
    records = [message_of([[number]], [b"x"]) for number in range(10)]
    path = write(tmp_path / "x", records)
    damaged(path, 14, b"!")
    dataset = forebay.open(path)
    assert len(dataset) == 10
    assert dataset[9]["numbers0"] == 9
    with says(forebay.FormatError):
        dataset[0]
    assert cli.main(["verify", str(path)]) == 1
    assert "sample 0: " in capsys.readouterr().out


def sequence(number):
    """Return a message with two lists of steps, and a context as of an Example."""
    message = example_pb2.SequenceExample()
    message.context.feature["label"].int64_list.value.append(number)
    for step in range(3):
        message.feature_lists.feature_list["frames"].feature.add().bytes_list.value.append(b"frame %d" % step)
        message.feature_lists.feature_list["times"].feature.add().float_list.value.append(step)
    return message.SerializeToString()


def test_sequence_examples_are_refused_by_name_and_read_as_bytes(tmp_path, capsys, says):
    records = [sequence(number) for number in range(30)]
    path = write(tmp_path / "x", records)
    for schema in (None, "tf-example"):
        # Protobuf writes them in an order of its own.
        with says(forebay.FormatError, 0, replace={r"lists .*": "lists ..."}) as caught:
            len(forebay.open(path, schema=schema))
        assert 'schema="raw"' in str(caught.value)
        assert "frames" in str(caught.value)
    assert cli.main(["verify", str(path)]) == 1
    assert "SequenceExample" in capsys.readouterr().err
    assert list(forebay.open(path, schema="raw")) == records


def test_a_sequence_example_among_examples_is_a_bad_sample(tmp_path, capsys, says):
    plain = example_pb2.SequenceExample.FromString(sequence(7))
    plain.ClearField("feature_lists")
    records = [plain.SerializeToString()] * 10_000
    records[5000] = sequence(7)
    path = write(tmp_path / "x", records)
    dataset = forebay.open(path)
    assert dataset.fields == {"label": ("int64", ())}
    with pytest.raises(forebay.FormatError, match="5000"):
        dataset[5000]
    assert cli.main(["verify", str(path)]) == 1
    assert "sample 5000: " in capsys.readouterr().out
    options = {"batch_size": 100, "order": "sequential", "expected_epochs": 1, "world": "single"}
    with (
        forebay.Loader(dataset, name="raise", **options) as loader,
        says(forebay.FormatError, 5000, replace={r"lists .*": "lists ..."}),
    ):
        for _ in loader:
            pass
    with forebay.Loader(dataset, name="skip", bad_samples="skip", **options) as loader:
        with pytest.warns(RuntimeWarning, match="5000"):
            found = [number for batch in loader for number in batch.indices.tolist()]
        assert len(found) == 10_000
        assert 5000 not in found
        assert [number for number, _ in loader.bad_samples()] == [5000]


def test_a_feature_of_a_later_record_alone_is_never_dropped(tmp_path, says):
    records = [message_of([[number]], [b"x"]) for number in range(1000)]
    records[501] = message_of([[501], [3, 4]], [b"x"])
    path = write(tmp_path / "x", records)
    with says(forebay.FormatError, "numbers1", replace={r"offset \d+": "offset N"}):
        forebay.open(path)[501]
    # Who chooses features has seen the others.
    assert forebay.open(path, fields=["numbers0"])[501]["numbers0"] == 501


@pytest.mark.parametrize(
    ("compress", "name"), [(gzip.compress, "gzip"), (zlib.compress, "zlib")], ids=["gzip", "zlib"]
)
def test_compressed_files_are_refused_with_the_way_out(tmp_path, compress, name, says):
    path = tmp_path / "x"
    plain = write(tmp_path / "plain", [example(number).SerializeToString() for number in range(5)])
    path.write_bytes(compress(plain.read_bytes()))
    with says(forebay.FormatError) as caught:
        forebay.open(path, format="tfrecord")
    assert f"{name} (TFRecordOptions" in str(caught.value)
    assert "decompress it" in str(caught.value)
    with says(forebay.FormatError, name):
        forebay.open(path)


@pytest.fixture
def sound(tmp_path):
    """A file of ten records of 100 bytes: each takes 116."""
    return write(tmp_path / "x", [support.record(number, 100) for number in range(10)])


def damaged(path, at, value):
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("at", "value", "values"),
    [
        (116, b"\xff", (116,)),
        (124, b"\0\0\0\0", (116,)),
        (
            116,
            (huge := struct.pack("<Q", 2**63)) + TFRecordWriter.masked_crc(huge),
            (
                116,
                1028,
                9223372036854775808,
            ),
        ),
        (
            116,
            (zero := struct.pack("<Q", 0)) + TFRecordWriter.masked_crc(zero),
            (132,),
        ),
    ],
    ids=["length", "checksum", "hostile", "overlapping"],
)
def test_damage_of_headers_is_named_with_file_and_offset(sound, at, value, values, says):
    damaged(sound, at, value)
    with says(forebay.FormatError, *values):
        len(forebay.open(sound))


@pytest.mark.parametrize("length", [1, 11, 12, 100, 115, 117, 1159])
def test_a_file_that_is_cut_is_refused(sound, length):
    os.truncate(sound, length)
    with pytest.raises(forebay.FormatError):
        len(forebay.open(sound, format="tfrecord"))


def test_damage_of_data_is_found_by_verify_and_where_the_sample_is_read(sound, capsys, says):
    damaged(sound, 3 * 116 + 50, b"\0\0\0")
    dataset = forebay.open(sound)
    assert dataset[2] == support.record(2, 100)
    with says(forebay.FormatError, 460):
        dataset[3]
    assert cli.main(["verify", str(sound)]) == 1
    told = capsys.readouterr()
    assert "checksum of the data of a record at offset 460" in told.out + told.err


@pytest.mark.parametrize("strategy", ["forebay", "mmap", "pread", "io_uring"])
@pytest.mark.parametrize("record_bytes", [100, 700_001], ids=["small", "large"])
@pytest.mark.parametrize("schema", ["raw", "tf-example"])
def test_a_loader_computes_checksums_of_data_on_request(tmp_path, strategy, record_bytes, schema):
    bad = 3
    if schema == "raw":
        records = [support.record(number, record_bytes) for number in range(10)]
    else:
        records = [message_of([[number] * 3], [b"x" * record_bytes]) for number in range(10)]
    path = write(tmp_path / "x", records)
    dataset = forebay.open(path, schema=schema)
    len(dataset)
    # Storage that lost some bytes: the file is as old as it was when its schema was found.
    before = path.stat()
    start = sum(len(record) + 16 for record in records[:bad])
    damaged(path, start + 12 + len(records[bad]) // 2, b"!")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    dataset = forebay.open(path, schema=schema)
    options = {
        "batch_size": 4,
        "order": "shuffle",
        "last_batch": "partial",
        "strategy": strategy,
        "world": "single",
    }

    def delivered(name, **more):
        with forebay.Loader(dataset, name=name, **options, **more) as loader:
            found = [int(number) for batch in loader for number in batch.indices]
            return found, loader.bad_samples()

    found, skipped = delivered("unasked")
    assert (sorted(found), skipped) == (list(range(10)), [])
    offset = rf"\b{start + 12 + len(records[bad])}\b"
    with pytest.raises(forebay.FormatError, match=offset):
        delivered("asked", checksums=True)
    with pytest.warns(RuntimeWarning, match=offset):
        found, skipped = delivered("skipped", checksums=True, bad_samples="skip")
    assert len(found) == 10
    assert set(found) == set(range(10)) - {bad}
    ((number, reason),) = skipped
    assert number == bad
    assert "checksum of the data" in reason


def test_a_loader_tells_what_checksums_it_computes(sound, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((10, 3)))
    for path, computed in ((sound, True), (tmp_path / "x.npy", False)):
        with forebay.Loader(path, batch_size=5, checksums=True, world="single", name=path.stem) as loader:
            assert loader.config.reading.checksums is computed
            assert [one.wanted for one in loader.config.fallbacks] == ([] if computed else ["checksums"])


def test_a_file_that_changed_is_indexed_anew(sound):
    assert len(forebay.open(sound)) == 10
    write(sound, [support.record(number, 50) for number in range(7)])
    dataset = forebay.open(sound)
    assert len(dataset) == 7
    assert dataset[6] == support.record(6, 50)


def test_a_file_without_records_is_no_dataset(tmp_path, says):
    path = write(tmp_path / "x", [])
    with says(forebay.FormatError):
        len(forebay.open(path, format="tfrecord"))


def test_records_are_no_tar_zlib_or_gzip_whatever_their_bytes_look_like(tmp_path):
    # Where tar has its checksum are blanks, and the sum of the bytes as signed ones is negative.
    numbers = bytearray(b"\xc0" * 3000)
    numbers[124 - 12 : 136 - 12] = b" " * 12
    numbers[148 - 12 : 156 - 12] = b" " * 8
    records = {
        "tar": bytes(numbers),
        "ustar": b"." * (257 - 12) + b"ustar\x0000" + bytes(300),
        "zlib": b"x" * 0x178,
        "gzip": b"x" * 0x8_8B1F,
    }
    for name, record in records.items():
        write(tmp_path / name, [record, b"second"])
        dataset = forebay.open(tmp_path / name, schema="raw")
        assert (dataset.format, list(dataset)) == ("tfrecord", [record, b"second"])
    # A raw file of such numbers is nothing that is known.
    (tmp_path / "numbers").write_bytes(bytes(12) + numbers)
    with pytest.raises(forebay.FormatError, match="no format that is read begins with 00 00"):
        forebay.open(tmp_path / "numbers")


TEXTS = {
    "labels.csv": ("name,label\na.jpg,3\n", "pandas.read_csv('{}').to_parquet"),
    "labels.tsv": ("name\tlabel\na.jpg\t3\n", "pandas.read_csv('{}', sep='\\t').to_parquet"),
    "lines.jsonl": ('{"a": 1}\n{"a": 2}\n', "pandas.read_json('{}', lines=True).to_parquet"),
    "list.json": ('[{"a": 1},\n {"a": 2}]\n', "pandas.read_json('{}').to_parquet"),
    "story.txt": ("It was a dark and stormy night.\n", "load_dataset"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_named_with_the_way_to_parquet(tmp_path, name, says):
    text, way = TEXTS[name]
    (tmp_path / name).write_text(text)
    with says(forebay.FormatError, tmp_path / name) as error:
        forebay.open(tmp_path / name)
    assert way.format(tmp_path / name) in str(error.value)
