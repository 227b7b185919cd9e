"""HDF5: which datasets of a file are fields, and which files, groups and types are refused."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import warnings

import h5py
import hdf5plugin
import numpy as np
import pytest

import forebay
from forebay._formats import hdf5_structure as hdf5
from forebay._formats.hdf5_groups import SampleGroups, sample_groups
from support.hdf5_files import check, refused, same, values

# A file system whose locks fail with the number in FLOCK.
FLOCK = """
#include <errno.h>
#include <stdlib.h>
int flock(int file, int what) { errno = atoi(getenv("FLOCK")); return -1; }
"""


def test_h5py_that_is_too_old_is_refused_by_its_version(tmp_path, monkeypatch, says):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10)
    monkeypatch.setattr(h5py.h5d, "DatasetID", object)
    with says(forebay.ForebayError, "3.11", replace={r"found [\d.]+\d": "found VERSION"}):
        len(forebay.open(path))


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
    assert "one group per sample (20 groups such as" in text
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


def test_several_files_of_different_layouts_are_one_dataset(tmp_path, says):
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
        assert f"'x' with elements of variable length{axes} (" in text
        assert "fields=" in text
        assert ("forebay convert" in text) == is_converted
    text = one(lambda file: file.create_dataset("x", (2,), h5py.string_dtype(), fillvalue="abc", chunks=(1,)))
    assert "'x' with a fill value of variable length (" in text
    text = one(lambda file: file.create_dataset("x", data=["a"] * 99, chunks=(9,), compression="lzf"))
    assert "'x' with elements of variable length behind filters (lzf" in text
    text = one(lambda file: file.create_dataset("x", (2,), dtype=h5py.ref_dtype))
    assert "reference" in text
    outside = str(tmp_path / "outside.bin")
    text = one(lambda file: file.create_dataset("x", (4,), "<i4", external=[(outside, 0, 16)]))
    assert "external data" in text
    assert "outside.bin" in text
    layout = h5py.VirtualLayout(shape=(4,), dtype="<i4")
    layout[:] = h5py.VirtualSource("source.h5", "x", shape=(4,))
    text = one(lambda file: file.create_virtual_dataset("x", layout))
    assert "virtual data (source.h5" in text
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
    with pytest.raises(forebay.FormatError, match=r"more than 1024 fields \(1025.*\n.*fields="):
        len(forebay.open(path))
    assert forebay.open(path, fields=["7", "1024"])[0] == {"7": 7, "1024": 1024}


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
        assert f"{path}: not supported: dataset 'bits' with bitfields (" in text
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
    assert "dataset 'when' with elements that numpy has no type for (time" in refused(path)
    with h5py.File(path, "w") as file:
        quad = h5py.h5t.IEEE_F64LE.copy()
        quad.set_size(16)
        quad.set_precision(128)
        quad.set_fields(127, 112, 15, 0, 112)
        quad.set_ebias(16383)
        h5py.h5d.create(file.id, b"x", quad, h5py.h5s.create_simple((4,)))
    assert "dataset 'x' with elements that numpy has no type for (float" in refused(path)
    with h5py.File(path, "w") as file:
        tagged = h5py.h5t.create(h5py.h5t.OPAQUE, 4)
        tagged.set_tag(b"of some kind")
        one = h5py.h5d.create(file.id, b"x", tagged, h5py.h5s.create_simple((4,)))
        one.write(h5py.h5s.ALL, h5py.h5s.ALL, np.zeros(4, "V4"), mtype=tagged)
    text = refused(path)
    assert "dataset 'x' of a type that h5py does not convert (" in text
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
