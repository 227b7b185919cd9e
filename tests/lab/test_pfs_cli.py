"""``forebay pfs``: from mount to unmount, what it prints, its exit codes and messages."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from forebay_lab import pfs
from forebay_lab.cli.pfs import command
from support import DEADLINE_S, ROOT, documented_keys, emulator, run_command, run_command_json
from support.emulator import needs_fuse, read_direct


def run(capsys, *arguments):
    return run_command(capsys, "pfs", *arguments)


def run_json(capsys, *arguments):
    return run_command_json(capsys, "pfs", *arguments)


@pytest.fixture
def spec(tmp_path):
    """The small file system, as a TOML file."""
    return emulator.write_spec(tmp_path / "test.toml")


# --- pages ---


def subcommand_page():
    """Sections of docs/commands.md by subcommand."""
    text = (ROOT / "docs/commands.md").read_text().split("## forebay pfs\n")[1]
    text = re.split(r"^## ", text, flags=re.MULTILINE)[0]
    parts = re.split(r"^### forebay pfs ([\w-]+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_subcommand_is_documented_and_no_other():
    assert set(subcommand_page()) == set(command.commands)


@pytest.mark.parametrize("name", command.commands)
def test_every_option_of_a_subcommand_is_documented_and_no_other(capsys, name):
    usage = subcommand_page()[name].split("`")[1]
    found = [one for one in command.commands[name].params if isinstance(one, click.Option)]
    options = {option for one in found for option in one.opts}
    assert set(re.findall(r"--[a-z-]+", usage)) == options
    assert "--json" in options
    assert all(one.help for one in found)
    status, out, _ = run(capsys, name, "--help")
    assert status == 0
    assert "--json" in out


# --- wrong use ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], ""),
        (["nothing"], "No such command"),
        (["mount"], "Missing argument"),
        (["mount", "x"], "Missing argument"),
        (["mount", "x", "y", "--targets", "0"], "--targets"),
        (["mount", "x", "y", "--stripe", "wide"], "--stripe"),
        (["mount", "x", "y", "--time-scale", "much"], "expected a number or auto, found 'much'"),
        (["mount", "x", "y", "--time-scale", "-1"], "time_scale: expected a number above 0"),
        (["mount", "x", "y", "--preset", "nfs", "--spec", "z"], "a preset or a spec, found both"),
        (["stats"], "Missing argument"),
        (["stats", "x", "--json", "--prometheus"], "exclude each other"),
        (["fault", "x", "flood"], "'flood'"),
        (["fault", "x", "eio"], "fault eio needs --file"),
        (["fault", "x", "stall", "--server", "1"], "fault stall needs --for"),
        (["fault", "x", "slow"], "fault slow needs --server and --factor"),
        (["fault", "x", "clear", "--server", "1"], "fault clear takes no --server"),
        (["fault", "x", "stall", "--server", "1", "--for", "0"], "--for"),
        (["presets", "lustre"], "lustre-hdd"),
    ],
)
def test_wrong_use_ends_with_2_and_says_what_is_right(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("name", ["stats", "reset", "drop-caches", "unmount"])
def test_what_is_no_mount_fails_with_1_and_a_hint(capsys, tmp_path, name):
    status, out, err = run(capsys, name, tmp_path)
    assert (status, out) == (1, "")
    assert err.startswith(f"forebay: {tmp_path}: expected a path on a mount of the emulator, found none")
    assert "hint: forebay pfs list" in err


@needs_fuse
def test_bad_mounts_fail_with_a_message_each(capsys, tmp_path, backing, points, spec):
    full = tmp_path / "full"
    full.mkdir()
    (full / "thing").touch()
    cases = [
        (1, (backing, tmp_path / "gone"), "hint: mkdir -p"),
        (1, (backing, full), "expected an empty directory, found thing"),
        (1, (backing, "/proc"), "it is a mount already, of type proc"),
        (1, (tmp_path / "gone", points[0]), "gone: No such file or directory"),
        (1, (backing / "file", points[0]), "expected a directory, found a file"),
        (2, (backing, backing), "it is the backing directory itself"),
        (2, (backing, points[0], points[0]), "given twice"),
        (2, (backing, points[0], "--preset", "lustre"), "the presets are"),
        (2, (backing, points[0], "--spec", spec, "--stripe-count", 9), "stripe_count"),
        (1, (backing, points[0], "--spec", tmp_path / "none.toml"), "none.toml: No such file"),
        (1, (backing, points[0], "--events", tmp_path / "no" / "log"), "its directory is not there"),
    ]
    for expected, arguments, message in cases:
        status, out, err = run(capsys, "mount", *arguments)
        assert (status, out) == (expected, ""), err
        assert message in err
        assert "Traceback" not in err
    assert emulator.ours(tmp_path) == []


# --- from mount to unmount ---


@needs_fuse
def test_mount_stats_and_unmount_go_round(capsys, tmp_path, backing, points, spec):
    made = run_json(capsys, "mount", backing, points[0], "--spec", spec, "--seed", 7)
    assert set(made) == set(documented_keys("`forebay pfs mount --json`"))
    assert made["new_mounts"] == made["mounts"] == [str(points[0])]
    assert (made["joined"], made["removed_stale"]) == (False, [])
    joined = run_json(capsys, "mount", backing, points[1])
    assert (joined["joined"], joined["pid"]) == (True, made["pid"])
    assert joined["mounts"] == [str(point) for point in points]

    run_json(capsys, "reset", points[0])
    expected = (backing / "file").read_bytes()
    for number in range(4):
        assert read_direct(points[0] / "file", number << 20, 65536) == expected[number << 20 :][:65536]
    # On a busy machine it may warn that replies were late, which is no failure.
    status, out, _ = run(capsys, "stats", points[0], "--json")
    assert status == 0
    found = json.loads(out)
    assert (found["nodes"][0]["reads"], found["nodes"][0]["read_bytes"]) == (4, 4 * 65536)
    assert set(found) == set(documented_keys("`forebay pfs stats --json`"))
    assert set(found["nodes"][0]) == set(documented_keys("A node"))
    assert set(found["servers"][0]) == set(documented_keys("A server"))
    assert set(found["files"][0]) == set(documented_keys("A file"))

    status, out, _ = run(capsys, "stats", points[1] / "file")
    assert status == 0
    assert re.search(rf"^0 +4 +256 KiB .*{points[0]}$", out, flags=re.MULTILINE)
    assert re.search(r"^64 KiB +4 +0$", out, flags=re.MULTILINE)
    assert re.search(r"^file +4 +256 KiB ", out, flags=re.MULTILINE)
    status, out, _ = run(capsys, "stats", points[0], "--prometheus")
    assert status == 0
    assert re.search(r"^forebay_pfs_\w+\{.*\} 4$", out, flags=re.MULTILINE)

    listed = run_json(capsys, "list")["mounts"]
    ours = [one for one in listed if one["mount"].startswith(str(tmp_path))]
    assert [(one["mount"], one["alive"], one["pid"]) for one in ours] == [
        (str(point), True, made["pid"]) for point in points
    ]
    assert "test" in run(capsys, "list")[1]
    (points[0] / "file").read_bytes()
    assert run_json(capsys, "drop-caches", *points)["pages_dropped_files"][str(points[0])] >= 1

    assert run_json(capsys, "unmount", *points) == {"unmounted": [str(point) for point in points]}
    assert emulator.ours(tmp_path) == []
    assert run(capsys, "stats", points[0])[0] == 1


@needs_fuse
def test_the_option_for_json_may_stand_before_the_subcommand(capsys, backing, points, spec):
    status, out, _ = run(capsys, "--json", "mount", backing, points[0], "--spec", spec)
    assert status == 0
    assert json.loads(out)["backing"] == str(backing)


@needs_fuse
def test_people_are_told_what_was_mounted_and_what_a_machine_can_hardly_carry(capsys, backing, points):
    status, out, err = run(capsys, "mount", backing, points[0], "--preset", "fefs", "--targets", "3")
    assert status == 0
    assert re.search(rf"^node 0 +{points[0]}$", out, flags=re.MULTILINE)
    assert "fefs: 3 x 2.4 GB/s" in out
    assert "hint: --time-scale auto" in err
    assert run(capsys, "unmount", points[0]) == (0, "", "")
    status, out, err = run(
        capsys, "mount", backing, points[0], "--preset", "fefs", "--targets", "3", "--time-scale", "auto"
    )
    assert (status, err) == (0, "")
    assert re.search(r", 18 times slower$", out, flags=re.MULTILINE)


@needs_fuse
def test_faults_are_set_and_cleared(capsys, backing, points, spec):
    run_json(capsys, "mount", backing, *points, "--spec", spec)
    found = run_json(capsys, "fault", points[0], "eio", "--file", "file", "--from", "1MiB", "--to", "2MiB")
    assert found["kind"] == "eio"
    with (points[1] / "file").open("rb", buffering=0) as file:
        with pytest.raises(OSError) as failed:  # noqa: PT011 - its number says which
            os.pread(file.fileno(), 100, 1 << 20)
        assert failed.value.errno == errno.EIO
        assert os.pread(file.fileno(), 100, 4 << 20)
    run_json(capsys, "fault", points[0], "slow", "--server", 3, "--factor", 2)
    run_json(capsys, "fault", points[0], "stall", "--server", 0, "--for", 0.2)
    assert "fault" in run(capsys, "stats", points[0])[1]
    run_json(capsys, "fault", points[0], "clear")
    assert (points[0] / "file").read_bytes() == (backing / "file").read_bytes()
    status, _, err = run(capsys, "fault", points[0], "stall", "--server", 9, "--for", 1)
    assert status in (1, 2)
    assert "9" in err
    run_json(capsys, "fault", points[0], "partition")
    with pytest.raises(OSError) as failed:  # noqa: PT011 - its number says which
        (points[0] / "file").read_bytes()
    assert failed.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    assert run(capsys, "unmount", *points) == (0, "", "")


@needs_fuse
def test_a_stale_mount_is_removed_at_the_next_start_and_that_is_told(capsys, backing, points, spec):
    made = run_json(capsys, "mount", backing, points[0], "--spec", spec)
    process = os.pidfd_open(made["pid"])
    os.kill(made["pid"], signal.SIGKILL)
    emulator.wait_for(process)
    status, _, err = run(capsys, "stats", points[0])
    assert status == 1
    assert f"hint: forebay pfs unmount {points[0]}" in err
    assert "stale" in run(capsys, "list")[1]
    status, _, err = run(capsys, "mount", backing, points[0], "--spec", spec)
    assert status == 0
    assert f"forebay: removed the stale mount {points[0]}, whose server is gone" in err


@needs_fuse
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_a_signal_unmounts(backing, points, spec, tmp_path, ending):
    arguments = ["pfs", "mount", backing, points[0], "--spec", spec, "--foreground", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "forebay", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            made = json.loads(process.stdout.readline())
            assert made["pid"] == process.pid
            wait_until_mounted(points[0])
            assert (points[0] / "file").read_bytes() == (backing / "file").read_bytes()
            process.send_signal(ending)
            assert process.wait(DEADLINE_S) == 0, process.stderr.read()
            assert process.stderr.read() == ""
        finally:
            process.kill()
    assert emulator.ours(tmp_path) == []
    assert list(Path(os.environ["FOREBAY_RUNTIME_DIR"]).iterdir()) == []


def wait_until_mounted(point: Path) -> None:
    """Wait until a mount is in the table and its server answers."""
    for _ in range(round(DEADLINE_S * 100)):
        found = pfs.find(point)
        if found is not None and found.alive and found.mount == point:
            return
        signal.sigtimedwait([], 0.01)
    raise AssertionError(f"{point} was not mounted")


@needs_fuse
def test_presets_are_listed_with_their_numbers_and_sources(capsys):
    from forebay_lab import _native

    found = run_json(capsys, "presets")["presets"]
    assert [one["spec"]["name"] for one in found] == _native.pfs_presets()
    assert {"lustre-hdd", "lustre-ssd", "gpfs", "beegfs", "nfs", "fefs", "local-nvme"} <= {
        one["spec"]["name"] for one in found
    }
    status, out, _ = run(capsys, "presets")
    assert status == 0
    assert out.startswith("preset")
    status, out, _ = run(capsys, "presets", "fefs")
    assert status == 0
    assert "source of seek_us: " in out or "source of latency_us: " in out
