"""py-lmdb as the oracle: all samples and batches are equal, over generated databases."""

from __future__ import annotations

import itertools
import random
import struct

import lmdb
import numpy as np
import pytest

import forebay
import support

# The LMDB 0.9 and 1.0 engines of py-lmdb; their files differ.
ENGINES = (0, 1)

# Kind → (records, length of one).
KINDS = {
    "one-byte": (1500, lambda rng: 1),
    "nearly-empty": (300, lambda rng: rng.choice([0, 1, 2])),
    "empty": (40, lambda rng: 0),
    "around-the-largest-inline": (250, lambda rng: rng.randrange(2000, 2060)),
    "around-a-page": (250, lambda rng: rng.randrange(4060, 4100)),
    "of-one-length": (300, lambda rng: 3073),
    "mixed": (250, lambda rng: int(rng.lognormvariate(7, 2)) % 1_000_000),
    "up-to-a-mebibyte": (12, lambda rng: rng.randrange(1, 1 << 20)),
    "single": (1, lambda rng: 5000),
}


def generate(path, rng, kind, engine, *, ordered, commit_every, churn, subdir, name):
    """Write a database in this way; return its values in key order, as py-lmdb reads them."""
    count, length = KINDS[kind]
    with lmdb.open(
        str(path), map_size=1 << 30, subdir=subdir, max_dbs=4, sync=False, lib_version=engine
    ) as environment:
        handles = {}
        if name is not None:
            handles["db"] = environment.open_db(name.encode())
            other = environment.open_db(b"other")
            with environment.begin(write=True) as transaction:
                for number in range(rng.randrange(100)):
                    transaction.put(b"o%d" % number, b"x" * rng.randrange(5000), db=other)
        keys = [
            b"%08d" % number + b"y" * (rng.randrange(300) if rng.random() < 0.01 else 0)
            for number in range(count)
        ]
        operations = [(key, rng.randbytes(length(rng))) for key in keys]
        if not ordered:
            rng.shuffle(operations)
        if churn:
            deleted = [(key, None) for key in rng.sample(keys, count // 3)]
            written_over = [(key, rng.randbytes(length(rng))) for key in rng.sample(keys, count // 3)]
            operations += deleted + written_over
        for start in range(0, len(operations), commit_every or len(operations)):
            with environment.begin(write=True) as transaction:
                for key, value in operations[start : start + (commit_every or len(operations))]:
                    if value is None:
                        transaction.delete(key, **handles)
                    else:
                        transaction.put(key, value, **handles)
        with environment.begin() as transaction:
            return [bytes(value) for value in transaction.cursor(**handles).iternext(keys=False)]


def check(path, expected, database=None, batch_size=7, **options):
    """Compare all samples and all batches with what was read before."""
    dataset = forebay.open(path, database=database)
    assert len(dataset) == len(expected)
    assert list(dataset) == expected
    lengths = {len(value) for value in expected}
    # Records that are all empty make no array.
    shape = tuple(lengths) if len(lengths) == 1 and lengths != {0} else None
    assert dataset.fields == {"data": ("uint8", shape)}
    with forebay.Loader(dataset, batch_size, last_batch="partial", node_memory="64MiB", **options) as loader:
        seen = []
        for batch in loader:
            for number, row in zip(batch.indices, batch["data"], strict=True):
                assert row.tobytes() == expected[number], number
                seen.append(int(number))
        assert sorted(seen) == list(range(len(expected)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_and_every_batch_is_what_py_lmdb_reads(tmp_path, kind, engine):
    ways = itertools.product([True, False], [1, 100, None], [False, True])
    for number, (ordered, commit_every, churn) in enumerate(ways):
        rng = random.Random(f"{kind} {engine} {number}")
        subdir = rng.random() < 0.5
        name = rng.choice([None, None, "train", "a/b ü"])
        path = tmp_path / f"{number}.lmdb"
        expected = generate(
            path,
            rng,
            kind,
            engine,
            ordered=ordered,
            commit_every=commit_every,
            churn=churn,
            subdir=subdir,
            name=name,
        )
        strategy = rng.choice(["forebay", "mmap", "pread", "io_uring"])
        order = rng.choice(["sequential", "shuffle", "group"])
        check(path, expected, name, strategy=strategy, order=order)


def test_the_two_engines_write_different_files(tmp_path):
    heads = []
    for engine in ENGINES:
        environment = lmdb.open(str(tmp_path / str(engine)), map_size=1 << 20, lib_version=engine)
        with environment, environment.begin(write=True) as transaction:
            transaction.put(b"a", b"b")
        heads.append((tmp_path / str(engine) / "data.mdb").read_bytes()[:64])
    assert heads[0] != heads[1]


def test_shards_of_all_kinds_are_one_dataset_in_the_order_of_the_list(tmp_path):
    expected = []
    paths = []
    for number, (kind, engine) in enumerate(itertools.product(["mixed", "of-one-length", "single"], ENGINES)):
        rng = random.Random(number)
        path = tmp_path / f"{number}.lmdb"
        expected += generate(
            path,
            rng,
            kind,
            engine,
            ordered=True,
            commit_every=None,
            churn=True,
            subdir=number % 2 == 0,
            name=None,
        )
        paths.append(path)
    for strategy in ("forebay", "pread", "io_uring", "mmap"):
        check(paths, expected, batch_size=32, order="shuffle", strategy=strategy)


def test_a_compacted_copy_holds_the_same(tmp_path):
    rng = random.Random(0)
    way = {"ordered": False, "commit_every": 100, "churn": True, "subdir": True, "name": None}
    expected = generate(tmp_path / "x.lmdb", rng, "mixed", 0, **way)
    (tmp_path / "copy.lmdb").mkdir()
    with lmdb.open(str(tmp_path / "x.lmdb"), readonly=True) as environment:
        environment.copy(str(tmp_path / "copy.lmdb"), compact=True)
    check(tmp_path / "copy.lmdb", expected)


# --- Caffe Datum ---


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def datum(shape, label, *, data=None, floats=None, packed=False, encoded=None):
    """Return a Datum in wire format: uint8 data, float_data (packed or not), or an image."""
    out = b"".join(bytes([tag]) + varint(size) for tag, size in zip((0x08, 0x10, 0x18), shape, strict=True))
    if data is not None:
        out += b"\x22" + varint(len(data)) + data
    if encoded is not None:
        out += b"\x22" + varint(len(encoded)) + encoded
    out += b"\x28" + varint(label & (1 << 64) - 1)
    if floats is not None and packed:
        out += b"\x32" + varint(4 * len(floats)) + struct.pack(f"<{len(floats)}f", *floats)
    elif floats is not None:
        out += b"".join(b"\x35" + struct.pack("<f", value) for value in floats)
    if encoded is not None:
        out += b"\x38\x01"
    return out


def images(kind, rng):
    """Values of a dataset of Datum records and the images and labels that they hold."""
    values, expected = [], []
    for number in range(60):
        label = rng.choice([number, 0, 2**31 - 1, -1])
        shape = (3, 5, 7)
        if kind == "uint8":
            image = np.frombuffer(rng.randbytes(105), np.uint8).reshape(shape)
            values.append(datum(shape, label, data=image.tobytes()))
        elif kind.startswith("float"):
            image = np.array([rng.uniform(-9, 9) for _ in range(105)], np.float32).reshape(shape)
            values.append(datum(shape, label, floats=image.ravel().tolist(), packed=kind == "float-packed"))
        else:
            image = np.frombuffer(b"\xff\xd8" + rng.randbytes(rng.randrange(3000)), np.uint8)
            values.append(datum(shape, label, encoded=image.tobytes()))
        expected.append((image, label))
    return values, expected


@pytest.mark.parametrize("kind", ["uint8", "float", "float-packed", "encoded"])
@pytest.mark.parametrize("strategy", ["forebay", "pread"])
def test_datum_records_are_decoded_as_they_were_written(tmp_path, kind, strategy):
    values, expected = images(kind, random.Random(kind))
    path = support.write_lmdb(tmp_path / "x.lmdb", values)
    for schema in ("auto", "caffe-datum"):
        dataset = forebay.open(path, schema=schema)
        dtype = "float32" if kind.startswith("float") else "uint8"
        shape = None if kind == "encoded" else (3, 5, 7)
        assert dataset.fields == {"image": (dtype, shape), "label": ("int64", ())}
        for number, (image, label) in enumerate(expected):
            sample = dataset[number]
            assert np.array_equal(sample["image"], image)
            assert sample["image"].dtype == image.dtype
            assert int(sample["label"]) == label
        with forebay.Loader(
            dataset, 7, order="shuffle", node_memory="16MiB", strategy=strategy, last_batch="partial"
        ) as loader:
            seen = []
            for batch in loader:
                for number, image, label in zip(batch.indices, batch["image"], batch["label"], strict=True):
                    assert np.array_equal(image, expected[number][0])
                    assert image.dtype == expected[number][0].dtype
                    assert label == expected[number][1]
                    seen.append(int(number))
            assert sorted(seen) == list(range(60))
    raw = forebay.open(path, schema="raw")
    assert list(raw) == values
