"""HDF5: elements of variable length, and strings, equal h5py's."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import forebay
from support.hdf5_files import check, library, refused, same


def test_strings_that_are_shorter_than_their_type_equal_h5py(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["one"] = np.array([b"a", b"bcd", b""], dtype="S3")
        file["rows"] = np.array([[b"a", b"b"], [b"", b"xyz"], [b"a", b""]], dtype="S3")
    check(tmp_path / "a.h5")


def rows_of(number, kind, seed):
    """Rows of varying length, of which some are empty."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 60, number) * random.integers(0, 2, number)
    lengths[number // 2] = 70_000
    rows = [random.integers(1, 100, length) for length in lengths]
    return [row.astype("u1").tobytes() if kind == "text" else row.astype(kind) for row in rows]


@pytest.mark.parametrize("kind", ["text", "u1", "<f4", "<i8"])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_elements_of_variable_length_equal_h5py(tmp_path, kind, libver):
    path = tmp_path / "x.h5"
    dtype = h5py.string_dtype() if kind == "text" else h5py.vlen_dtype(np.dtype(kind))
    layouts = [
        {},
        {"chunks": (7,), "maxshape": (None,)},
        {"chunks": (9,), "compression": "gzip", "shuffle": True},
        {"chunks": (100,), "shuffle": True},
    ]
    with h5py.File(path, "w", libver=libver, userblock_size=512 if libver == "latest" else 0) as file:
        for number, options in enumerate(layouts):
            one = file.create_dataset(f"{number}", (100,), dtype, **options)
            # A second writing leaves the first behind in the heap.
            for seed in range(2):
                for row, value in enumerate(rows_of(90, kind, number + seed)):
                    if options or seed or row % 3:
                        one[row] = value
        file.create_dataset("never", (100,), dtype)
        file["y"] = np.arange(100)
    with h5py.File(path) as file:
        wanted = {name: file[name][()] for name in file}

    def equal(found, wanted):
        wanted = np.frombuffer(wanted, "u1") if isinstance(wanted, bytes) else wanted
        return np.array_equal(found, wanted) and found.dtype == ("u1" if kind == "text" else kind)

    dataset = forebay.open(path)
    assert dataset.fields["0"] == ("uint8" if kind == "text" else np.dtype(kind).name, None)
    with forebay.Loader(dataset, batch_size=8, order="shuffle", world="single", expected_epochs=1) as loader:
        for batch in loader:
            for name in dataset.fields.keys() - {"y"}:
                assert all(map(equal, batch[name], wanted[name][batch.indices])), name
            assert np.array_equal(batch["y"], batch.indices)


def test_scalars_of_variable_length_are_fields_of_a_file_that_is_one_sample(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["image"], file["title"] = np.ones((1, 2)), "some text"
        file.create_dataset("box", (), h5py.vlen_dtype(np.dtype("<i4")))[()] = np.arange(3, dtype="<i4")
        file.create_dataset("never", (), h5py.string_dtype())
    sample = forebay.open(path, sample_axis=None)[0]
    assert bytes(sample["title"]) == b"some text"
    assert np.array_equal(sample["box"], [0, 1, 2])
    assert sample["box"].dtype == "<i4"
    assert sample["never"].size == 0
    assert np.array_equal(sample["image"], np.ones((1, 2)))


def test_a_string_of_variable_length_ends_at_its_first_nul_as_in_h5py(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = ["before", "between", "behind"]
    path.write_bytes(path.read_bytes().replace(b"between", b"bet\0een"))
    with h5py.File(path) as file:
        assert file["x"][1] == b"bet"
    assert [sample["x"].tobytes() for sample in forebay.open(path)] == [b"before", b"bet", b"behind"]


def test_a_damaged_heap_is_an_error_that_names_the_place(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = [f"{number}" * 30 for number in range(1000)]
    sound = path.read_bytes()
    last = sound.rindex(b"GCOL")
    for at, bytes_ in [
        (last, b"LOCG"),
        (last + 4, b"\2"),
        (last + 8, bytes(8)),
        (last + 16, bytes(2)),
        (last + 24, (1 << 63).to_bytes(8, "little")),
        (last + 24, bytes(8)),
    ]:
        damaged = bytearray(sound)
        damaged[at : at + len(bytes_)] = bytes_
        path.write_bytes(damaged)
        text = refused(path)
        assert "of dataset 'x' at offset" in text or "structure of dataset 'x' at" in text


def strings(pad, size=8):
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(size)
    kind.set_strpad(pad)
    return kind


@pytest.mark.parametrize("layout", ["contiguous", "chunked", "deflate", "compact", "bare edges"])
def test_what_stands_after_the_nul_of_a_string_is_no_part_of_it(tmp_path, layout):
    plain, member = strings(h5py.h5t.STR_NULLTERM), h5py.h5t.create(h5py.h5t.COMPOUND, 40)
    padded = strings(h5py.h5t.STR_NULLPAD)
    # Rooms between members, which libhdf5 leaves as they are or not.
    member.insert(b"a", 3, h5py.h5t.array_create(h5py.h5t.array_create(plain, (2,)), (1,)))
    member.insert(b"b", 20, padded)
    member.insert(b"c", 32, h5py.h5t.STD_I32LE)
    kinds = [plain, h5py.h5t.array_create(h5py.h5t.array_create(plain, (2,)), (3,)), member, padded]
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if layout == "compact":
        properties.set_layout(h5py.h5d.COMPACT)
    elif layout != "contiguous":
        properties.set_chunk((4,))
    if layout in ("deflate", "bare edges"):
        properties.set_shuffle()
    if layout == "deflate":
        properties.set_deflate(4)
    if layout == "bare edges":
        assert library().H5Pset_chunk_opts(properties.id, 2) >= 0
    path = tmp_path / "x.h5"
    random = np.random.default_rng(0)
    with h5py.File(path, "w", libver="latest") as file:
        for name, kind in zip(("plain", "arrays", "members", "padded"), kinds, strict=True):
            space = h5py.h5s.create_simple((10,))
            one = h5py.h5d.create(file.id, name.encode(), kind, space, properties)
            # As memory of the same type, so that libhdf5 converts nothing.
            junk = random.integers(0, 4, (10, kind.get_size()), dtype=np.uint8) * 31
            one.write(h5py.h5s.ALL, h5py.h5s.ALL, junk, mtype=kind)
    with h5py.File(path) as file:
        wanted = {name: file[name][()] for name in file}
    dataset = forebay.open(path)
    assert wanted["plain"].tobytes().count(0) > 40
    for index, sample in enumerate(dataset):
        for name in ("plain", "arrays", "padded"):
            assert same(sample[name], wanted[name][index : index + 1].reshape(wanted[name].shape[1:])), name
        for name in wanted["members"].dtype.names:
            assert sample["members"][name].tolist() == wanted["members"][index][name].tolist(), name
