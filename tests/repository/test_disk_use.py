"""The watch over disk use counts blocks and deletions, and never crosses a mount point."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import support
from forebay_lab import pfs
from support import disk_use
from support.emulator import SPEC, needs_fuse

MIB = 1 << 20


def taken(path):
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return disk_use.taken_bytes(directory)
    finally:
        os.close(directory)


def test_blocks_are_counted_and_holes_are_not(tmp_path):
    before = taken(tmp_path)
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "deeper" / "file").write_bytes(support.record(1, MIB))
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    assert MIB <= taken(tmp_path) - before <= 2 * MIB


def test_what_a_test_takes_is_remembered_when_it_is_gone_and_held_against_it(tmp_path):
    watch = disk_use.DiskUse(tmp_path)
    watch.start()
    try:
        watch.begin("one")
        file = tmp_path / "file"
        file.write_bytes(support.record(2, 4 * MIB))
        support.wait_until(lambda: watch.end() >= 4 * MIB, "the watch to see it")
        file.unlink()
        support.wait_until(lambda: watch.now() < MIB, "the watch to see it gone")
        watch.begin("two")
    finally:
        watch.stop()
    watch.end()
    assert watch.by_test["one"] >= 4 * MIB > watch.by_test["two"]
    assert watch.most[0] >= 4 * MIB
    assert list(watch.report(1))[1].endswith("one")


@needs_fuse
def test_a_look_at_a_directory_with_mounts_is_no_request_to_them(backing, points, tmp_path):
    server = pfs.Server.start(backing, points, spec=SPEC)
    server.reset()
    inside = (backing / "file").stat().st_blocks * 512
    assert inside <= taken(tmp_path) <= inside + MIB
    assert [node["metadata"] for node in server.stats()["nodes"]] == [0, 0]


def test_temporary_files_of_tests_and_their_processes_are_watched(request):
    place = Path(tempfile.gettempdir())
    assert place == request.config.stash[disk_use.KEY].path
    done = support.run_python("import tempfile; print(tempfile.gettempdir())")
    assert done.stdout.strip() == str(place)
