"""Shards without samples: none in a set, at any place; a dataset of nothing else is an error."""

from __future__ import annotations

import io
import json
import shutil
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

import forebay
from support.tiering import MEMORY

GOLDEN = Path(__file__).parent / "golden"


def write_tar(path, samples):
    with tarfile.open(path, "w") as archive:
        for number in range(samples):
            for name in (f"{number}.txt", f"{number}.cls"):
                member = tarfile.TarInfo(name)
                member.size = 3
                archive.addfile(member, io.BytesIO(b"%03d" % number))


def write_npy(path, samples):
    np.save(path, np.arange(3 * samples).reshape(samples, 3))


def write_npz(path, samples):
    np.savez(path, x=np.arange(3 * samples).reshape(samples, 3), y=np.arange(samples))


def write_npz_of_nothing(path, samples):
    if samples:
        write_npz(path, samples)
    else:
        np.savez(path)


def write_folder(path, samples):
    path.mkdir()
    for number in range(samples):
        (path / "class").mkdir(exist_ok=True)
        (path / "class" / str(number)).write_bytes(b"%d" % number)


def write_mds(path, samples):
    shutil.copytree(GOLDEN / "mds" / "columns", path)
    empty_list(path, samples, "shards")


def write_litdata(path, samples):
    shutil.copytree(GOLDEN / "litdata" / "trees", path)
    empty_list(path, samples, "chunks")


def empty_list(path, samples, key):
    """Take all shards out of a list; the golden ones have 20 samples."""
    if samples:
        assert samples == 20
        return
    index = json.loads((path / "index.json").read_text())
    index[key] = []
    (path / "index.json").write_text(json.dumps(index))


KINDS = {
    "tar": (write_tar, ".tar"),
    "npy": (write_npy, ".npy"),
    "npz": (write_npz, ".npz"),
    "npz of nothing": (write_npz_of_nothing, ".npz"),
    "folder": (write_folder, ""),
    "mds": (write_mds, ""),
    "litdata": (write_litdata, ""),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_shard_without_samples_has_none_wherever_it_stands_in_a_set(tmp_path, kind, place):
    write, suffix = KINDS[kind]
    sizes = [20, 20]
    sizes.insert(place, 0)
    paths = [tmp_path / f"set-{number}{suffix}" for number in range(3)]
    for path, samples in zip(paths, sizes, strict=True):
        write(path, samples)
    full = forebay.open([path for path, samples in zip(paths, sizes, strict=True) if samples])
    dataset = forebay.open(paths)
    assert (len(dataset), dataset.fields) == (40, full.fields)
    for found, expected in zip(dataset, full, strict=True):
        assert {name: np.asarray(value).tobytes() for name, value in found.items()} == {
            name: np.asarray(value).tobytes() for name, value in expected.items()
        }
    with forebay.Loader(dataset, 8, order="shuffle", node_memory=MEMORY) as loader:
        assert sorted(number for batch in loader for number in batch.indices) == list(range(40))


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_of_shards_without_samples_is_an_error(tmp_path, kind):
    write, suffix = KINDS[kind]
    paths = [tmp_path / f"set-{number}{suffix}" for number in range(2)]
    for path in paths:
        write(path, 0)
    for some in (paths[0], paths):
        with pytest.raises(forebay.FormatError, match="a dataset without samples"):
            len(forebay.open(some))


def test_the_fields_of_a_tar_are_asked_of_shards_that_have_some(tmp_path):
    write_tar(tmp_path / "0.tar", 0)
    write_tar(tmp_path / "1.tar", 2)
    dataset = forebay.open(str(tmp_path / "*.tar"), fields=["cls"])
    assert [bytes(one["cls"]) for one in dataset] == [b"000", b"001"]
    with pytest.raises(forebay.OptionError, match="jpg"):
        forebay.open(str(tmp_path / "*.tar"), fields=["jpg"])
    # Zeros of another length, or with something behind them, are no tar.
    for name, data in (("odd", bytes(1000)), ("one", bytes(512)), ("end", bytes(10239) + b"x")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(forebay.FormatError, match="no format that is read begins with 00"):
            forebay.open(tmp_path / name)


def test_an_mds_shard_that_lists_no_sample_is_one_of_a_set(tmp_path):
    path = GOLDEN / "mds" / "columns"
    shard = min(path.glob("*.mds"))
    raw = shard.read_bytes()
    count, start = struct.unpack_from("<II", raw)
    config = raw[4 * (count + 2) : start]
    (tmp_path / "lone.mds").write_bytes(struct.pack("<II", 0, 8 + len(config)) + config)
    dataset = forebay.open([tmp_path / "lone.mds", shard])
    assert len(dataset) == count
