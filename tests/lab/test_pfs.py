"""The emulator from Python: find mounts; start, join, query and end servers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

import forebay
import support
from forebay._core import OptionError, StorageError
from forebay_lab import pfs
from forebay_lab.pfs import mounts, start
from support import emulator
from support.emulator import SPEC, needs_fuse, read_direct


@pytest.fixture
def mounted(backing, points):
    """The backing directory at two mounts."""
    return pfs.Server.start(backing, points, spec=SPEC)


@needs_fuse
def test_a_server_is_started_found_asked_and_ended(backing, points, mounted, tmp_path, says):
    assert mounted.mounts == points
    assert mounted.backing == backing
    assert mounted.spec["name"] == "test"
    assert mounted.time_scale == 1
    found = pfs.find(points[0] / "file")
    assert found == pfs.Mount(points[0], mounted.socket, True)
    assert stat.S_IMODE(mounted.socket.stat().st_mode) == 0o600
    assert pfs.Server.of(points[1] / "file").pid == mounted.pid
    assert {one.mount for one in pfs.list_mounts()} >= set(points)
    # It has left our session and has no parent here.
    assert os.getsid(mounted.pid) == mounted.pid
    with pytest.raises(ChildProcessError):
        os.waitpid(mounted.pid, os.WNOHANG)
    mounted.unmount(points[0])
    assert mounted.mounts == [points[1]]
    mounted.unmount(points[1])
    assert emulator.ours(tmp_path) == []
    assert not mounted.socket.exists()
    assert list(mounted.socket.parent.iterdir()) == []
    with says(StorageError):
        mounted.stats()


@needs_fuse
def test_an_interrupt_while_a_server_starts_leaves_no_mount(backing, points, tmp_path, monkeypatch):
    started = start.start

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return started(*arguments)

    monkeypatch.setattr(start, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pfs.Server.start(backing, points, spec=SPEC)
    assert emulator.ours(tmp_path) == []


@needs_fuse
def test_bytes_are_those_of_the_backing_directory_and_counters_those_of_the_reads(backing, points, mounted):
    expected = (backing / "file").read_bytes()
    mounted.reset()
    wanted = [(0, 4096), (4096, 4096), (1 << 20, 1 << 20), (3 << 20, 65536), (5 << 20, 4096)]
    for offset, length in wanted:
        assert read_direct(points[0] / "file", offset, length) == expected[offset : offset + length]
    node, other = mounted.stats()["nodes"]
    assert (node["mount"], node["node"], other["node"]) == (str(points[0]), 0, 1)
    assert node["reads"] == len(wanted)
    assert node["read_bytes"] == sum(length for _, length in wanted)
    assert node["sizes"] == {"4096": 3, "65536": 1, "1048576": 1}
    assert (other["reads"], other["read_bytes"]) == (0, 0)
    servers = mounted.stats()["servers"]
    assert sum(server["read_bytes"] for server in servers) == node["read_bytes"]
    assert [file["file"] for file in mounted.stats()["files"]] == ["file"]
    assert (points[1] / "file").read_bytes() == expected
    mounted.reset()
    assert [node["reads"] for node in mounted.stats()["nodes"]] == [0, 0]


@needs_fuse
def test_each_mount_has_a_page_cache_and_cold_empties_one_of_them(points, mounted):
    def reads():
        return [node["reads"] for node in mounted.stats()["nodes"]]

    def read(point):
        before = reads()
        (point / "file").read_bytes()
        return [now - then for now, then in zip(reads(), before, strict=True)]

    def is_cached(point):
        # The kernel may reclaim pages at any time, but not each time.
        return any(read(point) == [0, 0] for _ in range(3))

    first = read(points[0])
    assert first[0] > 0
    assert first[1] == 0
    assert is_cached(points[0])
    second = read(points[1])
    assert second[0] == 0
    assert second[1] > 0
    # The root is known too, or not; the file is.
    assert mounted.drop_caches(points[0]) >= 1
    assert is_cached(points[1])
    assert read(points[0])[0] > 0


@needs_fuse
def test_a_second_start_joins_the_server_that_runs(backing, points, mounted, tmp_path):
    third = tmp_path / "node2"
    third.mkdir()
    joined = pfs.Server.start(backing, [third])
    assert joined.pid == mounted.pid
    assert mounted.mounts == [*points, third]
    fourth = tmp_path / "node3"
    fourth.mkdir()
    assert mounted.add_mount(fourth) == fourth
    assert (fourth / "file").stat().st_size == 8 << 20
    fifth = tmp_path / "node4"
    fifth.mkdir()
    assert pfs.Server.start(backing, [fifth], spec=SPEC, time_scale=1).pid == mounted.pid


@needs_fuse
@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"spec": {**SPEC, "targets": 2, "stripe_count": 2}}, (4, 2)),
        ({"overrides": {"latency_us": 900.0}}, ("latency_us", "500.0", "900.0")),
        ({"preset": "nfs"}, ()),
        ({"time_scale": 3}, ("time_scale", "1.0", "3.0")),
        ({"events": "log"}, ()),
    ],
)
def test_joining_with_other_numbers_names_the_difference(
    backing, points, mounted, tmp_path, options, values, says
):
    third = tmp_path / "node2"
    third.mkdir()
    with says(OptionError, *values):
        pfs.Server.start(backing, [third], **options)
    assert mounted.mounts == points


@needs_fuse
def test_mounting_on_or_from_a_mount_is_refused(backing, points, mounted, tmp_path, says):
    with says(StorageError):
        mounted.add_mount(points[0])
    (backing / "below").mkdir()
    with says(OptionError):
        mounted.add_mount(points[0] / "below")
    third = tmp_path / "node2"
    third.mkdir()
    with says(OptionError):
        pfs.Server.start(points[0], [third], spec=SPEC)
    other = tmp_path / "other"
    other.mkdir()
    with says(OptionError):
        mounted.drop_caches(other)


@needs_fuse
def test_a_range_that_cannot_be_read_is_an_oserror_and_nothing_else_is(backing, points, mounted, says):
    mounted.fail_range("file", 1 << 20, 2 << 20)
    path = points[1] / "file"
    with path.open("rb", buffering=0) as file:
        with pytest.raises(OSError) as failed:  # noqa: PT011 - its number says which
            os.pread(file.fileno(), 4096, 1 << 20)
        assert failed.value.errno == errno.EIO
        assert len(os.pread(file.fileno(), 4096, 3 << 20)) == 4096
    assert mounted.stats()["faults"]
    mounted.clear_faults()
    assert path.read_bytes() == (backing / "file").read_bytes()
    with says(OptionError):
        mounted.fail_range("file", 10, 10)
    with pytest.raises(StorageError, match="nothing"):
        mounted.fail_range("nothing", 0, 10)


@pytest.fixture
def dataset(tmp_path, backing):
    """An LMDB of 400 records of 20 KB in the backing directory, and its records."""
    records = [support.record(number, 20_000) for number in range(400)]
    support.write_lmdb(backing / "train.lmdb", records)
    return records


def epoch(path, **options):
    """Read an epoch with one rank; return the samples by number."""
    found = {}
    settings = {"order": "shuffle", "world": "single", "last_batch": "partial", **options}
    with forebay.Loader(path, 8, **settings) as loader:
        for batch in loader:
            for index, sample in zip(batch.indices, batch["data"], strict=True):
                assert index not in found
                found[int(index)] = bytes(sample)
    return [found[number] for number in range(len(found))]


@needs_fuse
@pytest.mark.parametrize("access", ["pread", "mmap", "io_uring"])
def test_a_loader_on_the_mount_delivers_the_samples(points, dataset, mounted, access):
    path = points[0] / "train.lmdb"
    assert epoch(path, strategy=access) == dataset
    assert mounted.stats()["nodes"][0]["read_bytes"] > sum(map(len, dataset)) // 2
    with lmdb.open(str(path), readonly=True, lock=False) as environment, environment.begin() as transaction:
        assert [value for _, value in transaction.cursor()] == dataset


@needs_fuse
def test_a_loader_that_meets_an_unreadable_range_names_file_and_offset(points, dataset, mounted):
    path = points[0] / "train.lmdb"
    with forebay.Loader(path, 8, order="sequential", world="single", strategy="pread") as loader:
        mounted.fail_range(path / "data.mdb", 4 << 20, 6 << 20)
        with pytest.raises(StorageError) as failed:
            for _ in loader:
                pass
    assert failed.value.errno == errno.EIO
    assert str(path / "data.mdb") in str(failed.value)
    assert "offset " in str(failed.value)
    mounted.clear_faults()
    assert epoch(path, strategy="pread") == dataset


@needs_fuse
def test_a_loader_outlasts_a_stalled_and_a_slow_server(points, dataset, mounted):
    path = points[0] / "train.lmdb"
    mounted.slow(1, 4.0)
    mounted.stall(2, 1.0)
    assert set(mounted.stats()["faults"]) >= {"stalled", "slow"} or mounted.stats()["faults"]
    assert epoch(path, strategy="pread") == dataset
    with pytest.raises(StorageError, match="9"):
        mounted.stall(9, 1.0)


@needs_fuse
def test_a_dead_mount_is_an_error_there_and_nowhere_else(backing, points, mounted):
    (points[0] / "file").stat()
    mounted.partition(points[0])
    with pytest.raises(OSError) as failed:  # noqa: PT011 - its number says which
        (points[0] / "file").read_bytes()
    assert failed.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    assert (points[1] / "file").read_bytes() == (backing / "file").read_bytes()
    # Its server lives, so that it is not taken for stale.
    assert pfs.remove_stale() == []
    assert pfs.unmount(points[0]) == points[0]
    assert mounted.mounts == [points[1]]
    (points[0]).rmdir()


@needs_fuse
def test_a_server_whose_dead_mount_somebody_unmounted_can_still_be_ended(points, mounted, says):
    mounted.unmount(points[1])
    mounted.partition(points[0])
    if pfs.find(points[0]):
        mounts.remove(points[0])
    process = os.pidfd_open(mounted.pid)
    assert pfs.unmount(points[0]) == points[0]
    emulator.wait_for(process)
    with says(StorageError):
        pfs.unmount(points[0])


@needs_fuse
def test_what_a_killed_server_leaves_is_removed_at_the_next_start(backing, points, mounted, tmp_path, says):
    (points[0] / "file").stat()
    kill(mounted.pid)
    assert pfs.find(points[0]) == pfs.Mount(points[0], mounted.socket, False)
    with says(StorageError):
        pfs.Server.of(points[0])
    again = pfs.Server.start(backing, points, spec=SPEC)
    assert again.pid != mounted.pid
    assert (points[0] / "file").read_bytes() == (backing / "file").read_bytes()
    again.end()
    assert emulator.ours(tmp_path) == []


@needs_fuse
def test_stale_mounts_are_unmounted_by_hand_too(points, mounted):
    kill(mounted.pid)
    assert pfs.unmount(points[0]) == points[0]
    assert [one.mount for one in pfs.list_mounts() if one.mount in points] == [points[1]]
    assert pfs.remove_stale() == [points[1]]
    assert pfs.remove_stale() == []


@needs_fuse
@pytest.mark.parametrize("busy", [False, True])
def test_sigterm_unmounts_everything(points, mounted, tmp_path, busy):
    process = os.pidfd_open(mounted.pid)
    held = (points[0] / "file").open("rb") if busy else None
    try:
        os.kill(mounted.pid, signal.SIGTERM)
        emulator.wait_for(process)
        assert emulator.ours(tmp_path) == []
        assert list(mounted.socket.parent.iterdir()) == []
    finally:
        if held:
            # The kernel also reports at the close that no server is left.
            with contextlib.suppress(OSError):
                held.close()


def kill(pid: int) -> None:
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    emulator.wait_for(process)


@needs_fuse
def test_two_starts_at_once_are_one_server(backing, points):
    code = """
import json, sys
from forebay_lab import pfs
print(pfs.Server.start(sys.argv[1], [sys.argv[2]], spec=json.loads(sys.argv[3])).pid)
"""
    ours = [support.Process(code, backing, point, json.dumps(SPEC)) for point in points]
    done = [process.finish() for process in ours]
    assert [status for status, _, _ in done] == [0, 0], done
    assert done[0][1] == done[1][1]
    assert sorted(pfs.Server.of(points[0]).mounts) == points


@needs_fuse
def test_a_server_of_another_runtime_directory_is_joined_all_the_same(
    backing, points, mounted, tmp_path, monkeypatch, short_path
):
    third = tmp_path / "node2"
    third.mkdir()
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", str(short_path / "elsewhere"))
    assert pfs.Server.start(backing, [third]).pid == mounted.pid


@needs_fuse
def test_a_server_that_does_not_come_up_shows_what_it_had_to_say(backing, points, monkeypatch, says):
    # A server that finds no room for its event log ends before it is up.
    with says(StorageError) as failed:
        pfs.Server.start(backing, points[:1], spec=SPEC, events=backing)
    assert str(backing) in str(failed.value)
    assert "Traceback" not in str(failed.value)
    assert emulator.ours(points[0]) == []
    assert list(Path(os.environ["FOREBAY_RUNTIME_DIR"]).iterdir()) == []


@needs_fuse
def test_events_tell_every_read_in_model_seconds(backing, points, tmp_path):
    log = tmp_path / "events.jsonl"
    server = pfs.Server.start(backing, points, spec=SPEC, time_scale=2, events=log)
    for number in range(5):
        read_direct(points[number % 2] / "file", number << 20, 65536)
    events, after = server.events()
    assert [event[1:5] for event in events] == [
        [number % 2, "file", number << 20, 65536] for number in range(5)
    ]
    assert all(latency >= 500e-6 for *_, latency in events)
    assert server.events(after) == ([], after)
    server.end()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[0]["forebay_events"] == 2
    assert lines[0]["time_scale"] == 2
    assert lines[1:] == events


@needs_fuse
def test_one_without_root_mounts_inside_a_user_namespace(backing, tmp_path):
    # Wholly inside: the mount is visible there only, and goes with it.
    code = """
import json, sys
from pathlib import Path
from forebay_lab import pfs
point = Path(sys.argv[2])
server = pfs.Server.start(sys.argv[1], [point], spec=json.loads(sys.argv[3]))
assert (point / "file").read_bytes() == (Path(sys.argv[1]) / "file").read_bytes()
print(server.stats()["nodes"][0]["read_bytes"])
pfs.unmount(point)
assert pfs.find(point) is None
"""
    point = tmp_path / "inside"
    point.mkdir()
    probe = subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"user namespaces cannot be made here: {probe.stderr.decode().strip()}")
    done = subprocess.run(
        ["unshare", "-Urm", sys.executable, "-c", code, backing, point, json.dumps(SPEC)],
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 8 << 20


@needs_fuse
def test_presets_and_numbers_of_ones_own_come_to_the_same_spec(tmp_path, says):
    path = emulator.write_spec(tmp_path / "own.toml")
    from_file = start.Wanted(spec=path).resolve()
    assert from_file == {**from_file, **SPEC}
    assert start.Wanted(spec=from_file).resolve() == from_file
    narrowed = start.Wanted(preset="fefs", overrides={"targets": 3}).resolve()
    assert (narrowed["targets"], narrowed["stripe_count"]) == (3, 3)
    assert "targets" not in narrowed["sources"]
    assert start.Wanted().resolve()["name"] == start.DEFAULT_PRESET
    with says(OptionError):
        start.Wanted(preset="lustre").resolve()
    (tmp_path / "broken.toml").write_text("targets = [")
    with pytest.raises(OptionError, match=r"broken\.toml"):
        start.Wanted(spec=tmp_path / "broken.toml").resolve()
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with says(OptionError, "TOML", 8):
        start.Wanted(spec=tmp_path / "binary.toml").resolve()
    with says(StorageError):
        start.Wanted(spec=tmp_path / "gone.toml").resolve()
