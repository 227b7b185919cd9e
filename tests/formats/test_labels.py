"""Labels and values mean one thing over all files of a dataset."""

from __future__ import annotations

import io
import itertools
import tarfile

import h5py
import numpy as np
import pytest

import forebay

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write_classes(root, classes):
    for name in classes:
        (root / name).mkdir(parents=True)
        (root / name / "1.jpg").write_bytes(f"{root.name} {name}".encode())
    return root


def meant(dataset):
    """Return the class of each sample of these folders, and the one that its label names."""
    return [(one["data"].decode().split()[1], dataset.classes[one["label"]]) for one in dataset]


@pytest.mark.parametrize(
    "classes",
    [
        [["cat", "dog"], ["dog", "emu"]],
        [["dog"], ["cat"]],
        [["b", "c"], ["a"], ["d", "a"]],
        [["cat", "dog"], ["cat", "dog"]],
    ],
)
def test_one_name_has_one_label_over_all_folders(tmp_path, classes):
    folders = [write_classes(tmp_path / f"{number}", names) for number, names in enumerate(classes)]
    dataset = forebay.open(folders)
    assert dataset.classes == sorted(set(itertools.chain.from_iterable(classes)))
    assert [name for name, _ in meant(dataset)] == [label for _, label in meant(dataset)]
    shards = dataset.native.inspect()["shards"]
    assert [shard["classes"] for shard in shards] == [dataset.classes] * len(folders)
    with forebay.Loader(dataset, 2, world="single", order="sequential", expected_epochs=1) as loader:
        labels = [dataset.classes[label] for batch in loader for label in batch["label"]]
    assert labels == [label for _, label in meant(dataset)]
    # The sidecar of these folders is no other set's.
    again = forebay.open(folders)
    assert meant(again) == meant(dataset)
    alone = forebay.open(folders[0])
    assert (alone.classes, [int(one["label"]) for one in alone]) == (
        sorted(classes[0]),
        list(range(len(classes[0]))),
    )


def test_a_mixture_numbers_the_classes_of_its_sources_together(tmp_path):
    sources = {
        name: forebay.open(write_classes(tmp_path / name, classes))
        for name, classes in (("A", ["cat", "dog"]), ("B", ["dog", "emu"]))
    }
    mixture = forebay.mix(sources)
    assert mixture.classes == ["cat", "dog", "emu"]
    assert all(name == label for name, label in meant(mixture))


def write_enumeration(path, members):
    with h5py.File(path, "w") as file:
        file.create_dataset("label", data=[0, 1], dtype=h5py.enum_dtype(members, "i4"))
    return path


def test_enumerations_of_hdf5_mean_the_same_in_all_files(tmp_path):
    one = write_enumeration(tmp_path / "0.h5", {"cat": 0, "dog": 1})
    same = write_enumeration(tmp_path / "1.h5", {"dog": 1, "cat": 0})
    other = write_enumeration(tmp_path / "2.h5", {"dog": 0, "cat": 1})
    assert [int(sample["label"]) for sample in forebay.open([one, same], sample_axis=0)] == [0, 1, 0, 1]
    with pytest.raises(forebay.FormatError, match="dog=0, cat=1") as refused:
        len(forebay.open([one, other], sample_axis=0))
    assert "cat=0, dog=1" in str(refused.value)
    assert "2.h5" in str(refused.value)
    many = [write_enumeration(tmp_path / f"{at}.h5", {f"c{n}": n + at for n in range(100)}) for at in (3, 4)]
    with pytest.raises(forebay.FormatError, match="100 members"):
        len(forebay.open(many, sample_axis=0))


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_dictionaries_are_values_in_all_files(tmp_path, ending):
    paths = []
    for number, values in enumerate((["cat", "dog"], ["dog", "emu"])):
        table = pa.table({"label": pa.array(values).dictionary_encode()})
        paths.append(tmp_path / f"{number}.{ending}")
        if ending == "parquet":
            pq.write_table(table, paths[-1])
        else:
            with pa.OSFile(str(paths[-1]), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
    assert [bytes(one["label"]) for one in forebay.open(paths)] == [b"cat", b"dog", b"dog", b"emu"]


def write_data(path, kind):
    """Write a sample of the fields ``data`` and ``other``, both b"a"."""
    if kind in ("parquet", "arrow"):
        table = pa.table({"data": [b"a"], "other": [b"a"]})
        if kind == "parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
    elif kind == "tar":
        with tarfile.open(path, "w") as archive:
            for name in ("data", "other"):
                member = tarfile.TarInfo(f"0.{name}")
                member.size = 1
                archive.addfile(member, io.BytesIO(b"a"))
    elif kind == "raw":
        path.write_bytes(b"aa")
    else:
        with h5py.File(path, "w") as file:
            for name in ("data", "other"):
                rows = file.create_dataset(name, 1, h5py.vlen_dtype("u1"))
                rows[0] = np.frombuffer(b"a", "u1")
    return path


@pytest.mark.parametrize("kind", ["parquet", "arrow", "tar", "hdf5", "raw"])
def test_a_field_that_is_called_data_is_like_any_other(tmp_path, kind):
    path = write_data(tmp_path / f"x.{kind}", kind)
    options = {"fields": {"data": ("u1", 1), "other": ("u1", 1)}, "format": "raw"} if kind == "raw" else {}
    dataset = forebay.open(path, **options)
    for sample in (dataset[0], dataset[0:1][0], dataset.__getitems__([0])[0]):
        assert [(name, type(value), value.tobytes()) for name, value in sample.items()] == [
            (name, np.ndarray, b"a") for name in ("data", "other")
        ]
    chosen = {"fields": {"data": ("u1", 2)}, "format": "raw"} if kind == "raw" else {"fields": ["data"]}
    alone = forebay.open(path, **chosen)[0]
    assert isinstance(alone["data"], np.ndarray)


def test_what_files_do_not_name_is_bytes(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"abcd")
    assert forebay.open(tmp_path / "x.bin", record_bytes=2)[1] == b"cd"
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "0.txt").write_bytes(b"a text")
    assert forebay.open(tmp_path / "flat")[0] == b"a text"
    assert forebay.open(write_classes(tmp_path / "A", ["cat"]))[0] == {"data": b"A cat", "label": 0}
