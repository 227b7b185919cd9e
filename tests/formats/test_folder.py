"""Folders: every file is a sample, its directory its class; os.walk is the oracle."""

from __future__ import annotations

import ast
import errno
import gzip
import io
import os
import random
import shutil
import tarfile
import tempfile
import time
from pathlib import Path

import lmdb
import numpy as np
import pytest

import forebay
import support
from forebay_lab import pfs
from support import emulator
from support.emulator import needs_fuse
from support.ranks import fields

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def npy(array):
    """Return an array as the bytes of a file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


JPEG = b"\xff\xd8\xff"
ARRAY = npy(np.arange(3))
CLASSES = ("ant", "bee", "Übung", "cat-2")


def make(root, classes=CLASSES, count=40, seed=1):
    """Write files of random sizes, some of them in directories below their class."""
    rng = random.Random(seed)
    for name in classes:
        for number in range(count):
            below = root / name / (f"part-{number % 3}" if number % 4 == 0 else "")
            below.mkdir(parents=True, exist_ok=True)
            (below / f"image-{number:04d}.jpg").write_bytes(rng.randbytes(rng.choice([0, 1, 700, 5000])))
    return root


def listed(root):
    """The files of a directory and then of those in it, each in the order of the names' bytes."""
    names = sorted(name for name in os.listdir(os.fsencode(root)) if not name.startswith(b"."))  # noqa: PTH208
    paths = [os.path.join(os.fsencode(root), name) for name in names]  # noqa: PTH118
    files = [path for path in paths if os.path.isfile(path) and not os.path.islink(path)]  # noqa: PTH113, PTH114
    below = [path for path in paths if os.path.isdir(path) and not os.path.islink(path)]  # noqa: PTH112, PTH114
    return files + [file for path in below for file in listed(os.fsdecode(path))]


def oracle(root):
    """(bytes, label) of every sample."""
    classes = sorted(os.fsencode(path.name) for path in root.iterdir() if path.is_dir())
    classes = [name for name in classes if not name.startswith(b".")]
    samples = []
    for path in listed(root):
        parts = path[len(os.fsencode(root)) + 1 :].split(b"/")
        if len(parts) > 1:
            samples.append((Path(os.fsdecode(path)).read_bytes(), classes.index(parts[0])))
    return samples


def contents(dataset):
    return [(dataset[index]["data"], int(dataset[index]["label"])) for index in range(len(dataset))]


@pytest.fixture
def folder(tmp_path):
    return make(tmp_path / "train")


def test_every_file_is_a_sample_and_its_directory_the_class(folder):
    dataset = forebay.open(folder)
    assert dataset.format == "folder"
    assert dataset.fields == {"data": ("uint8", None), "label": ("int64", ())}
    expected = oracle(folder)
    assert len(expected) == 160
    assert contents(dataset) == expected
    for index, path in enumerate(listed(folder)):
        size = len(expected[index][0])
        assert dataset.extents(index) == [(os.fsdecode(path), 0, size)]
    told = dataset.native.inspect()
    assert told["shards"][0]["classes"] == sorted(CLASSES, key=str.encode)
    assert told["bytes"] == sum(len(data) for data, _ in expected)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("order", ["sequential", "group", "shuffle"])
@pytest.mark.parametrize("access", ["pread", "io_uring"])
def test_ranks_deliver_every_file_of_all_folders_once(tmp_path, pool, ranks, order, access):
    folders = [make(tmp_path / f"{number}", count=20 + number, seed=number) for number in range(2)]
    expected = [sample for folder in folders for sample in oracle(folder)]
    options = {
        "batch_size": 8,
        "order": order,
        "last_batch": "partial",
        "strategy": forebay.Strategy(access=access),
    }
    paths = [str(folder) for folder in folders]
    found = pool.run(ranks, fields.deliver, path=paths, opening={}, options=options)
    delivered = {number: sample for rank in found for number, sample in rank}
    assert sum(map(len, found)) == len(delivered) == len(expected)
    for number, (data, label) in enumerate(expected):
        assert (delivered[number]["data"].tobytes(), delivered[number]["label"]) == (data, label)


def test_files_in_the_folder_itself_have_no_class(tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(9):
        (tmp_path / "texts" / f"{number}.txt").write_bytes(b"x" * number)
    dataset = forebay.open(tmp_path / "texts")
    assert list(dataset.fields) == ["data"]
    assert list(dataset) == [b"x" * number for number in range(9)]


def test_fields_may_be_picked(folder, says):
    labels = forebay.open(folder, fields=["label"])
    assert [int(labels[index]["label"]) for index in (0, 159)] == [0, 3]
    data = forebay.open(folder, fields=["data"])
    assert data[5] == oracle(folder)[5][0]
    with says(forebay.OptionError, "image"):
        forebay.open(folder, fields=["image"])


def test_what_is_passed_over_is_counted(folder):
    (folder / "README").write_text("beside")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "x.jpg").write_bytes(b"x")
    (folder / "ant" / ".x.jpg").write_bytes(b"x")
    (folder / "ant" / "link.jpg").symlink_to("image-0001.jpg")
    (folder / "bee" / "elsewhere").symlink_to("/etc")
    os.mkfifo(folder / "bee" / "pipe")
    (folder / "dog").mkdir()
    dataset = forebay.open(folder)
    with pytest.warns(
        RuntimeWarning, match="2 symbolic links skipped: .*\nhint: pass the directories"
    ) as warned:
        assert contents(dataset) == oracle(folder)
    assert len(warned) == 1
    description = dataset.native.inspect()
    assert [str(one.message) for one in warned] == description["warnings"]
    # Also where the index comes from a sidecar.
    with pytest.warns(RuntimeWarning, match="2 symbolic links skipped"):
        assert len(forebay.open(folder)) == len(dataset)
    assert description["records"]["excluded"] == {
        "devices, pipes and sockets": 1,
        "files beside the class directories": 1,
        "hidden files and directories": 2,
        "symbolic links": 2,
    }


def test_a_folder_of_links_has_no_samples_and_they_are_named(folder, tmp_path, says):
    links = tmp_path / "links"
    links.mkdir()
    (links / "bee").symlink_to(folder / "bee")
    with says(forebay.FormatError, links):
        len(forebay.open(links))


def test_names_of_any_bytes_are_read(tmp_path):
    below = tmp_path / "train" / os.fsdecode(b"class-\xff")
    below.mkdir(parents=True)
    (below / os.fsdecode(b"\xfe\n.jpg")).write_bytes(b"bytes")
    (below / ("n" * 255)).write_bytes(b"long")
    dataset = forebay.open(tmp_path / "train")
    assert contents(dataset) == [(b"long", 0), (b"bytes", 0)]
    assert dataset.extents(1)[0][0] == str(below / os.fsdecode(b"\xfe\n.jpg"))


def test_many_directories_and_files_cross_blocks(tmp_path):
    for number in range(4200):
        below = tmp_path / "train" / f"{number % 5}" / f"{number:05d}"
        below.mkdir(parents=True)
        (below / "x").write_bytes(b"%d" % number)
    dataset = forebay.open(tmp_path / "train")
    assert len(dataset) == 4200
    with forebay.Loader(
        dataset, batch_size=600, world="single", last_batch="partial", expected_epochs=1
    ) as loader:
        for batch in loader:
            for index, data, label in zip(batch.indices, batch["data"], batch["label"], strict=True):
                number = int(bytes(data))
                assert (label, index) == (number % 5, number % 5 * 840 + number // 5)


def test_a_sidecar_serves_until_a_directory_changes(folder):
    expected = oracle(folder)
    first = forebay.open(folder)
    assert len(first) == 160
    again = forebay.open(folder)
    assert again.fingerprint == first.fingerprint
    assert again.native.inspect()["sidecar"] is not None
    assert contents(again) == expected
    # A class gets a file: the folder is another dataset now.
    time.sleep(0.02)
    (folder / "ant" / "new.jpg").write_bytes(b"new")
    changed = forebay.open(folder)
    assert changed.fingerprint != first.fingerprint
    assert len(changed) == 161
    # So does a directory below a class, of which only the sidecar knows.
    time.sleep(0.02)
    (folder / "ant" / "part-0" / "newer.jpg").write_bytes(b"newer")
    deeper = forebay.open(folder)
    assert len(deeper) == 162
    assert contents(deeper) == oracle(folder)


def test_a_file_that_changed_or_went_is_an_error_that_names_it(folder, says):
    dataset = forebay.open(folder)
    expected = oracle(folder)
    large = next(index for index, (data, _) in enumerate(expected) if len(data) == 5000)
    path = Path(dataset.extents(large)[0][0])
    path.write_bytes(b"short")
    with says(forebay.StorageError, 5000, 5, path.name) as changed:
        dataset[large]
    assert (changed.value.errno, changed.value.filename) == (None, str(path))
    loader = forebay.Loader(dataset, batch_size=40, order="sequential", world="single")
    with loader, says(forebay.StorageError, 5000, 5, path.name):
        list(loader)
    path.unlink()
    with pytest.raises(forebay.StorageError, match=path.name) as gone:
        dataset[large]
    assert (gone.value.errno, gone.value.filename) == (errno.ENOENT, str(path))
    loader = forebay.Loader(dataset, batch_size=40, order="sequential", world="single")
    with loader, pytest.raises(forebay.StorageError, match=path.name) as gone:
        list(loader)
    assert (gone.value.errno, gone.value.filename) == (errno.ENOENT, str(path))


def test_a_file_of_another_size_makes_the_index_anew(folder):
    first = forebay.open(folder)
    large = next(number for number in range(len(first)) if first.extents(number)[0][2] == 5000)
    path = Path(first.extents(large)[0][0])
    path.write_bytes(b"short")
    assert contents(forebay.open(folder)) == oracle(folder)
    with forebay.Loader(folder, 40, order="sequential", world="single", expected_epochs=1) as loader:
        assert [data.tobytes() for batch in loader for data in batch["data"]] == [
            data for data, _ in oracle(folder)
        ]
    path.write_bytes(b"shorter")
    assert forebay.open(folder).native.verify()["bad_samples"] == 0


def test_no_symbolic_link_is_followed_even_if_it_comes_later(folder):
    dataset = forebay.open(folder)
    data = oracle(folder)[0][0]
    path = Path(dataset.extents(0)[0][0])
    outside = folder.parent / "outside"
    outside.write_bytes(data)
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(forebay.StorageError) as refused:
        dataset[0]
    assert refused.value.errno == errno.ELOOP
    (folder.parent / "moved").mkdir()
    (folder / "ant").rename(folder.parent / "moved" / "ant")
    (folder / "ant").symlink_to(folder.parent / "moved" / "ant")
    with pytest.raises(forebay.StorageError) as refused:
        dataset[1]
    assert refused.value.errno == errno.ELOOP


UNREADABLE = """
import os, sys
import forebay
os.environ["FOREBAY_CACHE_DIR"] = sys.argv[2]
dataset = forebay.open(sys.argv[1])
# Python itself may be out of reach afterwards.
os.setgid(65534), os.setuid(65534)
try:
    print(len(dataset))
    dataset[0]
except forebay.ForebayError as error:
    print(error)
"""


@pytest.fixture
def open_directory():
    """A directory that other users can get to."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_cannot_be_read_is_named(what, open_directory):
    outer = open_directory
    folder = make(outer / "train", ("ant",), 4)
    path = Path(forebay.open(folder).extents(0)[0][0])
    target = path if what == "file" else folder / "ant" / "part-0"
    target.chmod(0)
    cache = outer / "cache"
    cache.mkdir(mode=0o700)
    os.chown(cache, 65534, 65534)
    done = support.run_python(UNREADABLE, folder, cache)
    assert f"{target}: cannot open" in done.stdout, done.stdout + done.stderr
    assert "Permission denied" in done.stdout


def test_a_folder_of_shards_is_not_taken_for_one_of_samples(tmp_path, says):
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(2):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            archive.addfile(tarfile.TarInfo("a.txt"))
    with says(forebay.OptionError) as error:
        forebay.open(folder)
    assert 'format="folder"' in str(error.value)
    assert len(forebay.open(folder, format="folder")) == 2
    assert len(forebay.open(str(folder / "*.tar"))) == 2


def write_table(path, rows=3):
    """Write a Parquet file of numbers, in directories that are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"number": list(range(rows))}), path)


def write_environment(path, values=(b"value",)):
    """Write an LMDB environment with its lock file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        for number, value in enumerate(values):
            transaction.put(b"%08d" % number, value)


def told_call(error):
    """The first call of forebay.open in the hint of an error, as its arguments."""
    hint = str(error.value).partition("\nhint: ")[2]
    call = hint[hint.index("forebay.open(") + len("forebay.") :]
    call = ast.parse(call[: call.index(")") + 1], mode="eval").body
    return [ast.literal_eval(one) for one in call.args], {
        one.arg: ast.literal_eval(one.value) for one in call.keywords
    }


@pytest.mark.parametrize(
    ("files", "samples"),
    [
        (["x/part-0.parquet", "y/part-0.parquet"], 6),
        (["x/a.parquet", "_SUCCESS"], 3),
        (["label=0/a.parquet", "label=1/a.parquet", "_SUCCESS", "_metadata"], 6),
        (["year=2024/day=1/a.parquet", "year=2024/day=2/a.parquet"], 6),
        (["images/cat/0.jpg", "images/cat/1.parquet"], 3),
        (["a/b/c/d.parquet"], 3),
        *(([*(f"{number:02}/0.jpg" for number in range(30)), f"{at:02}/1.parquet"], 3) for at in (0, 13, 29)),
        # By its first bytes alone.
        (["x/part-0", "y/part-0"], 6),
        (["x/train.tfrecord-00000-of-00002", "y/0.jpg", "a/0.jpg", "b/0.jpg"], 3),
    ],
)
def test_a_directory_of_tables_is_no_folder_and_the_error_names_the_call_that_is_meant(
    tmp_path, files, samples
):
    root = tmp_path / "data"
    for name in files:
        if Path(name).suffix == ".jpg" or name.startswith("_"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(b"\xff\xd8\xff" if ".jpg" in name else b"")
        else:
            write_table(root / name)
    with pytest.raises(
        forebay.OptionError, match=r"is no folder whose files are samples: .* holds many"
    ) as error:
        len(forebay.open(root))
    (path,), options = told_call(error)
    assert options == {}
    assert len(forebay.open(path)) == samples
    assert len(forebay.open(root, format="folder")) == sum(1 for name in files if name[0] != "_")


def test_directories_of_other_formats_are_no_classes(tmp_path, says):
    for name in "ab":
        write_environment(tmp_path / "environments" / name)
        (tmp_path / "partitions" / name).mkdir(parents=True)
        (tmp_path / "partitions" / name / "index.json").write_text('{"shards": [], "version": 2}')
        (tmp_path / "arrays" / name).mkdir(parents=True)
        (tmp_path / "arrays" / name / ".zarray").write_text("{}")
        # Of another program: a sample.
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "index.json").write_text('{"photos": []}')
    for name in ("environments", "partitions"):
        with says(forebay.OptionError):
            forebay.open(tmp_path / name)
    with says(forebay.FormatError):
        forebay.open(tmp_path / "arrays")
    assert len(forebay.open(tmp_path / "photos")) == 2
    assert len(forebay.open(str(tmp_path / "environments" / "*"))) == 2
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    write_table(tmp_path / "delta" / "a.parquet")
    with says(forebay.FormatError, "Delta"):
        forebay.open(tmp_path / "delta")


def test_a_name_alone_refuses_no_file(tmp_path):
    # Files of arrays are samples, and are decoded as such.
    for number, name in enumerate(("a.rec", "b.h5", "c.tar", "d.mdb", "e.parquet", "f.lmdb")):
        below = tmp_path / "class" / str(number % 2)
        below.mkdir(parents=True, exist_ok=True)
        (below / name).write_bytes(b"something else" * (number + 1))
    for number in range(3):
        np.save(tmp_path / "class" / "0" / f"x{number}.npy", np.full(3, number))
    expected = oracle(tmp_path / "class")
    assert len(expected) == 9
    assert contents(forebay.open(tmp_path / "class")) == expected


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"x/a.jsonl": b'{"a": 1}\n{"a": 2}\n'}, "a.jsonl is a table"),
        ({"x/a.jsonl.gz": gzip.compress(b'{"a": 1}\n')}, "a.jsonl.gz is a table"),
        ({"a.ndjson": b'{"a": 1}\n'}, "a.ndjson is a table"),
        ({"cat/a.csv": b"a,b\n1,2\n", "dog/b.csv": b"a,b\n1,2\n"}, "a.csv is a table"),
        ({"a.csv": b"a,b\n1,2\n"}, "a.csv is a table"),
        ({"data/a.npy": ARRAY, "data/b.npy": ARRAY}, "a.npy holds many"),
        ({"0.jpg": JPEG, "1.jpg": JPEG, "labels.npy": ARRAY}, "files of many samples, like .*labels.npy"),
        ({"q.py": b"print()", "train.npy": ARRAY}, "files of many samples, like .*train.npy"),
        (
            {"cat/0.jpg": JPEG, "cat/1.jpg": JPEG, "cat/y.npy": ARRAY, "dog/0.jpg": JPEG},
            "y.npy is an array .* among other files",
        ),
        ({"cat/0.jpg": JPEG, "cat/x.parquet": b"", "dog/0.jpg": JPEG}, "x.parquet holds many"),
        ({"metadata.csv": b"file_name,label\n0.jpg,1\n", "0.jpg": JPEG}, "forebay.manifest"),
    ],
)
def test_tables_and_arrays_are_no_samples_of_a_folder(tmp_path, files, told):
    for name, content in files.items():
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_bytes(content)
    with pytest.raises(forebay.OptionError, match=told):
        len(forebay.open(tmp_path / "d"))
    assert len(forebay.open(tmp_path / "d", format="folder")) == len(files)


@pytest.mark.full
def test_a_table_among_thousands_of_files_is_found(tmp_path):
    root = tmp_path / "d"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(1500):
            (root / name / f"{number}.jpg").write_bytes(JPEG)
    write_table(root / "dog" / "999.parquet")
    for path in (root, root / "dog"):
        with pytest.raises(forebay.OptionError, match=r"999.parquet holds many"):
            len(forebay.open(path))


def test_texts_and_recordings_in_directories_of_classes_are_samples(tmp_path):
    for label in ("neg", "pos"):
        (tmp_path / "d" / label).mkdir(parents=True)
        for number in range(6):
            (tmp_path / "d" / label / f"{number}_9.txt").write_text(f"A film, {label}.\n")
            (tmp_path / "d" / label / f"{number}.csv").write_text("t,x\n0,1\n")
    assert contents(forebay.open(tmp_path / "d")) == oracle(tmp_path / "d")


@pytest.mark.parametrize(
    "names",
    [
        ("training_set", "test_set"),
        ("fold_1", "fold_2"),
        ("split0", "split1"),
        ("images_train", "images_val", "annotations"),
        ("Train", "train-extra"),
        ("train", "unlabeled"),
    ],
)
def test_directories_with_the_word_of_a_split_are_no_classes(tmp_path, names):
    for name in names:
        (tmp_path / "d" / name).mkdir(parents=True)
        (tmp_path / "d" / name / "0.jpg").write_bytes(name.encode())
    with pytest.raises(forebay.OptionError, match="holds splits, not classes") as error:
        forebay.open(tmp_path / "d")
    (path,), options = told_call(error)
    assert list(forebay.open(path, **options)) == [options["split"].encode()]


def test_splits_are_no_classes_and_split_opens_one(tmp_path, says):
    root = tmp_path / "data"
    for split, count in (("train", 3), ("val", 2)):
        for label in ("ant", "bee"):
            for number in range(count):
                below = root / "images" / split / label
                below.mkdir(parents=True, exist_ok=True)
                (below / f"{number}.jpg").write_bytes(b"%d" % number)
    with says(forebay.OptionError) as error:
        forebay.open(root / "images")
    (path,), options = told_call(error)
    dataset = forebay.open(path, **options)
    assert contents(dataset) == oracle(root / "images" / "train")
    assert len(forebay.open(root / "images", split="val")) == 4
    # Also where it is the only one, and where the splits lie deeper.
    with pytest.raises(forebay.OptionError, match="images holds splits, not classes: train, val"):
        forebay.open(root)
    shutil.rmtree(root / "images" / "val")
    with pytest.raises(forebay.OptionError, match="images holds splits, not classes: train"):
        forebay.open(root / "images")
    with says(forebay.OptionError):
        forebay.open(root / "images", split="test")
    with says(forebay.OptionError):
        forebay.open(root / "images" / "train" / "ant" / "0.jpg", split="test")
    with says(forebay.OptionError):
        forebay.open(root, split="images/train")
    # A train may be a class, and the caller may say that all are.
    (root / "images" / "car").mkdir()
    assert forebay.open(root / "images").format == "folder"
    (root / "images" / "val2017").mkdir()
    with pytest.raises(forebay.OptionError, match="train, val2017"):
        forebay.open(root / "images")
    assert len(forebay.open(root / "images", format="folder")) == 6


def test_what_systems_and_writers_leave_behind_is_no_sample(folder):
    expected = oracle(folder)
    for name in ("Thumbs.db", "desktop.ini", "Desktop.ini", ".DS_Store", "._image-0001.jpg", "_SUCCESS"):
        (folder / "ant" / name).write_bytes(b"x")
    (folder / "__MACOSX").mkdir()
    (folder / "__MACOSX" / "image-0001.jpg").write_bytes(b"x")
    dataset = forebay.open(folder)
    assert contents(dataset) == expected
    description = dataset.native.inspect()
    assert description["shards"][0]["classes"] == sorted(CLASSES, key=str.encode)
    assert description["records"]["excluded"] == {
        "hidden files and directories": 2,
        "left behind by systems and writers (Thumbs.db, _SUCCESS)": 5,
    }


@pytest.mark.parametrize("sizes", [[0], [1], [7], [1, 1], [8], [0, 100]])
def test_files_may_be_smaller_than_their_labels(tmp_path, sizes):
    (tmp_path / "train" / "ant").mkdir(parents=True)
    for number, size in enumerate(sizes):
        (tmp_path / "train" / "ant" / str(number)).write_bytes(b"x" * size)
    assert [(len(sample["data"]), int(sample["label"])) for sample in forebay.open(tmp_path / "train")] == [
        (size, 0) for size in sizes
    ]


def test_a_folder_without_files_has_no_samples(tmp_path, says):
    (tmp_path / "train" / "ant").mkdir(parents=True)
    with says(forebay.FormatError):
        len(forebay.open(tmp_path / "train"))


def test_verify_reads_every_file(folder):
    dataset = forebay.open(folder)
    assert dataset.native.verify()["bad_samples"] == 0
    path = Path(dataset.extents(3)[0][0])
    path.write_bytes(b"something else" * 1000)
    found = dataset.native.verify()
    assert found["bad_samples"] == 1
    assert path.name in found["bad"][0]["message"]


@needs_fuse
@pytest.mark.parametrize("order", ["group", "sequential", "shuffle"])
def test_large_files_of_another_node_are_read_side_by_side_by_readers(tmp_path, points, order):
    root = tmp_path / "train"
    rng = random.Random(3)
    for number in range(96):
        below = root / CLASSES[number % 2]
        below.mkdir(parents=True, exist_ok=True)
        (below / f"{number:03d}.bin").write_bytes(rng.randbytes(rng.choice([70_000, 100_000])))
    pfs.Server.start(root, points, spec=emulator.write_spec(tmp_path / "spec.toml"))
    dataset = forebay.open(points[0])
    with forebay.Loader(dataset, 8, order=order, world="single") as loader:
        for batch in loader:
            for place, sample in enumerate(batch.indices):
                assert bytes(batch["data"][place]) == dataset[int(sample)]["data"]
        assert loader.stats()["unstaged_bytes"] == 0
        # A trip to the server for each file is what it costs.
        assert loader.config.reading.readers == 32


def test_symbolic_links_are_followed_where_that_is_asked_for(folder, tmp_path, says):
    links = tmp_path / "links"
    (links / "own").mkdir(parents=True)
    (links / "own" / "0.jpg").write_bytes(b"own")
    (links / "own" / "1.jpg").symlink_to(folder / "ant" / "image-0001.jpg")
    (links / "own" / "gone.jpg").symlink_to(tmp_path / "nothing")
    (links / "bee").symlink_to(folder / "bee", target_is_directory=True)
    dataset = forebay.open(links, follow_symlinks=True)
    expected = [(path.read_bytes(), 0) for path in map(Path, map(os.fsdecode, listed(folder / "bee")))]
    expected += [(b"own", 1), ((folder / "ant" / "image-0001.jpg").read_bytes(), 1)]
    with pytest.warns(RuntimeWarning, match="1 symbolic links skipped"):
        assert contents(dataset) == expected
    assert dataset.classes == ["bee", "own"]
    # Also by a sidecar, and by a loader.
    again = forebay.open(links, follow_symlinks=True)
    with pytest.warns(RuntimeWarning, match="1 symbolic links skipped: they lead nowhere"):
        assert len(again) == len(expected)
    with forebay.Loader(again, 8, order="shuffle", world="single", last_batch="partial") as loader:
        for batch in loader:
            for place, number in enumerate(batch.indices):
                assert (bytes(batch["data"][place]), batch["label"][place]) == expected[number]
    (tmp_path / "circle" / "own").mkdir(parents=True)
    (tmp_path / "circle" / "own" / "up").symlink_to("..")
    with says(forebay.FormatError, tmp_path / "circle" / "own" / "up"):
        len(forebay.open(tmp_path / "circle", follow_symlinks=True))


def test_an_empty_folder_of_a_set_has_no_samples(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for paths in ([tmp_path / "empty", folder], [folder, tmp_path / "empty"]):
        assert contents(forebay.open(paths)) == oracle(folder)
    with pytest.raises(forebay.FormatError, match="without samples"):
        len(forebay.open(tmp_path / "empty", format="folder"))
