"""Conversion: the format's own library reads the result, equal; misfits are refused before."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import h5py
import lmdb
import numpy as np
import pytest

import forebay
from forebay import FormatError, OptionError, StorageError, _native
from forebay.tools.convert import TARGETS, convert, to_recordio
from forebay.tools.convert.columns import Column
from forebay.tools.convert.source import NumpySource, open_source
from support import ROOT, cluster, datum, record, write_lmdb
from support import run_command as run
from support.recordio_records import plain_records

SAMPLES = 37


def source_of(path, fields=(), **options):
    return open_source(
        lambda: forebay.open(path, fields=list(fields) or None, **options), [str(path)], list(fields)
    )


def equal(one, other):
    """Whether two samples are the same: bytes, or fields of the same types, shapes and values."""
    if isinstance(one, bytes) or isinstance(other, bytes):
        return one == other
    return one.keys() == other.keys() and all(
        np.asarray(one[name]).dtype == np.asarray(other[name]).dtype
        and np.array_equal(np.asarray(one[name]), np.asarray(other[name]))
        for name in one
    )


@pytest.fixture
def records(tmp_path):
    """Values of varying length in LMDB."""
    values = [record(number, 1 + number * 37 % 301) for number in range(SAMPLES)]
    return write_lmdb(tmp_path / "records.lmdb", values), values


@pytest.fixture
def table(tmp_path):
    """Arrays of several types in an npz archive."""
    generator = np.random.default_rng(1)
    arrays = {
        "x": generator.random((SAMPLES, 3, 2), np.float32),
        "y": generator.integers(-9, 9, SAMPLES),
        "big": generator.integers(0, 99, (SAMPLES, 2)).astype(">i4"),
    }
    np.savez(tmp_path / "table.npz", **arrays)
    return tmp_path / "table.npz", arrays


def test_lmdb_records_become_records_of_every_format_that_has_some(tmp_path, records):
    path, values = records
    tfrecord = pytest.importorskip("tfrecord")
    done = convert(source_of(path), tmp_path / "a.tfrecord")
    assert (done.format, done.samples, done.notes) == ("tfrecord", SAMPLES, [])
    found = [bytes(value) for value in tfrecord.reader.tfrecord_iterator(str(tmp_path / "a.tfrecord"))]
    assert found == values
    convert(source_of(path), tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert [archive.extractfile(member).read() for member in archive] == values
        assert archive.getnames()[1] == "00000001.data"
    convert(source_of(path), tmp_path / "b.lmdb")
    with (
        lmdb.open(str(tmp_path / "b.lmdb"), readonly=True, lock=False) as environment,
        environment.begin() as reader,
    ):
        assert list(reader.cursor().iternext(keys=True)) == [
            (b"%08d" % number, value) for number, value in enumerate(values)
        ]


def test_groups_of_hdf5_become_samples_by_number(tmp_path):
    for part in range(2):
        with h5py.File(tmp_path / f"{part}.h5", "w") as file:
            for number in (10, 9, 100):
                file[f"sample_{number}/image"] = np.full((2, 3), number + part, "u1")
                file[f"sample_{number}/label"] = number + part
                file[f"sample_{number}/name"] = f"é{number}"
                file[f"sample_{number}/points"] = np.arange(number, dtype="f4")
    done = convert(source_of(tmp_path / "*.h5"), tmp_path / "a.parquet")
    assert (done.samples, done.left_out) == (6, ())
    for sample, number in zip(forebay.open(tmp_path / "a.parquet"), [9, 10, 100, 10, 11, 101], strict=True):
        assert np.array_equal(sample["image"], np.full((2, 3), number, "u1"))
        assert sample["label"] == number
        assert sample["name"].tobytes().decode() in (f"é{number}", f"é{number - 1}")
        assert np.array_equal(sample["points"], np.arange(len(sample["points"]), dtype="f4"))
    convert(source_of(tmp_path / "0.h5", fields=["label"]), tmp_path / "a.npy")
    assert np.load(tmp_path / "a.npy").tolist() == [9, 10, 100]
    with pytest.raises(forebay.FormatError, match="no dataset 'nothing'"):
        source_of(tmp_path / "0.h5", fields=["nothing"])
    with h5py.File(tmp_path / "0.h5", "a") as file:
        file["mean"] = 1
    with pytest.raises(forebay.FormatError, match="outside its groups, 'mean'"):
        source_of(tmp_path / "0.h5")
    with h5py.File(tmp_path / "1.h5", "a") as file:
        file["sample_200/image"], file["sample_200/label"] = np.zeros((2, 2)), 1
    with pytest.raises(forebay.FormatError, match="'image': expected arrays of one type and shape"):
        source_of(tmp_path / "1.h5", fields=["image"])


def test_hdf5_elements_of_variable_length_are_written_as_h5py_reads_them(tmp_path):
    path = tmp_path / "a.h5"
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name, kind in (("image", "u1"), ("points", ">f4")):
            one = file.create_dataset(name, (300,), h5py.vlen_dtype(np.dtype(kind)), chunks=(7,))
            for number in random.permutation(300)[:290]:
                one[number] = random.integers(0, 99, int(random.integers(0, 50)))
        file["text"] = [f"é{number}" * (number % 5) for number in range(300)]
        file.create_dataset("packed", data=np.arange(300), chunks=(9,), compression="gzip")
    with h5py.File(path) as file:
        wanted = {name: file[name][()] for name in file}
    convert(source_of(path, fields=["image", "text", "packed"]), tmp_path / "a.parquet")
    found = forebay.open(tmp_path / "a.parquet")
    assert len(found) == 300
    for number, sample in enumerate(found):
        assert np.array_equal(sample["image"], wanted["image"][number])
        assert sample["text"].tobytes() == wanted["text"][number]
        assert sample["packed"] == number
    convert(source_of(path, fields=["points"]), tmp_path / "a.tar")
    for sample, row in zip(forebay.open(tmp_path / "a.tar"), wanted["points"], strict=True):
        assert np.array_equal(np.load(io.BytesIO(sample["points.npy"].tobytes())), row)
    with h5py.File(path, "a") as file:
        file.create_dataset("places", (300,), h5py.ref_dtype)
    with pytest.raises(forebay.FormatError, match="'places': expected arrays of one type"):
        source_of(path)


def test_an_environment_grows_with_what_is_put_into_it(tmp_path, monkeypatch, records):
    path, values = records
    monkeypatch.setattr("forebay.tools.convert.to_lmdb.FIRST_MAP_BYTES", 8192)
    convert(source_of(path), tmp_path / "b.lmdb")
    assert list(forebay.open(tmp_path / "b.lmdb")) == values


def test_images_stay_what_they_are_in_lmdb_and_become_arrays_elsewhere(tmp_path):
    write_lmdb(tmp_path / "a", [datum(number) for number in range(SAMPLES)])
    dataset = forebay.open(tmp_path / "a")
    convert(source_of(tmp_path / "a"), tmp_path / "b.lmdb")
    again = forebay.open(tmp_path / "b.lmdb")
    assert again.fields == dataset.fields
    assert all(map(equal, dataset, again))
    assert list(forebay.open(tmp_path / "a", schema="raw")) == list(
        forebay.open(tmp_path / "b.lmdb", schema="raw")
    )
    convert(source_of(tmp_path / "a"), tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["image"].shape == (SAMPLES, 3, 8, 8)
        assert all(
            np.array_equal(file["image"][number], dataset[number]["image"]) for number in range(SAMPLES)
        )
        assert list(file["label"]) == list(range(SAMPLES))


def test_records_of_equal_length_are_an_array_of_bytes(tmp_path):
    values = [record(number, 12) for number in range(SAMPLES)]
    write_lmdb(tmp_path / "a", values)
    convert(source_of(tmp_path / "a"), tmp_path / "a.npy")
    array = np.load(tmp_path / "a.npy")
    assert (array.dtype, array.shape) == (np.uint8, (SAMPLES, 12))
    assert [row.tobytes() for row in array] == values
    done = convert(source_of(tmp_path / "a"), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == b"".join(values)
    assert done.notes == [
        'the file does not say what it holds: open it with format="raw", '
        "fields={'data': ('|u1', (12,))} (12 bytes per record)"
    ]


@pytest.mark.parametrize("target", ["a.npy", "a.npz", "a.bin"])
def test_records_of_different_lengths_are_no_array(tmp_path, records, target, says):
    with says(OptionError, "data"):
        convert(source_of(records[0]), tmp_path / target)
    assert not list(tmp_path.glob("*a.*"))


def test_what_numpy_has_to_read_is_rewritten_in_place_order(tmp_path):
    array = np.asfortranarray(np.random.default_rng(2).random((SAMPLES, 5, 3)))
    np.save(tmp_path / "fortran.npy", array)
    with pytest.raises(FormatError):
        len(forebay.open(tmp_path / "fortran.npy"))
    source = source_of(tmp_path / "fortran.npy")
    assert isinstance(source, NumpySource)
    convert(source, tmp_path / "c.npy")
    found = np.load(tmp_path / "c.npy")
    assert np.array_equal(found, array)
    assert found.flags.c_contiguous
    np.savez_compressed(tmp_path / "deflated.npz", x=array, y=np.arange(SAMPLES), other=np.arange(3))
    convert(source_of(tmp_path / "deflated.npz", ["x", "y"]), tmp_path / "stored.npz")
    with np.load(tmp_path / "stored.npz") as archive:
        assert archive.files == ["x", "y"]
        assert np.array_equal(archive["x"], array)
        assert np.array_equal(archive["y"], np.arange(SAMPLES))
    np.save(tmp_path / "objects.npy", np.array([{}, {}]))
    with pytest.raises(FormatError):
        source_of(tmp_path / "objects.npy")


def test_recordio_is_framed_as_mxnet_does_it():
    framed = b"".join(part for value in plain_records() for part in to_recordio.frame(value))
    assert framed == (ROOT / "tests/formats/golden/recordio/plain.rec").read_bytes()


def test_nothing_is_overwritten_unless_it_is_asked_for(tmp_path, records, says):
    path, values = records
    (tmp_path / "a.tfrecord").write_bytes(b"precious")
    with says(OptionError, "--force"):
        convert(source_of(path), tmp_path / "a.tfrecord")
    assert (tmp_path / "a.tfrecord").read_bytes() == b"precious"
    convert(source_of(path), tmp_path / "a.tfrecord", force=True)
    assert (tmp_path / "a.tfrecord").stat().st_size > sum(map(len, values))
    write_lmdb(tmp_path / "old.lmdb", [b"old"])
    convert(source_of(path), tmp_path / "old.lmdb", force=True)
    assert list(forebay.open(tmp_path / "old.lmdb")) == values
    (tmp_path / "home.lmdb").mkdir()
    (tmp_path / "home.lmdb" / "letter.txt").write_text("dear")
    with says(OptionError, "letter.txt", "LMDB"):
        convert(source_of(path), tmp_path / "home.lmdb", force=True)
    assert (tmp_path / "home.lmdb" / "letter.txt").read_text() == "dear"
    os.mkfifo(tmp_path / "pipe.npy")
    with says(OptionError, "pipe.npy"):
        convert(source_of(path), tmp_path / "pipe.npy", force=True)
    (tmp_path / "link.tar").symlink_to("a.tfrecord")
    with says(OptionError, "link.tar"):
        convert(source_of(path), tmp_path / "link.tar", force=True)


@cluster.needs_nodes
@pytest.mark.parametrize("target", ["a.lmdb", "a.npy", "a.npz", "a.h5", "a.tfrecord", "a.tar", "a.bin"])
def test_a_disk_without_room_is_an_error_and_nothing_is_left(tmp_path, target):
    np.save(tmp_path / "values.npy", np.arange(400_000, dtype=np.uint8).reshape(-1, 100))
    (tmp_path / "small").mkdir()
    code = """
import sys
import forebay.cli
status = forebay.cli.main(["convert", "values.npy", "small/" + sys.argv[1]])
import os
sys.exit("left" if os.listdir("small") else status)
"""
    script = f'mount -t tmpfs -o size=64k none small && exec {sys.executable} -c "$0" {target}'
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            *([] if os.geteuid() == 0 else ["--map-root-user"]),
            "bash",
            "-c",
            script,
            code,
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.startswith(f"forebay: small/{target}: cannot be written: "), done.stderr


def test_fields_whose_lengths_happen_to_be_equal_become_arrays(tmp_path, says):
    names = [f"{number:02}" for number in range(20)]
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, name in enumerate(names):
            for ending, length in (("img", 320), ("cap", 5 + (number == 19))):
                member = tarfile.TarInfo(f"{name}.{ending}")
                member.size = length
                archive.addfile(member, io.BytesIO(bytes([number]) * length))
    convert(source_of(tmp_path / "a.tar", ["img"]), tmp_path / "a.npz")
    found = np.load(tmp_path / "a.npz")["img"]
    assert found.shape == (20, 320)
    assert (found == np.arange(20, dtype=np.uint8)[:, None]).all()
    with says(OptionError, "cap"):
        convert(source_of(tmp_path / "a.tar"), tmp_path / "b.npz")
    with tarfile.open(tmp_path / "empty.tar", "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"{name}.cap"))
            archive.addfile(tarfile.TarInfo(f"{name}.img"))
    with says(OptionError, "cap"):
        convert(source_of(tmp_path / "empty.tar", ["cap"]), tmp_path / "c.npz")


def test_a_conversion_that_fails_leaves_nothing(tmp_path, records, says):
    path, _ = records

    class Failing:
        def __init__(self, source):
            self.columns, self.samples, self.source = source.columns, source.samples, source
            self.left_out = ()

        def batches(self):
            yield from self.source.batches()
            raise StorageError("the end of the world")

    before = sorted(entry.name for entry in tmp_path.iterdir())
    for name in TARGETS:
        if name not in {"npy", "npz", "hdf5", "raw"}:
            with pytest.raises(StorageError, match="the end of the world"):
                convert(Failing(source_of(path)), tmp_path / "a", to=name)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before
    with says(StorageError):
        convert(source_of(path), tmp_path / "nowhere" / "a.tar")


def test_a_target_says_what_it_cannot_hold(tmp_path, table, records, says):
    _, arrays = table
    source = NumpySource(arrays)
    for target, values in [
        ("a.npy", ("npy", 3, "x: float32")),
        ("a.lmdb", ("lmdb", "x: float32")),
        ("a.rec", ("recordio", "x: float32")),
        ("a.folder", ("folder", "x: float32")),
        ("a.what", ("a.what", "--to")),
    ]:
        with says(OptionError, *values):
            convert(source, tmp_path / target, to="folder" if target == "a.folder" else None)
    with says(OptionError, "what"):
        convert(source, tmp_path / "a.npz", to="what")
    doubles = NumpySource({"x": np.zeros(3)})
    with says(OptionError, "x"):
        convert(doubles, tmp_path / "a.tfrecord")
    # The end is h5py's own.
    with says(OptionError, "x", replace={r"'x': .*": "'x': ..."}):
        convert(NumpySource({"x": np.array(["abc", "d"])}), tmp_path / "a.h5")
    with says(OptionError, "X"):
        convert(NumpySource({"X": np.zeros(3)}), tmp_path / "a.tar")
    images = NumpySource({"image": np.zeros((2, 1, 1, 1), np.uint8), "label": np.array([0, -1])})
    with says(OptionError, 1, 0, 2, -1):
        convert(images, tmp_path / "a.lmdb")


def test_what_is_not_kept_is_told(tmp_path):
    tfrecord = pytest.importorskip("tfrecord")
    arrays = {
        "x": np.arange(24, dtype=np.float32).reshape(4, 2, 3),
        "y": np.arange(4, dtype=np.int16),
        "pixels": np.arange(16, dtype=np.uint8).reshape(4, 4),
    }
    done = convert(NumpySource(arrays), tmp_path / "a.tfrecord")
    assert done.notes == ["'x': the shape (2, 3) is not kept", "'y': int16 becomes int64"]
    found = list(tfrecord.tfrecord_loader(str(tmp_path / "a.tfrecord"), None))
    for number, sample in enumerate(found):
        assert np.array_equal(sample["x"], arrays["x"][number].ravel())
        assert sample["y"] == number
        assert bytes(sample["pixels"]) == arrays["pixels"][number].tobytes()
    done = convert(NumpySource(arrays), tmp_path / "a.tar")
    assert done.notes == ["'x' becomes npy files", "'y' becomes npy files"]
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getnames()[:3] == ["00000000.x.npy", "00000000.y.npy", "00000000.pixels"]
        assert np.array_equal(
            np.load(io.BytesIO(archive.extractfile("00000002.x.npy").read())), arrays["x"][2]
        )


def test_a_folder_has_a_file_for_each_sample_in_the_directory_of_its_class(tmp_path, says):
    labels = [2, 0, 4, 2, 0]
    values = [b"\xff\xd8\xff" + b"x" * 9, b"\x89PNG\r\n\x1a\n", b"", b"RIFF....WAVEfmt ", b"text"]
    endings = [".jpg", ".png", ".bin", ".wav", ".bin"]

    class Labelled:
        columns = (Column("jpg", np.dtype(np.uint8), None), Column("label", np.dtype(np.int64), ()))
        samples = len(values)
        left_out = ()

        def batches(self):
            for part in (slice(0, 3), slice(3, 5)):
                rows = [np.frombuffer(value, np.uint8) for value in values[part]]
                yield {"jpg": rows, "label": np.array(labels[part])}

    done = convert(Labelled(), tmp_path / "classes", to="folder")
    assert (done.format, done.samples, done.file_bytes) == ("folder", 5, sum(map(len, values)))
    assert done.notes == [
        "the name of the field 'jpg' is not kept",
        "the samples are in the order of their labels",
    ]
    expected = sorted(
        (f"{label:05d}/{number:08d}{ending}", value, label)
        for number, (label, value, ending) in enumerate(zip(labels, values, endings, strict=True))
    )
    root = tmp_path / "classes"
    files = sorted(path for path in root.rglob("*") if path.is_file())
    assert [(str(path.relative_to(root)), path.read_bytes()) for path in files] == [
        (name, value) for name, value, _ in expected
    ]
    found = forebay.open(root)
    assert [(sample["data"], int(sample["label"])) for sample in found] == [
        (value, label) for _, value, label in expected
    ]
    again = convert(source_of(root), tmp_path / "again", to="folder")
    assert again.notes == ["the samples are in the order of their labels"]
    assert rows(forebay.open(tmp_path / "again")) == rows(found)
    for force in (False, True):
        with says(OptionError, "00000", "LMDB"):
            convert(Labelled(), root, to="folder", force=force)
    with says(OptionError):
        convert(Labelled(), tmp_path / "other")
    labels[4] = -1
    with says(OptionError, 4, 0, 99999, -1):
        convert(Labelled(), tmp_path / "negative", to="folder")
    assert not (tmp_path / "negative").exists()


def rows(dataset):
    """Samples as field → bytes."""
    return [
        {name: np.asarray(value).tobytes() for name, value in sample.items()}
        if isinstance(sample, dict)
        else {"data": sample}
        for sample in dataset
    ]


@pytest.mark.parametrize("between", ["lmdb", "tfrecord", "recordio", "tar", "folder", "arrow", "parquet"])
@pytest.mark.parametrize("first", ["lmdb", "tfrecord", "recordio", "tar", "folder"])
def test_records_come_back_from_every_format(tmp_path, records, first, between):
    path, values = records
    for name in {first, between} - set(_native.FORMATS):
        pytest.skip(f"this version does not read {name}")
    formats = [first, between, first]
    names = [tmp_path / f"{number}-{name}" for number, name in enumerate(formats)]
    for source, target, name in zip([path, *names], names, formats, strict=False):
        assert convert(source_of(source), target, to=name).notes == []
        assert rows(forebay.open(target)) == [{"data": value} for value in values]
    if first in ("tfrecord", "recordio"):
        assert names[0].read_bytes() == names[2].read_bytes()


@pytest.mark.parametrize("between", ["npz", "hdf5", "raw"])
def test_arrays_come_back_from_every_format(tmp_path, table, between):
    path, arrays = table
    if between not in _native.FORMATS:
        pytest.skip(f"this version does not read {between}")
    target = tmp_path / f"between{TARGETS[between][0]}"
    convert(source_of(path), target)
    fields = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}
    options = {"format": "raw", "fields": fields} if between == "raw" else {}
    source = open_source(lambda: forebay.open(target, **options), [str(target)], [])
    convert(source, tmp_path / "again.npz")
    with np.load(tmp_path / "again.npz") as again:
        assert sorted(again.files) == sorted(arrays)
        for name, array in arrays.items():
            assert again[name].dtype == array.dtype
            assert np.array_equal(again[name], array)


def test_the_command_converts_several_shards_and_chosen_fields(tmp_path, capsys, table):
    path, arrays = table
    other = shutil.copy(path, tmp_path / "other.npz")
    assert forebay.cli.main(["convert", str(path), str(other), str(tmp_path / "x.npy"), "--field", "x"]) == 0
    assert np.array_equal(np.load(tmp_path / "x.npy"), np.concatenate([arrays["x"]] * 2))
    told = capsys.readouterr()
    assert "samples  74" in told.out
    assert told.err == "forebay: the name of the field 'x' is not kept\n"
    assert forebay.cli.main(["convert", str(path), str(tmp_path / "x.npy"), "--field", "x"]) == 2
    assert "--force replaces it" in capsys.readouterr().err


def damage(path, offset, mask=0x40):
    """Flip a bit as storage does: the file is as old as before."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ mask]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def tfrecords(tmp_path):
    """A TFRecord file of 300 records of 100 bytes, 116 in the file."""
    return write_tfrecords(tmp_path / "x.tfrecord", 300, 100)


def write_tfrecords(path, samples, sample_bytes):
    values = [record(number, sample_bytes) for number in range(samples)]
    rows = np.frombuffer(b"".join(values), np.uint8).reshape(samples, sample_bytes)
    convert(NumpySource({"data": rows}), path)
    return path, values


TARGET_NAMES = {"hdf5": "a.h5", "folder": "a"}


def contents(path, kind, options=None):
    """All samples of what was written, as bytes."""
    dataset = forebay.open(path, format=kind, **(options or {}))
    return [
        bytes(sample) if isinstance(sample, bytes) else np.asarray(next(iter(sample.values()))).tobytes()
        for sample in dataset
    ]


@pytest.mark.parametrize("kind", TARGETS)
def test_a_record_with_a_wrong_checksum_gets_no_fresh_one(capsys, tmp_path, tfrecords, kind, monkeypatch):
    path, values = tfrecords
    # What the environment says of training must not replace records here.
    monkeypatch.setenv("FOREBAY_BAD_SAMPLES", "skip")
    for number in (7, 299):
        damage(path, 116 * number + 12 + 50)
    target = tmp_path / TARGET_NAMES.get(kind, f"a.{kind}")
    status, _, err = run(capsys, "convert", path, target, "--to", kind)
    assert status == 1
    assert f"sample 7: {path}: TFRecord: checksum of the data of a record at offset {116 * 7 + 112}" in err
    assert "hint: --bad-samples skip" in err
    assert not target.exists()
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []

    status, out, err = run(capsys, "convert", path, target, "--to", kind, "--bad-samples", "skip", "--json")
    assert status == 0
    found = json.loads(out)
    assert [one["sample"] for one in found["left_out"]] == [7, 299]
    assert found["samples"] == 298
    assert "2 of 300 samples are bad and were left out; the 298 others" in err
    assert "left out: sample 299: " in err
    options = {"record_bytes": 100} if kind == "raw" else {}
    good = [value for number, value in enumerate(values) if number not in (7, 299)]
    assert contents(target, kind, options) == good


def test_a_wrong_checksum_of_a_length_is_an_error_whether_the_index_is_kept_or_not(
    capsys, tmp_path, monkeypatch
):
    path, values = write_tfrecords(tmp_path / "x.tfrecord", 300, 4000)
    len(forebay.open(path))
    # Behind the first block, whose hash the index is tied to.
    damage(path, 4016 * 290 + 8)
    status, _, err = run(capsys, "convert", path, tmp_path / "a.tar")
    assert status == 1
    assert f"sample 290: {path}: TFRecord: length of a record at offset {4016 * 290}" in err
    assert run(capsys, "convert", path, tmp_path / "a.tar", "--bad-samples", "skip")[0] == 0
    assert contents(tmp_path / "a.tar", "tar") == values[:290] + values[291:]
    # Without the index nothing tells where the next record is.
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(tmp_path / "other"))
    status, _, err = run(capsys, "convert", path, tmp_path / "b.tar", "--bad-samples", "skip")
    assert status == 1
    assert f"checksum of the length of a record at offset {4016 * 290}" in err


def test_any_number_of_bad_samples_in_a_row_is_left_out(capsys, tmp_path, tfrecords):
    path, values = tfrecords
    for number in (*range(100, 220), 0):
        damage(path, 116 * number + 40)
    status, out, err = run(capsys, "convert", path, tmp_path / "a.npy", "--bad-samples", "skip")
    assert status == 0
    assert "left out  121" in out
    assert "21 more" in err
    assert contents(tmp_path / "a.npy", "npy") == values[1:100] + values[220:]


def test_a_dataset_without_a_good_sample_is_an_error(capsys, tmp_path, tfrecords):
    path, _ = tfrecords
    for number in range(300):
        damage(path, 116 * number + 40)
    skip = ("--bad-samples", "skip", "--schema", "raw")
    status, _, err = run(capsys, "convert", path, tmp_path / "a.npy", *skip)
    assert status == 1
    assert "all 300 samples are bad" in err
    assert not (tmp_path / "a.npy").exists()


def test_bad_samples_of_several_fields_are_left_out_of_all(capsys, tmp_path):
    path = tmp_path / "x.h5"
    images = np.arange(40 * 6, dtype="<f4").reshape(40, 6)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=images, chunks=(4, 6), fletcher32=True)
        file["y"] = np.arange(40)
        place = file["x"].id.get_chunk_info(2).byte_offset
    len(forebay.open(path))
    damage(path, place + 5)
    status, _, err = run(capsys, "convert", path, tmp_path / "a.npz")
    assert status == 1
    assert "sample 8: " in err
    assert f"fletcher32 of a chunk of 100 bytes: checksum at offset {place}" in err
    assert run(capsys, "convert", path, tmp_path / "a.npz", "--bad-samples", "skip")[0] == 0
    kept = [number for number in range(40) if not 8 <= number < 12]
    with np.load(tmp_path / "a.npz") as found:
        assert found["y"].tolist() == kept
        assert np.array_equal(found["x"], images[kept])


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_wrong_checksum_of_a_member_of_an_archive_is_an_error(capsys, tmp_path, save, skip):
    path = tmp_path / "x.npz"
    save(path, x=np.arange(1000), y=np.arange(1000))
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("y.npy")
    len(forebay.open(path)) if save is np.savez else None
    damage(path, member.header_offset + member.compress_size // 2 + 40, 1)
    options = ["--bad-samples", "skip"] if skip else []
    status, _, err = run(capsys, "convert", path, tmp_path / "a.h5", *options)
    assert status == 1
    assert str(path) in err
    assert "y.npy" in err
    assert "at offset" in err
    assert not (tmp_path / "a.h5").exists()
    if save is np.savez:
        status, _, err = run(capsys, "verify", path)
        assert status == 1
        assert "CRC-32 of member" in err
        # Conversion ignores a field that is not requested.
        assert run(capsys, "convert", path, tmp_path / "a.h5", "--field", "x")[0] == 0


@pytest.mark.parametrize("command", ["verify", "convert"])
def test_a_wrong_checksum_of_a_tar_header_is_an_error_though_the_index_is_kept(capsys, tmp_path, command):
    np.save(tmp_path / "x.npy", np.zeros((5, 700), np.uint8))
    convert(source_of(tmp_path / "x.npy"), tmp_path / "x.tar")
    len(forebay.open(tmp_path / "x.tar"))
    # The modification time in the third header.
    damage(tmp_path / "x.tar", 3 * 1536 + 140, 1)
    status, _, err = run(
        capsys, command, tmp_path / "x.tar", *([tmp_path / "a.npy"] * (command == "convert"))
    )
    assert status == 1
    assert f"x.tar: tar header checksum at offset {3 * 1536 + 148}" in err


def test_what_delivers_fewer_samples_than_it_says_makes_no_file(tmp_path, says):
    source = NumpySource({"x": np.arange(10)})
    source.samples = 11
    with says(FormatError, 11, 10):
        convert(source, tmp_path / "a.npy")
    assert not (tmp_path / "a.npy").exists()


@pytest.mark.parametrize("between", ["arrow", "parquet"])
def test_tables_keep_types_and_shapes(tmp_path, between):
    arrays = {
        "x": np.arange(SAMPLES * 6, dtype=np.float32).reshape(SAMPLES, 3, 2),
        "y": np.arange(SAMPLES) - 9,
        "flag": np.arange(SAMPLES) % 3 == 0,
        "time": np.arange(SAMPLES).astype("M8[ms]"),
        "key": np.array([bytes([number, 1, 2]) for number in range(SAMPLES)], "V3"),
    }
    done = convert(NumpySource(arrays), tmp_path / f"a.{between}")
    assert (done.format, done.samples, done.notes) == (between, SAMPLES, [])
    found = forebay.open(tmp_path / f"a.{between}")
    assert all(
        equal(sample, {name: array[number] for name, array in arrays.items()})
        for number, sample in enumerate(found)
    )


@pytest.mark.parametrize("between", ["arrow", "parquet"])
def test_a_table_says_what_it_cannot_hold(tmp_path, says, between):
    with says(OptionError, between, ">i4", "x"):
        convert(NumpySource({"x": np.zeros(3, ">i4")}), tmp_path / f"a.{between}")


@pytest.fixture
def labelled(tmp_path):
    """A folder of two classes, with files of one name in both and dots in names."""
    root = tmp_path / "photos"
    for label, kind in enumerate(("ant", "bee")):
        (root / kind / "more").mkdir(parents=True)
        for number, name in enumerate(("0.jpg", "1.x.JPEG", "more/0.jpeg")):
            (root / kind / name).write_bytes(b"\xff\xd8\xff" + record(10 * label + number, 90 + number))
    return root


def files_of(root):
    """(class number, path below the folder, bytes), in the order of a folder."""
    return [
        (label, f"{kind}/{name}", (root / kind / name).read_bytes())
        for label, kind in enumerate(("ant", "bee"))
        for name in ("0.jpg", "1.x.JPEG", "more/0.jpeg")
    ]


def test_a_labelled_folder_becomes_what_image_loaders_read(tmp_path, labelled):
    expected = files_of(labelled)
    done = convert(source_of(labelled), tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as archive:
        members = [(member.name, archive.extractfile(member).read()) for member in archive]
    keys = ["ant/0", "ant/1_x", "ant/more/0", "bee/0", "bee/1_x", "bee/more/0"]
    assert [name for name, _ in members] == [f"{key}.{kind}" for key in keys for kind in ("jpg", "cls")]
    assert [content for _, content in members[::2]] == [data for _, _, data in expected]
    assert [content for _, content in members[1::2]] == [b"%d" % label for label, _, _ in expected]
    assert len(done.notes) == 1
    read = forebay.open(tmp_path / "a.tar", decode={"cls": "int"})
    assert [(int(one["cls"]), bytes(one["jpg"])) for one in read] == [
        (label, data) for label, _, data in expected
    ]
    # Caffe's messages of encoded images.
    convert(source_of(labelled), tmp_path / "a.lmdb")
    found = forebay.open(tmp_path / "a.lmdb")
    assert [(int(one["label"]), bytes(one["image"])) for one in found] == [
        (label, data) for label, _, data in expected
    ]


def test_files_of_any_length_become_both_fields_of_hdf5(tmp_path, labelled):
    convert(source_of(labelled), tmp_path / "any.h5")
    expected = files_of(labelled)
    with h5py.File(tmp_path / "any.h5") as file:
        assert list(file["label"]) == [label for label, _, _ in expected]
        assert [row.tobytes() for row in file["data"]] == [data for _, _, data in expected]
    found = forebay.open(tmp_path / "any.h5")
    assert [bytes(one["data"]) for one in found] == [data for _, _, data in expected]
    for path in labelled.rglob("*.j*"):
        path.write_bytes(path.read_bytes()[:90])
    for path in labelled.rglob("*.J*"):
        path.write_bytes(path.read_bytes()[:90])
    shutil.copytree(labelled, tmp_path / "equal")
    convert(source_of(tmp_path / "equal"), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        assert list(file["label"]) == [0, 0, 0, 1, 1, 1]
        assert [row.tobytes() for row in file["data"]] == [
            data for _, _, data in files_of(tmp_path / "equal")
        ]


def test_keys_of_several_folders_begin_with_the_folder(tmp_path):
    for folder, label in (("A", "cat"), ("A", "dog"), ("B", "dog"), ("B", "emu")):
        (tmp_path / folder / label).mkdir(parents=True)
        (tmp_path / folder / label / "1.jpg").write_bytes(b"\xff\xd8\xff" + f"{folder}{label}".encode())
    convert(source_of(str(tmp_path / "{A,B}")), tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as archive:
        members = {one.name: archive.extractfile(one).read() for one in archive}
    assert {name: value for name, value in members.items() if name.endswith(".cls")} == {
        "A/cat/1.cls": b"0",
        "A/dog/1.cls": b"1",
        "B/dog/1.cls": b"1",
        "B/emu/1.cls": b"2",
    }
    assert len(members) == 8


def test_pairs_of_records_become_samples_of_two_fields(tmp_path, says):
    images = [record(number, 50 + number) for number in range(SAMPLES)]
    with (
        lmdb.open(str(tmp_path / "text.lmdb"), map_size=1 << 24) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, image in enumerate(images, 1):
            transaction.put(b"image-%09d" % number, image)
            transaction.put(b"label-%09d" % number, b"word %d" % number)
        transaction.put(b"num-samples", b"%d" % SAMPLES)
    with says(FormatError, "convert"):
        len(forebay.open(tmp_path / "text.lmdb"))
    assert len(forebay.open(tmp_path / "text.lmdb", schema="raw")) == 2 * SAMPLES
    done = convert(source_of(tmp_path / "text.lmdb"), tmp_path / "text.tar")
    assert done.samples == SAMPLES
    dataset = forebay.open(tmp_path / "text.tar", decode={"label": "text"})
    assert [(bytes(one["image"]), one["label"]) for one in dataset] == [
        (image, f"word {number}") for number, image in enumerate(images, 1)
    ]
    with (
        lmdb.open(str(tmp_path / "text.lmdb"), map_size=1 << 24) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.delete(b"label-000000009")
    with pytest.raises(FormatError, match="expected the key label-000000009"):
        convert(source_of(tmp_path / "text.lmdb"), tmp_path / "cut.tar")
