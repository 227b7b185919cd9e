"""Storage of the demo's ranks: an emulated file system or the local disk, and cleanup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forebay import OptionError, StorageError
from forebay_lab import pfs
from forebay_lab.demo import storage
from forebay_lab.demo.runner import main
from support.demo import SAMPLES
from support.emulator import needs_fuse, ours


def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have no FUSE."""
    monkeypatch.setattr(storage.checks, "DEVICE", "/nowhere/fuse")


def test_without_fuse_the_local_disk_is_read_and_the_reason_told(monkeypatch, dataset):
    no_device(monkeypatch)
    choice = storage.choose(None, emulate=True)
    assert "/nowhere/fuse is not there" in str(choice.reason)
    with storage.opened(dataset, choice) as place:
        assert (place.directory, place.cache) == (dataset.directory, dataset.cache)
        assert (place.describe(), place.counted()) == (None, None)
        assert place.reason == choice.reason


def test_a_file_system_that_was_named_is_not_replaced_by_the_local_disk(monkeypatch, says):
    no_device(monkeypatch)
    with says(StorageError):
        storage.choose("nfs", emulate=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "floppy"}, "floppy"),
        ({"preset": "nfs", "emulate": False}, "expected --pfs or --no-pfs, found both"),
    ],
)
def test_a_wrong_file_system_is_wrong_use_before_data_is_made(capsys, place: Path, options, message):
    assert main(data=place / "data", output=place / "demo.html", **options) == 2
    assert message in capsys.readouterr().err
    assert list(place.iterdir()) == []


@needs_fuse
def test_the_ranks_see_the_dataset_through_one_mount_that_goes_with_the_block(dataset, scratch):
    with storage.opened(dataset, storage.choose(None, emulate=True)) as place:
        assert place.reason is None
        assert ours(scratch) == [place.directory]
        told = place.describe()
        assert told["spec"]["name"] == storage.PRESET
        assert told["time_scale"] > 1
        file = place.directory / "train.lmdb" / "data.mdb"
        for _ in range(2):  # Both times all of it, for it is cold both times.
            place.cool()
            assert file.read_bytes() == dataset.file.read_bytes()
            found = place.counted()
            assert found["read_bytes"] >= dataset.file_bytes
            assert found["read_bytes"] == sum(int(size) * count for size, count in found["sizes"].items())
            assert found["mean_read_bytes"] == found["read_bytes"] / found["reads"]
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []


@needs_fuse
def test_a_run_for_which_nothing_reached_the_file_system_is_an_error(dataset, scratch, says):
    with storage.opened(dataset, storage.choose(None, emulate=True)) as place:
        place.cool()
        with says(StorageError, replace={r"mount-\w+": "mount-N"}):
            place.counted()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("insisted", [False, True])
def test_a_refused_mount_leaves_nothing_and_is_an_error_only_where_it_was_named(
    monkeypatch, dataset, scratch, insisted, says
):
    def refuse(*arguments, **options):
        raise StorageError("mount: Operation not permitted")

    monkeypatch.setattr(pfs.Server, "start", refuse)
    choice = storage.Choice("nfs", insisted=insisted)
    if insisted:
        with says(StorageError), storage.opened(dataset, choice):
            pass
    else:
        with storage.opened(dataset, choice) as place:
            assert "not permitted" in str(place.reason)
            assert place.directory == dataset.directory
    assert list(scratch.iterdir()) == []


@needs_fuse
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OptionError])
def test_nothing_stays_mounted_after_an_error_or_an_interrupt(dataset, scratch, error):
    def fail() -> None:
        assert len(ours(scratch)) == 1
        raise error("in mid-run")

    with pytest.raises(error), storage.opened(dataset, storage.choose(None, emulate=True)):
        fail()
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []


@needs_fuse
def test_nothing_stays_mounted_when_files_are_still_open(dataset, scratch):
    with storage.opened(dataset, storage.choose(None, emulate=True)) as place:
        descriptor = os.open(place.directory / "held-out.npz", os.O_RDONLY)
    os.close(descriptor)
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []


@needs_fuse
def test_counters_of_somebody_elses_mount_are_left_alone(dataset, scratch, says):
    theirs = scratch / "theirs"
    theirs.mkdir()
    server = pfs.Server.start(dataset.directory, [theirs], preset=storage.PRESET, time_scale="auto")
    (theirs / "demo.json").read_bytes()
    with (
        says(OptionError),
        storage.opened(dataset, storage.choose(None, emulate=True)),
    ):
        pass
    assert ours(scratch) == [theirs]
    assert server.stats()["nodes"][0]["reads"] > 0
    assert list(scratch.iterdir()) == [theirs]


@needs_fuse
@pytest.mark.parametrize("server_too", [False, True])
def test_what_a_killed_demo_left_mounted_is_removed_by_the_next(dataset, scratch, server_too: bool):
    program = (
        "import sys, time; from pathlib import Path; from forebay_lab.demo import data, storage\n"
        f"made = data.prepare(Path({str(dataset.directory)!r}), data.Spec({SAMPLES}), lambda *_: None)\n"
        "with storage.opened(made, storage.choose(None, True)) as place:\n"
        "    print(place.server.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = os.pidfd_open(int(process.stdout.readline()))
        left = ours(scratch)
        assert len(left) == 1
        storage.choose(None, emulate=True)
        assert ours(scratch) == left, "whoever made it lives"
        process.kill()
    if server_too:
        signal.pidfd_send_signal(server, signal.SIGKILL)
    os.close(server)
    assert ours(scratch) == left
    with storage.opened(dataset, storage.choose(None, emulate=True)) as place:
        assert ours(scratch) == [place.directory]
        assert place.directory not in left
    assert list(scratch.iterdir()) == []
