"""The sample axis of array files: the first axis, or none, so that a file is one sample."""

from __future__ import annotations

import json
import pickle
import resource
import warnings

import h5py
import numpy as np
import pytest

import forebay
from forebay import OptionError
from support import run_command as run

# A climate image and its mask, made small; how h5py is told to store them.
SHAPE = (12, 18, 4)
LAYOUTS = {
    "contiguous": {},
    "chunked": {"chunks": SHAPE},
    "tiles": {"chunks": (5, 7, 4)},
    "tiles, deflate": {"chunks": (5, 7, 3), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "tiles, never written": {"chunks": (5, 7, 4), "fillvalue": 3},
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(tmp_path / "cache"))


def image(number, shape=SHAPE):
    return np.random.default_rng(number).random(shape, np.float32)


def write_hdf5(directory, files=3, **options):
    """Files without a sample axis: an image, a mask that shares two axes with it, scalars."""
    directory.mkdir(exist_ok=True)
    for number in range(files):
        with h5py.File(directory / f"{number}.h5", "w") as file:
            if "fillvalue" in options:
                file.create_dataset("climate/data", SHAPE, "<f4", **options)
            else:
                file.create_dataset("climate/data", data=image(number), **options)
            file["climate/labels_0"] = (image(number)[:, :, 0] > 0.5).astype("u1")
            file["number"] = number
            file["name"] = np.bytes_(f"n{number}").astype("S8")
    return str(directory / "*.h5")


def write_npy(directory, files=3, shape=SHAPE, suffix=".npy"):
    directory.mkdir(exist_ok=True)
    for number in range(files):
        path = directory / f"{number}{suffix}"
        if suffix == ".npz":
            np.savez(path, data=image(number, shape), y=np.int64(number))
        else:
            np.save(path, image(number, shape))
    return str(directory / f"*{suffix}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_hdf5_file_is_one_sample_whatever_its_layout(tmp_path, layout):
    pattern = write_hdf5(tmp_path / "x", **LAYOUTS[layout])
    dataset = forebay.open(pattern, sample_axis=None)
    assert len(dataset) == 3
    assert {name: shape for name, (_, shape) in dataset.fields.items()} == {
        "climate/data": SHAPE,
        "climate/labels_0": SHAPE[:2],
        "name": (),
        "number": (),
    }
    for number, sample in enumerate(dataset):
        with h5py.File(dataset.paths[number]) as file:
            for name in dataset.fields:
                wanted = file[name][()]
                assert np.array_equal(sample[name], wanted), name
                assert sample[name].dtype == np.asarray(wanted, file[name].dtype).dtype
    assert dataset.native.verify()["bad"] == []
    with forebay.Loader(
        dataset, 2, order="sequential", last_batch="partial", expected_epochs=1, world="single"
    ) as loader:
        found = {
            int(number): row
            for batch in loader
            for number, row in zip(batch["number"], batch["climate/data"].copy(), strict=True)
        }
    for number, row in found.items():
        assert np.array_equal(row, dataset[number]["climate/data"])
    assert sorted(found) == [0, 1, 2]


def test_files_of_different_layouts_are_samples_of_one_dataset(tmp_path):
    paths = []
    for number, layout in enumerate(LAYOUTS):
        write_hdf5(tmp_path / str(number), files=1, **LAYOUTS[layout])
        paths.append(tmp_path / str(number) / "0.h5")
    dataset = forebay.open(paths, sample_axis=None, fields=["climate/data"])
    assert len(dataset) == len(LAYOUTS)
    for path, sample in zip(paths, dataset, strict=True):
        with h5py.File(path) as file:
            assert np.array_equal(sample["climate/data"], file["climate/data"][()])


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("shape", [(), (7,), SHAPE])
def test_each_numpy_file_is_one_sample(tmp_path, suffix, shape):
    dataset = forebay.open(write_npy(tmp_path / "x", 4, shape, suffix), sample_axis=None)
    assert len(dataset) == 4
    assert dataset.fields["data"] == ("float32", shape)
    for number, sample in enumerate(dataset):
        assert np.array_equal(sample["data"], image(number, shape))
        assert suffix == ".npy" or int(sample["y"]) == number


@pytest.mark.parametrize("write", [write_hdf5, write_npy])
def test_a_sidecar_serves_only_the_reading_that_it_was_made_for(tmp_path, write):
    pattern = write(tmp_path / "x")
    fields = {"fields": ["climate/data"]} if write is write_hdf5 else {}
    for beside in (False, True):
        whole, rows = (forebay.open(pattern, sample_axis=axis, **fields) for axis in (None, 0))
        assert whole.fingerprint != rows.fingerprint
        assert rows.fingerprint == forebay.open(pattern, **fields).fingerprint
        for one, other, samples in ((whole, rows, 3 * SHAPE[0]), (rows, whole, 3)):
            one.native.build_index(beside=beside)
            with warnings.catch_warnings():
                # A sidecar of the other reading is passed over, with a warning where it stands
                # beside the data.
                warnings.simplefilter("ignore")
                assert len(pickle.loads(pickle.dumps(other))) == samples


def test_the_reading_survives_pickling(tmp_path):
    dataset = forebay.open(write_npy(tmp_path / "x"), sample_axis=None)
    again = pickle.loads(pickle.dumps(dataset))
    assert (again.fingerprint, len(again)) == (dataset.fingerprint, 3)


def disagree(world, pipe, pattern, axes):
    dataset = forebay.open(pattern, sample_axis=axes[world["rank"]])
    try:
        with forebay.Loader(dataset, 1, world=forebay.World(**world)):
            return None
    except forebay.RendezvousError as error:
        return str(error)


def test_ranks_that_count_differently_are_told_so(pool, tmp_path):
    pattern = write_npy(tmp_path / "x")
    found = pool.run(2, disagree, pattern=pattern, axes=[None, 0])
    assert all(text and "dataset" in text for text in found), found


def test_many_files_of_one_shape_without_other_evidence_are_a_warning_that_names_both_readings(tmp_path):
    pattern = write_npy(tmp_path / "x")
    with pytest.warns(RuntimeWarning) as caught:
        assert len(forebay.open(pattern)) == 3 * SHAPE[0]
    (text,) = (str(one.message) for one in caught)
    assert "read as 12 samples per file, 36 in all, not as 3 samples, one per file" in text
    assert "sample_axis=None" in text
    assert "sample_axis=0" in text
    # Not only when the index is built.
    with pytest.warns(RuntimeWarning, match="sample_axis=None"):
        len(forebay.open(pattern))
    assert len(forebay.open(pattern, sample_axis=0)) == 36
    assert len(forebay.open(pattern, sample_axis=np.int64(0))) == 36


def test_hdf5_files_whose_fields_share_more_than_the_first_axis_are_doubted(tmp_path):
    pattern = write_hdf5(tmp_path / "x")
    fields = ["climate/data", "climate/labels_0"]
    with pytest.warns(RuntimeWarning, match=r'"climate/data" \(12, 18, 4\), "climate/labels_0" \(12, 18\)'):
        assert len(forebay.open(pattern, fields=fields)) == 36
    # By themselves the fields differ in their first dimension, and the error knows the other
    # reading.
    with pytest.raises(OptionError, match="sample_axis=None"):
        len(forebay.open(pattern, fields=[*fields, "name"]))


def test_shards_with_labels_are_not_doubted(tmp_path):
    for number in range(4):
        np.savez(tmp_path / f"{number}.npz", x=image(number, (20, 8, 8)), y=np.arange(20))
    assert len(forebay.open(tmp_path / "*.npz")) == 80


@pytest.mark.parametrize("axis", [1, -1, 0.0, False, True, "none", "0", (0,)])
def test_other_axes_are_refused_by_name(tmp_path, axis, says):
    pattern = write_npy(tmp_path / "x")
    with says(OptionError, "sample_axis=", "auto", 0):
        forebay.open(pattern, sample_axis=axis)


def test_formats_without_axes_refuse_one_sample_per_file(small_lmdb, tmp_path, says):
    with says(OptionError):
        forebay.open(small_lmdb, sample_axis=None)
    assert len(forebay.open(small_lmdb, sample_axis=0)) == 100
    (tmp_path / "x.bin").write_bytes(bytes(12))
    with says(OptionError):
        forebay.open(tmp_path / "x.bin", record_bytes=4, sample_axis=None)


def test_samples_that_chunks_cut_too_finely_are_refused_with_a_way_out(tmp_path, says):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (2048, 1024, 2), "u1", chunks=(2048, 1024, 1), compression="gzip")
    with says(forebay.FormatError) as caught:
        len(forebay.open(tmp_path / "x.h5", sample_axis=None))
    assert "h5repack" in str(caught.value)


def test_inspect_shows_how_samples_were_counted(capsys, tmp_path, small_lmdb):
    pattern = write_npy(tmp_path / "x")
    status, out, _ = run(capsys, "inspect", pattern, "--sample-axis", "none", "--json")
    found = json.loads(out)
    assert (status, found["samples"], found["counted_by"]) == (0, 3, "file")
    assert [shard["samples"] for shard in found["shards"]] == [1, 1, 1]
    assert found["warnings"] == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = json.loads(run(capsys, "inspect", pattern, "--json")[1])
    assert (found["samples"], found["counted_by"]) == (36, "first axis")
    assert "sample_axis=None" in found["warnings"][0]
    _, out, _ = run(capsys, "inspect", pattern, "--sample-axis", "0")
    assert "first axis" in next(line for line in out.splitlines() if line.startswith("samples"))
    assert json.loads(run(capsys, "inspect", small_lmdb, "--json")[1])["counted_by"] == "record"


@pytest.mark.parametrize("command", ["index", "inspect", "verify"])
def test_every_command_that_opens_files_knows_the_sample_axis(capsys, tmp_path, command):
    pattern = write_hdf5(tmp_path / "x")
    status, out, err = run(capsys, command, pattern, "--sample-axis", "none", "--json")
    assert (status, json.loads(out)["samples"]) == (0, 3), err


@pytest.mark.parametrize("order", ["C", "F"])
def test_convert_gathers_files_that_are_one_sample_each(capsys, tmp_path, order):
    (tmp_path / "x").mkdir()
    for number in range(3):
        np.save(tmp_path / "x" / f"{number}.npy", np.asarray(image(number), order=order))
    files = sorted((tmp_path / "x").iterdir())
    status, _, err = run(capsys, "convert", *files, tmp_path / "all.npy", "--sample-axis", "none")
    assert status == 0, err
    assert np.array_equal(np.load(tmp_path / "all.npy"), [image(number) for number in range(len(files))])


def test_more_files_than_the_soft_limit_on_open_files_are_one_dataset(tmp_path):
    pattern = write_npy(tmp_path / "x", 150, (2,))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        assert len(forebay.open(pattern, sample_axis=None)) == 150
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 128
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
