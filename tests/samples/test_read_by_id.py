"""`Dataset.read(ids)`: the samples of `dataset[i]` read together, in any process."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.formats.test_folder import make as make_folder
from tests.formats.test_tfrecord import example
from tests.formats.test_tfrecord import write as write_tfrecord

import forebay
import support
from forebay_lab import pfs
from support import emulator, format_files, read_workers
from support.emulator import needs_fuse

GOLDEN = support.TESTS / "formats/golden" / "recordio"


def write_hdf5(directory):
    """Chunks of several rows, coded and not, cut along the rows, never written, and no chunks."""
    draw = np.random.default_rng(5)
    values = draw.integers(0, 9, (130, 40), dtype="<i4")
    with h5py.File(directory / "x.h5", "w") as file:
        file.create_dataset("zipped", data=values, chunks=(16, 40), compression="gzip", shuffle=True)
        file.create_dataset("cut", data=values, chunks=(7, 12), compression="lzf", fletcher32=True)
        file.create_dataset("stored", data=values, chunks=(9, 40))
        file.create_dataset("plain", data=values[:, 0])
        file.create_dataset("sparse", (130, 3), "f4", chunks=(10, 3), fillvalue=2.5, compression="gzip")
        file["sparse"][40:50] = 1.0
    return forebay.open(directory / "x.h5")


def write_npz(directory):
    """Two shards of two fields each."""
    for name in ("a", "b"):
        draw = np.random.default_rng(ord(name))
        np.savez(directory / f"{name}.npz", image=draw.random((90, 30, 25)), label=np.arange(90))
    return forebay.open([directory / "a.npz", directory / "b.npz"])


def of_format(kind):
    return lambda directory: format_files.opened(format_files.write(directory / "f", kind, 7), kind)


def lmdb_of(values):
    return lambda directory: forebay.open(support.write_lmdb(directory / "x.lmdb", values))


# Of every format; records of one length and of many, small and large, decoded by each schema.
DATASETS = {
    **{kind: of_format(kind) for kind in format_files.FORMATS},
    "lmdb-ragged": lmdb_of([support.record(number, number * 97 % 9000) for number in range(150)]),
    "lmdb-large": lmdb_of([support.record(number, 40_000 + number) for number in range(40)]),
    "lmdb-datum": lmdb_of([support.datum(number) for number in range(64)]),
    "hdf5-chunks": write_hdf5,
    "npz-shards": write_npz,
    "recordio-parts": lambda directory: forebay.open(GOLDEN / "plain.rec"),
    "recordio-images": lambda directory: forebay.open(GOLDEN / "varying.rec"),
    "recordio-five": lambda directory: forebay.open(GOLDEN / "five.rec"),
    "tfrecord-examples": lambda directory: forebay.open(
        write_tfrecord(
            directory / "x.tfrecord", [example(number).SerializeToString() for number in range(80)]
        )
    ),
    "folder": lambda directory: forebay.open(make_folder(directory / "train", count=50)),
}


def assert_equal(found, expected):
    """Compare two samples: bytes, or fields of arrays or bytes."""
    assert type(found) is type(expected)
    if isinstance(expected, bytes):
        assert found == expected
        return
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert type(found[name]) is type(value)
        if isinstance(value, bytes):
            assert found[name] == value
        else:
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            np.testing.assert_array_equal(found[name], value)


def field_of(sample, name):
    """The value of a field as a loader has it."""
    value = sample if isinstance(sample, bytes) else sample[name]
    return np.frombuffer(value, "uint8") if isinstance(value, bytes) else value


@pytest.mark.parametrize("kind", list(DATASETS))
def test_any_ids_are_the_samples_that_stand_there(tmp_path, kind):
    dataset = DATASETS[kind](tmp_path)
    samples = len(dataset)
    alone = [dataset[number] for number in range(samples)]
    draw = random.Random(kind)
    for round_ in range(12):
        count = draw.choice([0, 1, 2, 30, 2 * samples])
        ids = [draw.randrange(-samples, samples) for _ in range(count)]
        if round_ == 0:
            ids = list(range(samples))
        expected = [alone[number] for number in ids]
        threads = draw.choice([None, 1, 2, 5])
        together = dataset.__getitems__(ids)
        assert len(together) == len(ids)
        for found, sample in zip(together, expected, strict=True):
            assert_equal(found, sample)
        batch = dataset.read(ids, threads=threads)
        ragged = dataset.read(np.array(ids, "int32"), threads=threads, ragged=True)
        assert isinstance(batch, forebay.Batch)
        assert batch.position is None
        assert batch.indices.dtype == np.int64
        assert batch.indices.tolist() == [number % samples for number in ids]
        assert list(batch) == list(dataset.fields) == list(ragged)
        for name, (dtype, shape) in dataset.fields.items():
            values = [field_of(sample, name) for sample in expected]
            if shape is not None:
                for found in (batch[name], ragged[name]):
                    assert (found.dtype, found.shape) == (np.dtype(dtype), (len(ids), *shape))
                    assert found.flags.writeable
                    assert found.flags.owndata
                    np.testing.assert_array_equal(found, np.array(values, dtype).reshape(found.shape))
                continue
            assert isinstance(batch[name], list)
            assert isinstance(ragged[name], forebay.Ragged)
            joined, offsets = ragged[name]
            assert joined.dtype == np.dtype(dtype)
            assert offsets.dtype == np.int64
            assert len(offsets) == len(ids) + 1
            assert offsets[0] == 0
            assert offsets[-1] == len(joined)
            for place, (found, value) in enumerate(zip(batch[name], values, strict=True)):
                assert found.dtype == np.dtype(dtype)
                assert found.flags.writeable
                np.testing.assert_array_equal(found, value)
                np.testing.assert_array_equal(joined[offsets[place] : offsets[place + 1]], value)


def test_a_batch_equals_that_of_a_loader(tmp_path):
    dataset = DATASETS["tfrecord-examples"](tmp_path)
    with forebay.Loader(dataset, 16, order="shuffle", node_memory="16MiB", world="single") as loader:
        for delivered in loader:
            batch = dataset.read(delivered.indices)
            assert list(batch) == list(delivered)
            for name, values in delivered.items():
                for found, value in zip(batch[name], values, strict=True):
                    np.testing.assert_array_equal(found, value)


def test_samples_of_a_repeated_id_are_objects_of_their_own(tmp_path):
    dataset = DATASETS["lmdb-datum"](tmp_path)
    first, second = dataset.__getitems__([3, 3])
    first["image"][:] = 0
    assert second["image"].tobytes() == support.record(3, 192)
    batch = dataset.read([3, 3])
    batch["image"][0] = 0
    assert batch["image"][1].tobytes() == support.record(3, 192)


def test_a_slice_reads_its_samples_together(small_lmdb, small_records):
    dataset = forebay.open(small_lmdb)
    assert dataset[5:70:3] == small_records[5:70:3]
    assert dataset[::-1] == small_records[::-1]
    assert dataset[200:] == []


@pytest.mark.parametrize("kind", ["lmdb-ragged", "hdf5-chunks", "folder"])
def test_ids_of_a_selection_are_places_in_it(tmp_path, kind):
    dataset = DATASETS[kind](tmp_path)
    chosen = random.Random(1).sample(range(len(dataset)), 30)
    selection = dataset.select(chosen)
    ids = [0, 29, -1, 7, 7]
    assert selection.read(ids).indices.tolist() == [0, 29, 29, 7, 7]
    for found, place in zip(selection.__getitems__(ids), ids, strict=True):
        assert_equal(found, dataset[chosen[place]])
    with pytest.raises(IndexError, match="30"):
        selection.read([30])


def counted(call):
    """Return bytes and calls of reads of this process during a call."""

    def now():
        lines = Path("/proc/self/io").read_text().splitlines()
        return np.array([int(lines[0].split()[1]), int(lines[2].split()[1])])

    before = now()
    own = now() - before
    before = now()
    call()
    return (now() - before - own).tolist()


@pytest.mark.parametrize("threads", [1, 3])
def test_neighbours_are_one_read_and_a_byte_is_read_once(tmp_path, threads):
    np.save(tmp_path / "x.npy", np.zeros((5000, 300), "uint8"))
    dataset = forebay.open(tmp_path / "x.npy")
    dataset.read([0])
    # Together, apart by more than the gap, and again.
    assert counted(lambda: dataset.read(range(100), threads=threads)) == [30_000, 1]
    assert counted(lambda: dataset.read([0, 1000, 2000] * 50, threads=threads)) == [900, 3]
    assert counted(lambda: dataset.__getitems__([4000, 2000, 4000, -1000])) == [600, 2]


def test_a_chunk_is_read_and_decoded_once_for_all_its_samples(tmp_path):
    values = np.random.default_rng(2).integers(0, 1 << 30, (4096, 64), dtype="<i4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(1024, 64), compression="gzip")
        stored = [file["x"].id.get_chunk_info(number).size for number in range(4)]
    dataset = forebay.open(tmp_path / "x.h5")
    dataset.read([4095])
    ids = np.random.default_rng(3).permutation(2048)
    assert counted(lambda: dataset.read(ids, threads=2)) == [sum(stored[:2]), 1]
    # Both are kept.
    assert counted(lambda: dataset.read(ids, threads=2)) == [0, 0]
    np.testing.assert_array_equal(dataset.read(ids)["x"], values[ids])


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", ["shards", "folder"])
def test_workers_keep_files_open_and_load_the_index(tmp_path, kind, method):
    if kind == "folder":
        dataset = forebay.open(make_folder(tmp_path / "data", count=80))
    else:
        (tmp_path / "data").mkdir()
        for shard in range(3):
            np.save(tmp_path / "data" / f"{shard}.npy", np.full((100, 50), shard))
        dataset = forebay.open(f"{tmp_path}/data/*.npy", sample_axis=0)
    samples = len(dataset)
    dataset.read([0, 1])
    cache = Path(os.environ["FOREBAY_CACHE_DIR"])
    sidecars = {path: path.stat() for path in cache.rglob("*") if path.is_file()}
    assert sidecars
    context = multiprocessing.get_context(method)
    jobs = [
        (random.Random(number).choices(range(samples), k=40), str(tmp_path / "data")) for number in range(8)
    ]
    with context.Pool(2, read_workers.hold, (dataset,)) as workers:
        answers = workers.map(read_workers.read, jobs, 1)
    for (ids, _), (pid, found, once, later) in zip(jobs, answers, strict=True):
        assert pid != os.getpid()
        if kind == "shards":
            # A dataset and its reads by id share descriptors.
            assert once == later
            assert len(once) == 3
        else:
            assert 10 < len(once) <= len(later) <= 130
        for one, number in zip(found, ids, strict=True):
            assert_equal(one, dataset[number])
    after = {path: path.stat() for path in cache.rglob("*") if path.is_file()}
    assert {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in after.items()} == {
        path: (stat.st_ino, stat.st_mtime_ns) for path, stat in sidecars.items()
    }


def test_files_are_closed_with_the_dataset(tmp_path):
    dataset = forebay.open(make_folder(tmp_path / "data", count=80))
    dataset.read(range(len(dataset)))
    assert len(read_workers.descriptors_below(str(tmp_path / "data"))) > 100
    del dataset
    assert read_workers.descriptors_below(str(tmp_path / "data")) == []


@pytest.mark.parametrize(
    ("ids", "values"),
    [
        ([True, False], ("bool", "flatnonzero")),
        ([0.5], ("float64",)),
        ([[1, 2]], (2,)),
        (np.int64(3), ("int64",)),
        (3, ("int",)),
        ("12", ("str",)),
        ({1: 2}, ("dict",)),
        (iter([1]), ("list_iterator",)),
        ({1, 2}, ()),
        ([None], ("object",)),
    ],
)
def test_what_are_no_ids_is_refused(small_lmdb, ids, values, says):
    dataset = forebay.open(small_lmdb)
    with says(forebay.OptionError, *values):
        dataset.read(ids)
    with pytest.raises(TypeError):
        dataset.__getitems__(ids)


@pytest.mark.parametrize("wrong", [100, -101, 1 << 40])
def test_an_id_that_does_not_exist_is_named(small_lmdb, wrong):
    dataset = forebay.open(small_lmdb)
    for read in (dataset.read, dataset.__getitems__):
        with pytest.raises(IndexError, match=rf"sample {wrong} of a dataset of 100 samples"):
            read([0, wrong, 1])
    for wrong in ([1 << 70], np.array([1 << 63], "uint64")):
        with pytest.raises(IndexError, match=str(wrong[0])):
            dataset.read(wrong)


@pytest.mark.parametrize("threads", [0, -1, True])
def test_threads_are_at_least_one(small_lmdb, threads, says):
    with says(forebay.OptionError, "threads=", threads):
        forebay.open(small_lmdb).read([0], threads=threads)


def test_a_truncated_file_is_an_error_that_names_file_and_offset(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(400_000).reshape(400, 1000))
    dataset = forebay.open(tmp_path / "x.npy")
    dataset.read([0])
    os.truncate(tmp_path / "x.npy", 1_000_000)
    for read in (dataset.read, dataset.__getitems__):
        with pytest.raises(forebay.StorageError, match=r"x\.npy.*\b\d{7}\b") as caught:
            read([5, 300, 399])
        assert caught.value.filename == str(tmp_path / "x.npy")


def test_a_wrong_checksum_is_an_error_and_other_samples_are_read(tmp_path):
    records = [support.record(number, 20_000 * (number % 2) + 100) for number in range(10)]
    path = write_tfrecord(tmp_path / "x.tfrecord", records)
    dataset = forebay.open(path)
    assert dataset[:] == records
    for number in (3, 6):
        ((_, offset, length),) = dataset.extents(number)
        content = bytearray(path.read_bytes())
        content[offset + length - 50] ^= 1
        stat = path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        for read in (dataset.read, dataset.__getitems__):
            with pytest.raises(forebay.FormatError, match=r"x\.tfrecord: .*checksum"):
                read([1, number, 9])
    assert dataset.__getitems__([1, 2, 9]) == [records[1], records[2], records[9]]


def test_a_replaced_file_is_an_error_and_a_removed_one_is_still_read(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((50, 10)))
    np.save(tmp_path / "other.npy", np.ones((50, 11)))
    dataset = forebay.open(tmp_path / "x.npy")
    assert len(dataset) == 50
    # Removed: the open file is read.
    os.rename(tmp_path / "x.npy", tmp_path / "aside.npy")  # noqa: PTH104
    assert dataset.read([7])["data"].tolist() == [[0.0] * 10]
    os.rename(tmp_path / "other.npy", tmp_path / "x.npy")  # noqa: PTH104
    again = forebay.open(tmp_path / "aside.npy")
    again.read([1])
    os.replace(tmp_path / "x.npy", tmp_path / "aside.npy")  # noqa: PTH105

    refused = []

    def is_refused():
        try:
            again.read([7])
        except forebay.StorageError as error:
            refused.append(str(error))
        return refused

    # It is compared once a second.
    support.wait_until(is_refused, "the replaced file is noticed")
    assert "another file took its place" in refused[0]


@needs_fuse
def test_ctrl_c_ends_reads_of_slow_storage(tmp_path, points):
    (tmp_path / "backing").mkdir()
    np.save(tmp_path / "backing" / "x.npy", np.zeros((4000, 20_000), "uint8"))
    spec = emulator.write_spec(tmp_path / "spec.toml", latency_us=100_000.0)
    pfs.Server.start(tmp_path / "backing", points, spec=spec)
    dataset = forebay.open(points[0] / "x.npy")
    assert dataset.read([3999])["data"].sum() == 0

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            # 400 s if it went on.
            dataset.read(range(4000), threads=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert dataset.read([17, 3])["data"].sum() == 0
