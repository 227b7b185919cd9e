"""Checks before a mount: the mount table, directories, options, answers of a server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay._core import OptionError, StorageError
from forebay_lab import pfs
from forebay_lab.pfs import checks, mounts, start
from forebay_lab.pfs.mounts import Entry, covering, entries

TABLE = rb"""21 1 254:0 / / rw,relatime - ext4 /dev/root rw
30 21 0:30 / /data\040set rw - fuse.forebay-pfs forebay-pfs:/run/a\040b.sock rw,user_id=0
31 30 0:31 / /data\040set/inner rw shared:2 master:3 - tmpfs tmpfs rw
32 21 0:32 / /mnt rw - nfs server:/x rw
33 32 0:33 / /mnt rw - ext4 /dev/sdb rw
broken line
"""


def test_a_mount_table_is_read_with_its_escapes_and_optional_fields():
    found = entries(TABLE)
    assert [entry.type for entry in found] == ["ext4", "fuse.forebay-pfs", "tmpfs", "nfs", "ext4"]
    assert found[1] == Entry(Path("/data set"), "fuse.forebay-pfs", "forebay-pfs:/run/a b.sock")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/data set/x", "forebay-pfs:/run/a b.sock"),
        ("/data set", "forebay-pfs:/run/a b.sock"),
        ("/data set/inner/y", "tmpfs"),
        ("/data settled", "/dev/root"),
        ("/mnt/file", "/dev/sdb"),
    ],
)
def test_a_path_lies_on_the_longest_mount_and_there_on_the_last(path, source):
    assert covering(path, entries(TABLE)).source == source


def test_what_lies_on_no_mount_of_the_emulator_is_not_found(tmp_path, says):
    assert pfs.find(tmp_path) is None
    with says(StorageError):
        pfs.Server.of(tmp_path)
    with says(StorageError):
        pfs.unmount(tmp_path)


def test_only_mounts_with_a_control_socket_are_listed(monkeypatch, tmp_path):
    table = tmp_path / "mountinfo"
    table.write_bytes(TABLE + b"40 21 0:52 / /tmp/m rw - fuse.forebay-pfs forebay-pfs: rw\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", str(table))
    found = pfs.list_mounts()
    assert found == [pfs.Mount(Path("/data set"), Path("/run/a b.sock"), False)]


# --- what is checked before anything is started ---


def test_a_backing_directory_has_to_be_one(tmp_path, backing, says):
    assert checks.check_backing(backing) == backing
    with says(StorageError):
        checks.check_backing(tmp_path / "gone")
    with says(StorageError):
        checks.check_backing(backing / "file")


def test_a_mount_point_has_to_be_an_empty_directory(tmp_path, backing, points, says):
    assert checks.check_points(backing, points) == points
    with says(StorageError):
        checks.check_points(backing, [tmp_path / "gone"])
    full = tmp_path / "full"
    full.mkdir()
    (full / "thing").touch()
    with says(StorageError):
        checks.check_points(backing, [full])
    with says(StorageError):
        checks.check_points(backing, [full / "thing"])
    with says(StorageError):
        checks.check_points(backing, ["/proc"])
    with says(OptionError):
        checks.check_points(backing, [])


def test_nested_mounts_are_refused(tmp_path, backing, points, says):
    inside = backing / "inside"
    inside.mkdir()
    for given in (backing, inside, tmp_path):
        with says(OptionError, given):
            checks.check_points(backing, [given])
    with says(OptionError):
        checks.check_points(backing, [points[0], points[0] / "." / "x" / ".."])
    with says(OptionError):
        checks.check_points(backing, [points[0], points[0] / "deeper"])
    link = tmp_path / "link"
    link.symlink_to(backing)
    with says(OptionError):
        checks.check_points(backing, [link])


def test_a_machine_without_fuse_is_told_apart_from_one_that_keeps_it_closed(monkeypatch, tmp_path, says):
    monkeypatch.setattr(checks, "DEVICE", str(tmp_path / "fuse"))
    with says(StorageError):
        checks.check_fuse()
    (tmp_path / "fuse").mkdir(mode=0o600)
    with says(StorageError, "0600"):
        checks.check_fuse()
    monkeypatch.setattr(checks, "DEVICE", os.devnull)
    monkeypatch.setattr(checks, "may_mount", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with says(StorageError):
        checks.check_fuse()


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"preset": "nfs", "spec": {}}, ()),
        ({"time_scale": 0}, ("time_scale", 0)),
        ({"time_scale": float("inf")}, ("time_scale", 0)),
        ({"time_scale": "much"}, ("time_scale", 0, "much")),
        ({"seed": -1}, (0,)),
    ],
)
def test_wrong_options_are_refused_before_anything_is_touched(options, values, says):
    with says(OptionError, *values):
        start.Wanted(**options)


def test_an_event_log_needs_its_directory(tmp_path, says):
    with says(StorageError):
        start.Wanted(events=tmp_path / "no" / "log")


def test_a_server_of_another_version_is_named_where_its_answer_lacks_a_key(tmp_path, says):
    server = pfs.Server(tmp_path / "x.sock", {"backing": "/data", "pid": 1, "slow_down": 4.0})
    assert server.pid == 1
    with says(StorageError, "x.sock", "time_scale", "slow_down"):
        server.time_scale  # noqa: B018
