"""HDF5: each sample equals h5py's, over layouts, filters, types, shapes and file versions."""

from __future__ import annotations

import itertools
import os

import h5py
import hdf5plugin
import numpy as np
import pytest

import forebay
from forebay._formats import hdf5_structure as hdf5
from support.hdf5_files import check, described, library, refused, same, values

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


# Shapes of datasets and of their chunks: whole rows, tiles, edges of both, one chunk, more than
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
        assert f"{path}: not supported: dataset '{name}' with chunks elsewhere than h5py reads them" in text
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
    found, table = described(path)
    assert found["datasets"][0]["layout"]["chunked"]["chunks"] == 3
    # A shuffled chunk at the edge has the length of a bare one, and is none.
    assert [mask for *_, mask in np.frombuffer(table, hdf5._CHUNK).tolist()] == [0, 0, 0]
    check(path)


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
    _, table = described(path)
    bare = (np.frombuffer(table, hdf5._CHUNK)["mask"] == 0xFFFFFFFF).any()
    assert bare == (shape != (8, 6))


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
    # Only the last one reaches out of the dataset.
    assert table["mask"].tolist() == [0, 0, 0xFFFFFFFF]


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
    with forebay.Loader(dataset, world=forebay.World(**world), expected_epochs=1, **options) as loader:
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
        forebay.Loader(
            dataset, batch_size=6, order="sequential", world="single", expected_epochs=1
        ) as loader,
        pytest.raises(forebay.FormatError, match="deflate") as caught,
    ):
        for _ in loader:
            pass
    assert str(path) in str(caught.value)
    assert str(place.byte_offset) in str(caught.value)
