"""HDF5: each sample equals h5py's, over layouts, filters, types, shapes and file versions."""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest

import forebay
from forebay._formats import hdf5_structure as hdf5
from forebay._formats.hdf5_groups import SampleGroups, sample_groups

# What h5py is told, by the filters that come of it.
FILTERS = {
    "none": {},
    "deflate": {"compression": "gzip"},
    "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True},
    "shuffle, deflate, fletcher32": {"shuffle": True, "compression": "gzip", "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "shuffle, lzf": {"shuffle": True, "compression": "lzf"},
    "lz4": dict(hdf5plugin.LZ4()),
    "bitshuffle": dict(hdf5plugin.Bitshuffle(cname="none")),
    "bitshuffle, lz4": dict(hdf5plugin.Bitshuffle(cname="lz4")),
    "bitshuffle, zstd": dict(hdf5plugin.Bitshuffle(cname="zstd")),
    "zstd": dict(hdf5plugin.Zstd()),
}

# Shapes of data sets and of their chunks: whole rows, tiles, edges of both, one chunk, more than
# the data.
SHAPES = [
    ((40,), (7,)),
    ((23, 5), (4, 5)),
    ((23, 5), (4, 3)),
    ((10, 4, 6), (1, 4, 6)),
    ((10, 4, 6), (3, 2, 4)),
    ((6, 3, 4, 5), (6, 3, 4, 5)),
    ((6, 3, 4, 5), (4, 2, 3, 2)),
]

TYPES = [
    *("?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"),
    *(">i4", ">f8", "S5", "<c8", "V3"),
    [("place", "<i4"), ("value", ">f4", (2,))],
]


# A file system whose locks fail with the number in FLOCK.
FLOCK = """
#include <errno.h>
#include <stdlib.h>
int flock(int file, int what) { errno = atoi(getenv("FLOCK")); return -1; }
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(tmp_path / "cache"))


def values(shape, dtype, seed=0):
    """Values of which some repeat, so that compressors have something to do."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(seed)
    if dtype == np.dtype("?"):
        return random.random(shape) < 0.5
    if dtype.kind in "iuf":
        return random.integers(0, 100, shape).astype(dtype)
    items = random.integers(0, 4, (*shape, dtype.itemsize), dtype=np.uint8)
    # Nothing but text in strings: zeros at their end are not seen by numpy.
    items += 65 if dtype.kind == "S" else 0
    return items.view(dtype).reshape(shape)


def same(found, wanted):
    """Whether two values are the same to the bit, and of one type and shape."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    return found.tobytes() == wanted.tobytes()


def check(path, **options):
    """Compare all samples with h5py, forwards and one by one."""
    dataset = forebay.open(path, **options)
    assert dataset.format == "hdf5"
    with h5py.File(path) as file:
        wanted = {name: file[name][()] for name in dataset.fields}
    for name, rows in wanted.items():
        assert len(dataset) == len(rows)
        told, shape = dataset.fields[name]
        assert shape == rows.shape[1:]
        assert told == rows.dtype.name or not rows.dtype.isnative or rows.dtype.kind not in "biuf"
    for index, sample in enumerate(dataset):
        assert set(sample) == set(wanted)
        for name, rows in wanted.items():
            assert same(sample[name], rows[index, ...]), (name, index)
    return dataset


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("name", FILTERS)
def test_chunks_of_every_filter_and_shape_equal_h5py(tmp_path, name, libver):
    for number, (shape, chunks) in enumerate(SHAPES):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w", libver=libver) as file:
            for dtype in ("<f4", "u1", "<i8"):
                file.create_dataset(dtype[-2:], data=values(shape, dtype), chunks=chunks, **FILTERS[name])
        check(path)


@pytest.mark.parametrize("layout", ["contiguous", "compact", "chunked", "tiled"])
def test_every_type_equals_h5py(tmp_path, layout):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        for number, dtype in enumerate(TYPES):
            data = values((9, 4), dtype, number)
            if layout == "compact":
                plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                plist.set_layout(h5py.h5d.COMPACT)
                kind = h5py.h5t.py_create(data.dtype, logical=True)
                space = h5py.h5s.create_simple(data.shape)
                h5py.Dataset(h5py.h5d.create(file.id, f"{number}".encode(), kind, space, plist))[...] = data
            else:
                chunks = {"contiguous": None, "chunked": (4, 4), "tiled": (2, 3)}[layout]
                options = {"shuffle": True, "compression": "gzip"} if chunks else {}
                file.create_dataset(f"{number}", data=data, chunks=chunks, **options)
    check(path)


@pytest.mark.parametrize("chunks", [None, (2,)])
def test_arrays_of_arrays_equal_h5py(tmp_path, chunks):
    path = tmp_path / "x.h5"
    data = values((5, 4, 2, 3), "<i4")
    with h5py.File(path, "w") as file:
        inner = h5py.h5t.array_create(h5py.h5t.STD_I32LE, (2, 3))
        kind = h5py.h5t.array_create(inner, (4,))
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunks:
            properties.set_chunk(chunks)
        one = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((5,)), properties)
        one.write(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=kind)
    assert check(path).fields["x"] == ("int32", (4, 2, 3))


def test_strings_that_are_shorter_than_their_type_equal_h5py(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["one"] = np.array([b"a", b"bcd", b""], dtype="S3")
        file["rows"] = np.array([[b"a", b"b"], [b"", b"xyz"], [b"a", b""]], dtype="S3")
    check(tmp_path / "a.h5")


def test_places_behind_a_user_block_are_right(tmp_path):
    for libver, bytes_ in itertools.product(("earliest", "latest"), (512, 4096)):
        path = tmp_path / f"{libver}{bytes_}.h5"
        with h5py.File(path, "w", userblock_size=bytes_, libver=libver) as file:
            file["plain"] = values((30, 8), "<f4")
            file.create_dataset("cut", data=values((30, 8), "<f4"), chunks=(7, 8), compression="gzip")
            file.create_dataset("never", (30, 8), "<i4", fillvalue=7)
        with path.open("r+b") as file:
            file.write(b"user block " * 40)
        check(path)


@pytest.mark.parametrize("libver", ["earliest", "v108", "v110", "latest"])
@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_every_chunk_index_gives_the_places_that_h5py_reads(tmp_path, axes, libver):
    # One unlimited axis: an extensible array; several: a B-tree; none: a fixed array, one chunk, or
    # no index. Up to v108: always a B-tree of version 1.
    random = np.random.default_rng(axes)
    for number, filters in enumerate(FILTERS[name] for name in list(FILTERS)[axes % 2 : 5 : 2]):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w", libver=(libver, "latest"), userblock_size=512 * (number % 2)) as file:
            rows = int(random.integers(1, 20))
            early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            for free in [*range(axes), *itertools.combinations(range(axes), 2), (), None]:
                shape = (rows, *random.integers(1, 10, axes - 1).tolist())
                most = [extent + int(random.integers(0, 3)) * 7 for extent in shape]
                chunks = tuple(int(random.integers(1, extent + 1)) for extent in shape)
                for axis in (free,) if isinstance(free, int) else free or ():
                    most[axis] = None
                name = f"{len(file)} of maxshape {most}, chunks {chunks}"
                options = {**filters, "dcpl": early if free is None else None}
                one = file.create_dataset(
                    name, shape, "<i4", maxshape=tuple(most), chunks=chunks, fillvalue=7, **options
                )
                for _ in range(2):
                    first = random.integers(0, shape)
                    part = tuple(map(slice, first, random.integers(first, shape) + 1))
                    one[part] = random.integers(0, 9, one[part].shape)
        check(path)


def test_a_long_extensible_array_of_a_later_axis_gives_the_places_that_h5py_reads(tmp_path):
    # Enough chunks for its blocks of all kinds, in an order that is not that of the array.
    path = tmp_path / "x.h5"
    data = values((3, 2000), "<i4")
    with h5py.File(path, "w", libver="latest") as file:
        one = file.create_dataset("x", data.shape, "<i4", chunks=(2, 1), maxshape=(9, None))
        for column in np.random.default_rng(0).permutation(2000)[:1900]:
            one[:, column] = data[:, column]
        one.resize((3, 1700))
    check(path)


def test_chunks_that_h5py_reads_from_other_places_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", data=values((8, 6), "<i4"), chunks=(2, 3), maxshape=(8, None))
        file.create_dataset("y", data=values((8, 6), "<i4"), chunks=(2, 3))
    # As a libhdf5 that reports some third thing, or an index that has chunks outside the shape.
    monkeypatch.setattr(hdf5._Dataset, "_of_moved_axis", lambda _, first: [first[::-1]])
    for name in "xy":
        if name == "y":
            monkeypatch.setattr(hdf5._Dataset, "_holds", lambda *_: False)
        text = refused(path, fields=[name])
        assert f"{path}: dataset '{name}' with chunks elsewhere than h5py reads them" in text
        assert "hint: compare it" in text


def test_what_was_never_written_is_the_fill_value(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        for name, chunks in (("plain", None), ("cut", (4, 2)), ("rows", (4, 5))):
            file.create_dataset(name, (30, 5), "<i4", chunks=chunks, fillvalue=-3)
        file.create_dataset("zero", (30,), "<f8", chunks=(7,))
        for name in ("cut", "rows"):
            file[name][9:14] = values((5, 5), "<i4")
    check(path)


def test_chunks_that_skipped_a_filter_are_known_by_their_mask(tmp_path):
    path = tmp_path / "x.h5"
    noise = np.random.default_rng(1).integers(0, 1 << 31, (40, 64)).astype("<i4")
    noise[:20] = 5
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=noise, chunks=(4, 64), compression="lzf")
        file.create_dataset("y", data=noise, chunks=(4, 64), shuffle=True, compression="lzf", fletcher32=True)
        file.create_dataset("z", (40, 64), "<i4", chunks=(20, 64), compression="gzip", shuffle=True)
        file["z"][:20] = noise[:20]
        file["z"].id.write_direct_chunk((20, 0), noise[20:].tobytes(), 3)
        assert {file["x"].id.get_chunk_info(number).filter_mask for number in range(10)} == {0, 1}
    check(path)


def test_chunks_at_the_edge_that_bear_no_filter_are_found_out(tmp_path):
    # As H5Pset_chunk_opts leaves them: stored raw under a mask that says otherwise.
    path = tmp_path / "x.h5"
    data = values((10, 6), "<i4")
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", data=data, chunks=(4, 6), shuffle=True)
    found, table = _described(path)
    assert found["datasets"][0]["layout"]["chunked"]["chunks"] == 3
    # A shuffled chunk at the edge has the length of a bare one, and is none.
    assert [mask for *_, mask in np.frombuffer(table, hdf5._CHUNK).tolist()] == [0, 0, 0]
    check(path)


def library():
    """Return the libhdf5 that h5py has loaded, for what h5py has no function for."""
    with Path("/proc/self/maps").open() as maps:
        paths = {line.split()[-1] for line in maps if re.search(r"/libhdf5[-.][^/]*$", line.strip())}
    (path,) = paths
    found = ctypes.CDLL(path)
    found.H5Pset_chunk_opts.argtypes = [ctypes.c_int64, ctypes.c_uint]
    return found


@pytest.mark.parametrize("shape", [(10, 6), (10, 7), (9, 5), (8, 6)])
@pytest.mark.parametrize("filters", ["deflate", "shuffle", "both"])
def test_chunks_at_the_edge_that_libhdf5_left_without_filters_equal_h5py(tmp_path, shape, filters):
    path = tmp_path / "x.h5"
    dont_filter_partial_chunks = 2
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((4, 3))
    if filters != "deflate":
        properties.set_shuffle()
    if filters != "shuffle":
        properties.set_deflate(4)
    assert library().H5Pset_chunk_opts(properties.id, dont_filter_partial_chunks) >= 0
    with h5py.File(path, "w", libver="latest") as file:
        space = h5py.h5s.create_simple(shape)
        one = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, properties)
        one.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values(shape, "<i4")))
    check(path)
    _, table = _described(path)
    bare = (np.frombuffer(table, hdf5._CHUNK)["mask"] == 0xFFFFFFFF).any()
    assert bare == (shape != (8, 6))


def test_h5py_that_is_too_old_is_refused_by_its_version(tmp_path, monkeypatch, says):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10)
    monkeypatch.setattr(h5py.h5d, "DatasetID", object)
    with says(forebay.ForebayError, "3.11", replace={r"found [\d.]+\d": "found VERSION"}):
        len(forebay.open(path))


def test_a_chunk_whose_bytes_are_bare_is_marked(tmp_path):
    path = tmp_path / "x.h5"
    data = values((10, 6), "<i4")
    with h5py.File(path, "w") as file:
        plain = file.create_dataset("plain", data=data, chunks=(4, 6))
        places = [plain.id.get_chunk_info(number) for number in range(3)]
        with path.open("rb", buffering=0) as raw:
            file.flush()
            one = hdf5._Dataset(plain, "plain", raw, 0)
            first = np.array([place.chunk_offset for place in places])
            table = np.zeros(3, hdf5._CHUNK)
            table["offset"] = [place.byte_offset for place in places]
            table["length"] = [place.size for place in places]
            one._find_bare_edges(first, table)
    # Only the last one reaches out of the data set.
    assert table["mask"].tolist() == [0, 0, 0xFFFFFFFF]


def _described(path, fields=()):
    bytes_ = hdf5.find(str(path), list(fields))
    length = int.from_bytes(bytes_[:4], "little")
    return json.loads(bytes_[4 : 4 + length]), bytes_[4 + length :]


def test_fields_are_chosen_by_path_and_groups_are_part_of_it(tmp_path, says):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["train/images"] = values((12, 3, 3), "u1")
        file["train/labels"] = values((12,), "<i4")
        file["mean"] = values((3,), "<f4")
        file["scalar"] = 5
        file["link"] = h5py.SoftLink("/train/labels")
    with says(forebay.OptionError) as caught:
        len(forebay.open(path))
    assert "fields=" in str(caught.value)
    assert list(check(path, fields=["train/labels", "train/images"]).fields) == [
        "train/labels",
        "train/images",
    ]
    check(path, fields=["link", "train/images"])
    check(path, fields=["mean"])
    with says(forebay.OptionError, "test/labels") as caught:
        len(forebay.open(path, fields=["test/labels"]))
    assert "train/labels" in str(caught.value)
    with says(forebay.OptionError):
        len(forebay.open(path, fields=["train/labels", "mean"]))
    with says(forebay.OptionError):
        len(forebay.open(path, fields=["scalar"]))


@pytest.mark.parametrize("template", ["{}/{}", "sample_{:04d}/{}", "data/demo-{}/obs/{}", "{:x}f/{}"])
@pytest.mark.parametrize("label", ["rows", "scalar", "none"])
def test_groups_that_are_samples_are_refused_with_the_way_out(tmp_path, template, label):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        for number in range(20):
            file[template.format(number + 1, "image")] = values((3, 8), "u1", number)
            if label != "none":
                file[template.format(number + 1, "label")] = number if label == "scalar" else [number] * 3
    text = refused(path)
    assert "one group per sample is not supported: 20 groups such as" in text
    assert "forebay convert" in text
    assert "fields=[...]" in text
    check(path, fields=[template.format(7, "image"), template.format(8, "image")])


def test_groups_of_samples_are_told_from_groups_of_fields():
    for is_found, shapes in [
        (True, {"0/x": (5,), "1/x": (5,)}),
        (True, {"0/x": (5,), "1/x": (5,), "keys": (5,)}),
        (True, {"0/x": (5,), "0/y": (5,), "1/x": (5,)}),
        (True, {"a/0/x": (5, 2), "a/1/x": (5, 2), "b/0/x": (5, 2)}),
        (
            True,
            {
                f"view_{number}/{name}": shape
                for number in range(3)
                for name, shape in [("x", (5,)), ("y", ())]
            },
        ),
        (True, {f"view_{number}/x": (5 + number,) for number in range(3)}),
        (True, {f"{chr(97 + number)}/x": (5,) for number in range(16)}),
        (False, {f"{chr(97 + number)}/x": (50,) for number in range(16)}),
        (False, {f"{chr(97 + number)}/x": (5,) for number in range(15)}),
        (False, {f"camera_{number}/{name}": (100, 3) for number in range(4) for name in "xy"}),
        (False, {"train/x": (5,), "train/y": (), "test/x": (5,), "test/y": ()}),
        (False, {"0/x": (5,), "1/y": (5,)}),
        (False, {"0/x": (5,), "1/x": (5, 5)}),
        (False, {"0/x": (5,)}),
        (False, {"x": (5,), "y": (5,)}),
        (False, {}),
    ]:
        assert (sample_groups(shapes) is not None) == is_found, shapes
    shapes = {f"a/{number}/b/x": () for number in (10, 9, 100)}
    assert sample_groups(shapes) == SampleGroups(("a/9", "a/10", "a/100"), ("b/x",))


def test_groups_of_different_shapes_are_refused_without_a_way_that_does_not_lead_anywhere(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        for number in range(3):
            file[f"demo_{number}/actions"] = values((5 + number, 2), "<f4")
    text = refused(path)
    assert "shapes of the groups differ" in text
    assert "convert" not in text
    check(path, fields=["demo_1/actions"])


def test_several_files_of_different_layouts_are_one_data_set(tmp_path, says):
    layouts = [
        {},
        {"chunks": (4, 6)},
        {"chunks": (5, 4), "compression": "gzip"},
        {"chunks": (4, 6), "shuffle": True},
    ]
    paths, wanted = [], []
    for number, options in enumerate(layouts):
        data = values((10 + number, 6), "<f4", number)
        paths.append(tmp_path / f"{number}.h5")
        with h5py.File(paths[-1], "w") as file:
            file.create_dataset("x", data=data, **options)
            file["y"] = np.arange(len(data))
        wanted.append(data)
    dataset = forebay.open(tmp_path / "*.h5")
    whole = np.concatenate(wanted)
    assert len(dataset) == len(whole)
    for index in (*range(len(whole)), -1):
        assert same(dataset[index]["x"], whole[index])
    with h5py.File(tmp_path / "9.h5", "w") as file:
        file["x"] = values((10, 7), "<f4")
        file["y"] = np.arange(10)
    with says(forebay.FormatError):
        len(forebay.open(tmp_path / "*.h5"))


def refused(path, **options):
    """Return how a file is refused."""
    with pytest.raises(forebay.FormatError) as caught:
        len(forebay.open(path, **options))
    return str(caught.value)


def test_what_cannot_be_read_in_place_is_refused_by_name(tmp_path):
    numbers = itertools.count()

    def one(make):
        path = tmp_path / f"{next(numbers)}.h5"
        with h5py.File(path, "w") as file:
            make(file)
        return refused(path)

    for shape, kind, is_converted in (
        ((2,), h5py.vlen_dtype(np.dtype(">i4")), True),
        ((2, 2), h5py.string_dtype(), False),
        ((2,), h5py.vlen_dtype(h5py.string_dtype()), False),
    ):
        text = one(lambda file, shape=shape, kind=kind: file.create_dataset("x", shape, dtype=kind))
        axes = f" in an array of shape {shape}" if len(shape) > 1 else ""
        assert f"'x' with elements of variable length{axes} is not supported" in text
        assert "fields=" in text
        assert ("forebay convert" in text) == is_converted
    text = one(lambda file: file.create_dataset("x", (2,), h5py.string_dtype(), fillvalue="abc", chunks=(1,)))
    assert "'x' with a fill value of variable length is not supported" in text
    text = one(lambda file: file.create_dataset("x", data=["a"] * 99, chunks=(9,), compression="lzf"))
    assert "'x' with elements of variable length behind filters is not supported: lzf" in text
    text = one(lambda file: file.create_dataset("x", (2,), dtype=h5py.ref_dtype))
    assert "reference" in text
    outside = str(tmp_path / "outside.bin")
    text = one(lambda file: file.create_dataset("x", (4,), "<i4", external=[(outside, 0, 16)]))
    assert "external data" in text
    assert "outside.bin" in text
    layout = h5py.VirtualLayout(shape=(4,), dtype="<i4")
    layout[:] = h5py.VirtualSource("source.h5", "x", shape=(4,))
    text = one(lambda file: file.create_virtual_dataset("x", layout))
    assert "virtual data is not supported: source.h5" in text
    text = one(lambda file: file.create_dataset("x", data=np.arange(100), chunks=(10,), scaleoffset=3))
    assert "filter 6 (scaleoffset)" in text
    blosc = hdf5plugin.Blosc()
    text = one(lambda file: file.create_dataset("x", data=np.zeros(9000), chunks=(3000,), **blosc))
    assert "filter 32001 (blosc" in text

    def odd(file):
        kind = h5py.h5t.STD_I32LE.copy()
        kind.set_precision(20)
        h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((4,)))

    assert "elements that have to be converted" in one(odd)
    assert "no dataset with a first dimension" in one(lambda file: file.create_group("empty"))
    text = one(lambda file: file.create_dataset("x", data=values((4, 6000, 300), "u1"), chunks=(4, 6000, 1)))
    assert "runs of bytes" in text
    # The loader ignores a dataset that is not requested.
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["names"] = [["a", "b"]] * 2
        file["x"] = np.arange(2)
    check(path, fields=["x"])


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
    with forebay.Loader(dataset, batch_size=8, order="shuffle", world="single", epochs=1) as loader:
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


@pytest.mark.parametrize("options", [{}, {"chunks": (3,), "compression": "gzip"}], ids=str)
def test_members_of_a_compound_are_read_in_the_order_of_their_places(tmp_path, options):
    path = tmp_path / "x.h5"
    dtype = np.dtype(
        {"names": ["b", "a", "c"], "formats": ["<i4", "<f8", "S3"], "offsets": [8, 0, 14], "itemsize": 18}
    )
    wanted = np.zeros(7, dtype)
    wanted["a"], wanted["b"], wanted["c"] = np.arange(7) * 1.5, np.arange(7), b"xyz"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=wanted, **options)
    dataset = forebay.open(path)
    for number in range(7):
        found = dataset[number]["x"]
        assert all(found[name] == wanted[number][name] for name in "abc")


def test_a_file_of_more_datasets_than_a_sample_has_fields_is_refused(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        for number in range(1025):
            file[f"{number}"] = [number]
    with pytest.raises(
        forebay.FormatError, match=r"more than 1024 fields is not supported: 1025.*\n.*fields="
    ):
        len(forebay.open(path))
    assert forebay.open(path, fields=["7", "1024"])[0] == {"7": 7, "1024": 1024}


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


def test_files_of_other_drivers_and_links_to_other_files_are_refused(tmp_path):
    with h5py.File(tmp_path / "part%d.h5", "w", driver="family", memb_size=2048) as file:
        file["x"] = values((64, 16), "<f4")
    assert "part0.h5" in refused(tmp_path / "part0.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(5)
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["x"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
    assert "link to another file" in refused(tmp_path / "link.h5", fields=["x"])


def test_a_file_that_a_writer_has_open_is_refused(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["x"] = np.arange(5)
        file.flush()
        file.swmr_mode = True
        assert "a file that a writer has open" in refused(path)
    check(path)


def test_a_file_system_without_locks_does_not_matter_but_a_held_lock_does(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(5)
    (tmp_path / "flock.c").write_text(FLOCK)
    command = ["gcc", "-shared", "-fPIC", "-o", tmp_path / "flock.so", tmp_path / "flock.c"]
    subprocess.run(command, check=True)
    code = (
        "import os, sys, forebay\nfrom forebay._formats import hdf5_structure\n"
        "for number in sys.argv[2:]:\n"
        "    os.environ['FLOCK'] = number\n"
        "    before = dict(os.environ)\n"
        "    print(b'contiguous' in hdf5_structure.find(sys.argv[1], []))\n"
        "    assert dict(os.environ) == before\n"
    )
    numbers = [errno.EROFS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO, errno.EAGAIN]
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "x.h5", *map(str, numbers)],
        env={**os.environ, "LD_PRELOAD": str(tmp_path / "flock.so")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n" * 5
    assert f"cannot read the HDF5 file: [Errno {errno.EAGAIN}]" in done.stderr


@pytest.mark.parametrize("locking", [None, True, False, "best-effort"])
def test_a_file_that_this_process_has_open_is_opened_however_it_is_locked(tmp_path, locking):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(5)
    with h5py.File(path, "r", locking=locking):
        assert len(forebay.open(path)) == 5


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


def test_cut_and_damaged_files_are_an_error_that_names_the_place(tmp_path):
    path = tmp_path / "x.h5"
    data = values((64, 100), "<f4")
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "x", data=data, chunks=(4, 100), shuffle=True, compression="gzip", fletcher32=True
        )
        place = file["x"].id.get_chunk_info(3)
    sound = path.read_bytes()
    for length in (0, 100, len(sound) // 2, len(sound) - 1):
        cut = tmp_path / f"cut{length}.h5"
        cut.write_bytes(sound[:length])
        text = refused(cut, format="hdf5")
        assert f"cut{length}.h5" in text
        assert "at offset" in text
    dataset = check(path)
    damaged = bytearray(sound)
    damaged[place.byte_offset + 20] ^= 1
    status = path.stat()
    path.write_bytes(damaged)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    # What was decoded before is kept; the warning is that of the time of the inode.
    with pytest.warns(RuntimeWarning, match=r"x.h5 may have been rewritten"):
        assert same(dataset[13]["x"], data[13])
    with pytest.raises(forebay.FormatError) as caught:
        forebay.open(path)[13]
    assert f"fletcher32 of a chunk of {place.size} bytes: checksum at offset {place.byte_offset}" in str(
        caught.value
    )
    with pytest.warns(RuntimeWarning, match=r"x.h5 may have been rewritten"):
        assert same(dataset[3]["x"], data[3])


def test_h5py_is_needed_only_where_there_is_no_sidecar(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(40).reshape(10, 4), chunks=(3, 4), compression="gzip")
    code = (
        "import sys; sys.modules['h5py'] = None\nimport forebay\n"
        "dataset = forebay.open(sys.argv[1])\nprint(dataset[7]['x'].tolist())"
    )
    run = [sys.executable, "-c", code, str(path)]
    failed = subprocess.run(run, capture_output=True, text=True, check=False)
    assert "pip install 'forebay[hdf5]'" in failed.stderr
    len(forebay.open(path))
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "[28, 29, 30, 31]\n"


def test_extents_name_the_chunks_that_hold_a_sample(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values((10, 8), "<f4"), chunks=(4, 4), compression="gzip")
        file["y"] = np.arange(10)
        chunks = [file["x"].id.get_chunk_info_by_coord((4, column)) for column in (0, 4)]
        offset = file["y"].id.get_offset()
    wanted = [(str(path), chunk.byte_offset, chunk.size) for chunk in chunks]
    assert forebay.open(path).extents(6) == [*wanted, (str(path), offset + 48, 8)]


def test_verify_reads_every_chunk_and_names_the_bad_samples(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "x", data=values((50, 30), "<f8"), chunks=(7, 30), compression="gzip", fletcher32=True
        )
        place = file["x"].id.get_chunk_info(2)
    dataset = forebay.open(path)
    assert dataset.native.verify()["bad_samples"] == 0
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(place.byte_offset + 9)
        file.write(b"\xff\x00\xff")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = dataset.native.verify()
    assert [bad["sample"] for bad in found["bad"]] == list(range(14, 21))


LAYOUTS = {
    "contiguous": {},
    "chunked": {"chunks": (8, 5, 3)},
    "deflate": {"chunks": (8, 5, 3), "compression": "gzip", "shuffle": True},
    "tiled": {"chunks": (8, 2, 3), "compression": "lzf"},
}


def deliver(path, options, world, pipe):
    """Compare every batch with h5py; return the ids."""
    with h5py.File(path) as file:
        wanted = {name: file[name][()] for name in file}
    seen = []
    dataset = forebay.open(path)
    with forebay.Loader(dataset, world=forebay.World(**world), epochs=1, **options) as loader:
        for batch in loader:
            for name, rows in wanted.items():
                assert same(batch[name], rows[batch.indices]), name
            seen += batch.indices.tolist()
    return seen


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("order", ["sequential", "group"])
def test_a_loader_delivers_what_h5py_reads(pool, tmp_path, order, ranks):
    for layout, chosen in LAYOUTS.items():
        path = tmp_path / f"{layout}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("image", data=values((100, 5, 3), "<f4"), **chosen)
            file["label"] = np.arange(100)
            file.create_dataset("never", (100, 2), ">i2", fillvalue=3, chunks=(9, 2))
        options = {"batch_size": 8, "order": order, "last_batch": "partial"}
        found = pool.run(ranks, deliver, path=str(path), options=options)
        assert sorted(sample for seen in found for sample in seen) == list(range(100)), layout


def test_a_damaged_chunk_is_an_error_of_the_loader_that_names_it(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values((60, 30), "<f8"), chunks=(6, 30), compression="gzip")
        place = file["x"].id.get_chunk_info(4)
    with path.open("r+b") as raw:
        raw.seek(place.byte_offset)
        raw.write(b"no zlib")
    dataset = forebay.open(path)
    with (
        forebay.Loader(dataset, batch_size=6, order="sequential", world="single", epochs=1) as loader,
        pytest.raises(forebay.FormatError, match="deflate") as caught,
    ):
        for _ in loader:
            pass
    assert str(path) in str(caught.value)
    assert str(place.byte_offset) in str(caught.value)


def test_nothing_warns_while_a_structure_is_found(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values((10, 4), "<f4"), chunks=(4, 4), compression="gzip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(path)


def test_bitfields_are_refused_by_the_name_of_their_dataset(tmp_path):
    compound = h5py.h5t.create(h5py.h5t.COMPOUND, 4)
    compound.insert(b"flags", 0, h5py.h5t.STD_B32LE)
    kinds = [h5py.h5t.STD_B8LE, h5py.h5t.array_create(h5py.h5t.STD_B16BE, (2,)), compound]
    for number, kind in enumerate(kinds):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            h5py.h5d.create(file.id, b"bits", kind, h5py.h5s.create_simple((4,)))
            file["y"] = np.arange(4)
        text = refused(path)
        assert f"{path}: dataset 'bits' with bitfields is not supported" in text
        assert "fields=" in text
        check(path, fields=["y"])


@pytest.mark.parametrize("where", ["dataset", "group", "member", "enum"])
def test_names_that_are_not_utf8_are_refused_or_do_no_harm(tmp_path, where, says):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        group, name, kind = file.id, b"x", h5py.h5t.STD_I32LE
        if where == "dataset":
            name = b"x\xff"
        elif where == "group":
            group = h5py.h5g.create(file.id, b"g\xe9")
        elif where == "member":
            kind = h5py.h5t.create(h5py.h5t.COMPOUND, 4)
            kind.insert(b"\xff", 0, h5py.h5t.STD_I32LE)
        else:
            kind = h5py.h5t.enum_create(h5py.h5t.STD_I32LE)
            kind.enum_insert(b"\xff", 1)
        h5py.h5d.create(group, name, kind, h5py.h5s.create_simple((4,)))
        file["y"] = np.arange(4)
    if where == "enum":
        assert len(forebay.open(path)) == 4
    else:
        text = refused(path)
        assert str(path) in text
        assert r"\xff" in text or r"\xe9" in text or "0xff" in text
        assert "hint: leave it out" in text
    with says(forebay.OptionError):
        len(forebay.open(path, fields=["nothing"]))
    check(path, fields=["y"])


def test_types_that_numpy_has_not_are_refused_by_the_name_of_their_dataset(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        h5py.h5d.create(file.id, b"when", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((4,)))
    assert "dataset 'when' with elements that numpy has no type for is not supported: time" in refused(path)
    with h5py.File(path, "w") as file:
        quad = h5py.h5t.IEEE_F64LE.copy()
        quad.set_size(16)
        quad.set_precision(128)
        quad.set_fields(127, 112, 15, 0, 112)
        quad.set_ebias(16383)
        h5py.h5d.create(file.id, b"x", quad, h5py.h5s.create_simple((4,)))
    assert "dataset 'x' with elements that numpy has no type for is not supported: float" in refused(path)
    with h5py.File(path, "w") as file:
        tagged = h5py.h5t.create(h5py.h5t.OPAQUE, 4)
        tagged.set_tag(b"of some kind")
        one = h5py.h5d.create(file.id, b"x", tagged, h5py.h5s.create_simple((4,)))
        one.write(h5py.h5s.ALL, h5py.h5s.ALL, np.zeros(4, "V4"), mtype=tagged)
    text = refused(path)
    assert "dataset 'x' of a type that h5py does not convert is not supported" in text
    assert "truncated" not in text


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (AttributeError("no such thing"), forebay.FormatError, "AttributeError: no such thing"),
        (MemoryError("4 EiB"), forebay.FormatError, "MemoryError: 4 EiB"),
        (OverflowError("int too large"), forebay.FormatError, "OverflowError"),
        (SystemError("\udcff"), forebay.FormatError, r"SystemError: \udcff"),
        (OSError("bad heap"), forebay.FormatError, "bad heap"),
        (OSError(5, "Input/output error"), forebay.StorageError, "Input/output error"),
    ],
)
def test_whatever_h5py_raises_names_file_and_dataset(tmp_path, monkeypatch, error, kind, text):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(5)

    def fail(*_):
        raise error

    monkeypatch.setattr(hdf5._Dataset, "describe", fail)
    with pytest.raises(kind) as caught:
        len(forebay.open(path))
    for part in (str(path), "'x'", text):
        assert part in str(caught.value)
