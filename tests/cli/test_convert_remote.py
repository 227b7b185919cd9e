"""``forebay convert`` of addresses: fsspec copies the objects, and nothing of them is left."""

from __future__ import annotations

import sys
import tempfile

import fsspec
import numpy as np
import pytest

import forebay
import support
from support import run_command

GOLDEN = support.TESTS / "formats/golden"


@pytest.fixture
def memory():
    """A file system of fsspec in memory, with three arrays."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    for number in range(3):
        with files.open(f"/bucket/a-{number}.npy", "wb") as file:
            np.save(file, np.full(2 + number, number))
    yield files
    files.store.clear()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The directory for temporary files, which is empty before and after."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    assert list(directory.iterdir()) == []


def values(path):
    return [int(sample["data"]) for sample in forebay.open(path)]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("memory://bucket/a-1.npy", [1] * 3),
        ("memory://bucket/a-*.npy", [0] * 2 + [1] * 3 + [2] * 4),
        ("memory://bucket/a-{2,0}.npy", [2] * 4 + [0] * 2),
    ],
)
def test_the_objects_of_an_address_are_converted(tmp_path, capsys, memory, temporary, address, expected):
    target = tmp_path / "x.npy"
    status, _, err = run_command(capsys, "convert", address, target)
    assert (status, err) == (0, "")
    assert values(target) == expected


def test_addresses_and_paths_are_converted_together(tmp_path, capsys, memory, temporary):
    np.save(tmp_path / "{own}.npy", np.full(5, 7))
    arguments = [f"file://{tmp_path}/{{own}}.npy", tmp_path / "{own}.npy", "memory://bucket/a-1.npy"]
    assert run_command(capsys, "convert", *arguments, tmp_path / "x.npy")[0] == 0
    assert values(tmp_path / "x.npy") == [7] * 10 + [1] * 3


@pytest.mark.parametrize("name", ["mds/columns", "litdata/trees"])
def test_a_directory_of_shards_stays_one(tmp_path, capsys, memory, temporary, name):
    memory.put(str(GOLDEN / name), "/bucket/shards", recursive=True)
    arguments = ["memory://bucket/shards", tmp_path / "x.rec", "--field", "blob", "--copy-to", temporary]
    assert run_command(capsys, "convert", *arguments)[0] == 0
    expected = forebay.open(GOLDEN / name, fields=["blob"])
    found = forebay.open(tmp_path / "x.rec", schema="raw")
    assert list(found) == [bytes(sample["blob"]) for sample in expected]


def test_more_bytes_than_allowed_are_not_copied(tmp_path, capsys, memory, temporary):
    status, _, err = run_command(
        capsys, "convert", "memory://bucket/a-*.npy", tmp_path / "x.npy", "--copy-at-most", 300
    )
    assert status == 2
    assert "3 objects of 456 bytes are to be copied (expected at most 300 bytes)" in err
    assert not (tmp_path / "x.npy").exists()


@pytest.mark.parametrize("address", ["memory://bucket/none.npy", "memory://bucket/none-*.npy"])
def test_an_address_without_an_object_is_named(tmp_path, capsys, memory, temporary, address):
    status, _, err = run_command(capsys, "convert", address, tmp_path / "x.npy")
    assert status == 1
    assert f"{address}: no object has this address" in err


def test_an_object_that_cannot_be_read_is_named(tmp_path, capsys, memory, temporary, monkeypatch):
    def fails(path, *_, **__):
        raise RuntimeError("the token has expired")

    monkeypatch.setattr(type(memory), "get_file", fails)
    status, _, err = run_command(capsys, "convert", "memory://bucket/a-1.npy", tmp_path / "x.npy")
    assert status == 1
    assert "/bucket/a-1.npy: cannot be copied: the token has expired" in err


def test_a_missing_library_is_named_with_what_installs_it(tmp_path, capsys, temporary, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    status, _, err = run_command(capsys, "convert", "s3://bucket/x.npy", tmp_path / "x.npy")
    assert status == 2
    assert "s3fs" in err
    assert "pip install 'forebay[remote]'" in err
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    assert (
        "pip install 'forebay[remote]'" in run_command(capsys, "convert", "gs://b/x", tmp_path / "x.npy")[2]
    )


def test_pipes_stay_refused(tmp_path, capsys, temporary):
    status, _, err = run_command(capsys, "convert", "pipe:cat x", tmp_path / "x.npy")
    assert status == 2
    assert "run the command first" in err
