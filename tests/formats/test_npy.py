"""npy and npz: what numpy writes is what comes out, in place; what is not read says why."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

import forebay
from support.ranks import work

SAMPLES = 53

TYPES = [
    "?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8",
    ">i2", ">u4", ">i8", ">f4", ">f8", "<c8", ">c16", "<M8[ns]", ">m8[25s]", "<M8[D]", "<U3", ">U2", "S5", "V4",
    np.dtype([("a", "<i4"), ("b", ">f8", (2,)), ("c", [("d", "S3"), ("é", "<u2")])]),
    np.dtype([("x", "u1"), ("y", "<f8")], align=True),
]  # fmt: skip
SHAPES = [(), (3,), (2, 1, 4)]


def values(dtype, shape, seed=0):
    """Elements of any type that differ and that the type can hold."""
    dtype = np.dtype(dtype)
    generator = np.random.default_rng(seed)
    count = int(np.prod(shape))
    if dtype.names or dtype.kind in "?bV":
        bits = generator.integers(0, 2, count * dtype.itemsize, dtype=np.uint8)
        return np.frombuffer(bits.tobytes(), dtype).reshape(shape).copy()
    return generator.integers(0, 99, count).astype(dtype.newbyteorder("=")).astype(dtype).reshape(shape)


def told(dtype):
    return dtype if isinstance(dtype, str) else "structured"


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    # By value: numpy does not copy the gaps of aligned structures.
    assert np.array_equal(found, expected)


def walk(dataset, order="sequential"):
    """All samples through a loader: field → rows by id."""
    rows = {}
    with forebay.Loader(
        dataset, 8, order=order, last_batch="partial", expected_epochs=1, world="single"
    ) as loader:
        for batch in loader:
            for position, number in enumerate(batch.indices):
                assert int(number) not in rows
                rows[int(number)] = {
                    # With the ellipsis a sample without axes stays an array of its type.
                    name: column[position, ...].copy()
                    for name, column in batch.items()
                }
    return [rows[number] for number in range(len(rows))]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=told)
def test_every_type_and_shape_comes_out_as_numpy_wrote_it(tmp_path, dtype, shape):
    array = values(dtype, (SAMPLES, *shape))
    np.save(tmp_path / "a.npy", array)
    dataset = forebay.open(tmp_path / "a.npy")
    assert (dataset.format, len(dataset), list(dataset.fields)) == ("npy", SAMPLES, ["data"])
    assert dataset.fields["data"][1] == shape
    for number in (0, 17, SAMPLES - 1):
        same(np.asarray(dataset[number]["data"]), array[number : number + 1].reshape(shape))
    for number, row in enumerate(walk(dataset)):
        same(np.asarray(row["data"]), array[number : number + 1].reshape(shape))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_is_read(tmp_path, version):
    array = values("<f4", (SAMPLES, 3))
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version=version)
    same(forebay.open(tmp_path / "a.npy")[7]["data"], array[7])


def test_a_header_of_thousands_of_fields_is_read(tmp_path):
    array = values(np.dtype([(f"field_{number}", "<i2") for number in range(4000)]), (3,))
    with pytest.warns(UserWarning, match=r"format 2\.0"):
        np.save(tmp_path / "a.npy", array)
    same(np.asarray(forebay.open(tmp_path / "a.npy")[2]["data"]), array[2:3].reshape(()))


@pytest.mark.parametrize("order", ["sequential", "group"])
def test_the_arrays_of_an_archive_are_the_fields(tmp_path, order):
    arrays = {
        "x": values("<f4", (SAMPLES, 5, 2)),
        "naïve/y": values("<i8", (SAMPLES,)),
        "when": values(">M8[ns]", (SAMPLES, 2)),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    dataset = forebay.open(tmp_path / "a.npz")
    assert (dataset.format, list(dataset.fields)) == ("npz", list(arrays))
    for number, row in enumerate(walk(dataset, order)):
        for name, array in arrays.items():
            same(np.asarray(row[name]), array[number : number + 1].reshape(array.shape[1:]))
    chosen = forebay.open(tmp_path / "a.npz", fields=["when", "x"])
    assert list(chosen.fields) == ["when", "x"]
    assert list(chosen[3]) == ["when", "x"]
    same(chosen[3]["x"], arrays["x"][3])


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("order", ["sequential", "group"])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_several_ranks_get_each_sample_of_all_shards_once(pool, tmp_path, suffix, order, ranks):
    parts = [values("<i4", (count, 3), seed=count) for count in (20, 1, 32)]
    for number, part in enumerate(parts):
        if suffix == "npy":
            np.save(tmp_path / f"part-{number}.npy", part)
        else:
            np.savez(tmp_path / f"part-{number}.npz", data=part, twice=2 * part)
    expected = np.concatenate(parts)
    options = {"batch_size": 4, "order": order, "last_batch": "partial"}
    found = pool.run(ranks, work.samples, path=str(tmp_path / f"part-*.{suffix}"), options=options)
    rows = {}
    for steps in found:
        for ids, fields in steps:
            for position, number in enumerate(ids):
                assert number not in rows
                rows[number] = {name: column[position] for name, column in fields.items()}
    assert sorted(rows) == list(range(SAMPLES))
    for number, row in rows.items():
        assert row["data"] == expected[number].tobytes()
        if suffix == "npz":
            assert row["twice"] == (2 * expected[number]).tobytes()


def test_an_index_reads_headers_only(tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype="<f4", shape=(100_000, 512))
    array.flush()
    report = forebay.open(tmp_path / "a.npy").native.build_index()
    assert report["samples"] == 100_000
    assert report["read_bytes"] < 4096
    assert report["sidecar_bytes"] < 8192


def test_what_follows_an_array_is_told(tmp_path, says):
    with (tmp_path / "a.npy").open("wb") as file:
        for number in range(2):
            np.save(file, values("<i4", (SAMPLES,), seed=number))
    dataset = forebay.open(tmp_path / "a.npy")
    path = tmp_path / "a.npy"
    size = path.stat().st_size // 2
    told = f"{path}: {size} bytes follow the array and are not read"
    with says(RuntimeWarning):
        assert len(dataset) == SAMPLES
    with says(RuntimeWarning):
        assert dataset.native.build_index()["warnings"] == [told]


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (np.array([1, "a", None], object), ()),
        (np.array([(1, None)], [("a", "i4"), ("b", "O")]), ()),
        (np.asfortranarray(np.zeros((3, 2))), ("[3, 2]",)),
        (np.zeros(()), ("()",)),
        (np.zeros((3, 0)), ("[3, 0]",)),
    ],
    ids=["objects", "objects in structures", "Fortran", "no axes", "no bytes"],
)
def test_what_cannot_be_read_in_place_is_refused(tmp_path, array, values, says):
    np.save(tmp_path / "a.npy", array)
    with says(forebay.FormatError, tmp_path / "a.npy", "npy", *values):
        forebay.open(tmp_path / "a.npy")


def test_one_axis_is_no_matter_of_order(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(values("<i4", (SAMPLES, 1))))
    assert len(forebay.open(tmp_path / "a.npy")) == SAMPLES


def test_archives_that_are_not_stored_or_do_not_fit_together_are_refused(tmp_path, says):
    x, y = np.zeros((4, 2)), np.zeros(4)
    np.savez_compressed(tmp_path / "a.npz", x=x)
    with says(forebay.FormatError):
        forebay.open(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=x, y=y, names=np.array(["one", "two"]))
    with says(forebay.FormatError, 4, 2):
        forebay.open(tmp_path / "b.npz")
    assert list(forebay.open(tmp_path / "b.npz", fields=["x", "y"]).fields) == ["x", "y"]
    with says(forebay.OptionError, "z"):
        forebay.open(tmp_path / "b.npz", fields=["z"])
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with says(forebay.FormatError):
        forebay.open(tmp_path / "c.npz")


def test_files_that_are_cut_or_claim_too_much_are_refused_with_the_place(tmp_path, says):
    np.save(tmp_path / "a.npy", np.zeros((5, 3)))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[:-1])
    with says(forebay.FormatError, 128, 120, 119):
        forebay.open(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(
        whole.replace(b"(5, 3), }" + b" " * 20, b"(9223372036854775807, 3), }  ")
    )
    with says(forebay.FormatError, 2):
        forebay.open(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", x=np.zeros(5))
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[:-30])
    with says(forebay.FormatError):
        forebay.open(tmp_path / "a.npz")


def test_a_name_that_another_file_beside_has_is_a_warning(tmp_path):
    for name in ("images", "labels"):
        np.save(tmp_path / f"{name}.npy", np.arange(3))
    with pytest.warns(RuntimeWarning, match=r"the name 'labels'; .*labels.npy is another file"):
        forebay.open(tmp_path / "images.npy", fields=["labels"])
    # A name that no file has is that of the field.
    assert list(forebay.open(tmp_path / "images.npy", fields=["pixels"]).fields) == ["pixels"]
    assert list(forebay.open(tmp_path / "labels.npy", fields=["labels"]).fields) == ["labels"]
