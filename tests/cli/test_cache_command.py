"""``forebay cache``: what the tiers hold, with a daemon and without."""

from __future__ import annotations

import errno
import io
import json
import tarfile

import pytest
from click.testing import CliRunner

import forebay
from forebay.cli.commands import cli
from support import tiering
from support.tiering import DATA_BYTES, PIECES, daemon, tier_data  # noqa: F401


def run(*arguments, status=0):
    result = CliRunner().invoke(cli, ["cache", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


def make(data, *paths, order="sequential"):
    """Return a loader with these tiers that has read an epoch."""
    dataset = forebay.open(data, **tiering.opening("raw"))
    strategy = forebay.Strategy(access="pread")
    tiers = [tiering.tier(path) for path in paths]
    loader = forebay.Loader(dataset, 16, order=order, node_memory="128MiB", strategy=strategy, tiers=tiers)
    for _ in loader:
        pass
    return loader


@pytest.fixture
def filled(tier_data, daemon, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    path = tmp_path / "tier"
    data = tier_data.formats["raw"]
    make(data, path).close()
    return path, data, daemon


def test_the_copies_of_a_tier_are_listed_verified_and_cleared(filled):
    path, data, daemon = filled  # noqa: F811
    (level,) = json.loads(run("ls", "--json"))["levels"]
    assert (level["name"], level["state"], level["quota_bytes"]) == (str(path), "open", 64 << 20)
    (source,) = level["sources"]
    assert (source["path"], source["bytes"], source["pieces"]) == (str(data), DATA_BYTES, PIECES)
    text = run("ls")
    assert all(one in text for one in (str(data), "100%"))
    daemon.end()
    # Without a daemon the log is read.
    (stored,) = json.loads(run("ls", path, "--json"))["levels"]
    assert (stored["state"], stored["sources"][0]["pieces"]) == ("stored", PIECES)
    checked = json.loads(run("verify", path, "--json"))["tiers"][str(path)]
    assert checked == {"pieces": PIECES, "bytes": DATA_BYTES, "damaged": [], "lost_log_bytes": 0}
    slab = min((path / "forebay-0/v1/slabs").iterdir())
    contents = bytearray(slab.read_bytes())
    contents[70_000] ^= 1
    slab.write_bytes(contents)
    text = run("verify", path, status=1)
    assert all(one in text for one in (str(slab), "65536", str(data)))
    # A slab that is gone is not used, so it is no damage.
    slab.unlink()
    assert json.loads(run("verify", path, "--json"))["tiers"][str(path)]["damaged"] == []
    slab.write_bytes(contents)
    freed = json.loads(run("clear", path, "--json"))["freed_bytes"]
    assert freed >= DATA_BYTES
    assert json.loads(run("ls", path, "--json"))["levels"][0]["sources"] == []


def test_nothing_is_made_where_there_is_no_tier(daemon, tmp_path):  # noqa: F811
    tmp_path = tmp_path / "tier"
    tmp_path.mkdir()
    assert json.loads(run("ls", tmp_path, "--json")) == {"levels": [], "daemon": None, "sidecars": []}
    assert json.loads(run("verify", tmp_path, "--json")) == {"tiers": {}}
    assert json.loads(run("clear", tmp_path, "--json")) == {"freed_bytes": 0, "in_use": {}, "sidecars": 0}
    assert "no tier daemon" in run("stop")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_log_is_told_of_and_its_slabs_are_deleted(filled):
    path, _, running = filled
    running.end()
    log = path / "forebay-0/v1/log"
    contents = log.read_bytes()
    middle = len(contents) // 2
    log.write_bytes(contents[:middle] + bytes([contents[middle] ^ 1]) + contents[middle + 1 :])
    (checked,) = json.loads(run("verify", path, "--json"))["tiers"].values()
    assert checked["pieces"] < PIECES
    assert 0 < checked["lost_log_bytes"] < len(contents)
    # Without a log nothing is known of the slabs.
    log.unlink()
    assert json.loads(run("ls", path, "--json"))["levels"][0]["sources"] == []
    assert json.loads(run("clear", path, "--json"))["freed_bytes"] >= DATA_BYTES
    # A log of another version is left alone.
    log.write_bytes(contents[:8] + b"\x02" + contents[9:])
    for command in ("ls", "verify", "clear"):
        result = CliRunner().invoke(cli, ["cache", command, str(path)])
        assert isinstance(result.exception, forebay.OptionError)
        assert all(one in str(result.exception) for one in (str(log), "version 1", "version 2"))


def test_with_a_daemon_only_the_named_tier_is_cleared(filled, tmp_path):
    path, data, daemon = filled  # noqa: F811
    other = tmp_path / "other"
    make(data, other).close()
    assert daemon.pieces() == 2 * PIECES
    link = tmp_path / "link"
    link.symlink_to(path)
    # A tier may have another name than the daemon knows.
    (level,) = json.loads(run("ls", link, "--json"))["levels"]
    assert level["state"] == "open"
    assert json.loads(run("clear", link, "--json"))["freed_bytes"] >= DATA_BYTES
    held = {level["name"]: len(level["sources"]) for level in daemon.usage()["levels"]}
    assert held == {str(path): 0, str(other): 1}
    # Without a name all tiers of the daemon are.
    run("clear")
    assert daemon.pieces() == 0


def test_what_a_loader_uses_is_neither_cleared_nor_stopped(filled):
    path, data, daemon = filled  # noqa: F811
    loader = make(data, path)
    cleared = json.loads(run("clear", path, "--json"))
    assert cleared == {"freed_bytes": 0, "in_use": {str(path): [str(data)]}, "sidecars": 0}
    assert daemon.pieces() == PIECES
    (pid,) = daemon.pids()

    def stop(status=0):
        found = json.loads(run("stop", "--json", status=status))
        return found["daemon"], found["clients"], found["pid"]

    assert stop(status=1) == (True, 1, pid)
    assert daemon.pids() == [pid]
    loader.close()
    assert stop() == (True, 0, pid)
    assert stop() == (False, 0, None)


def test_copies_of_a_running_loader_are_verified(tier_data, daemon, tmp_path):  # noqa: F811
    path = tmp_path / "tier"
    data = tier_data.whole / "x.raw"
    dataset = forebay.open(data, format="raw", record_bytes=1 << 16)
    strategy = forebay.Strategy(access="pread")
    tiers = [tiering.tier(path)]
    with forebay.Loader(
        dataset, 4, node_memory="128MiB", strategy=strategy, tiers=tiers, order="shuffle"
    ) as loader:
        for number, batch in enumerate(loader):
            # The command ends by an exception, whose frames would keep the batch.
            del batch
            if number % 8 == 0:
                assert json.loads(run("verify", path, "--json"))["tiers"][str(path)]["damaged"] == []


@pytest.mark.parametrize("command", ["ls", "verify", "clear"])
def test_a_tier_that_is_no_directory_is_an_error(daemon, tmp_path, command):  # noqa: F811
    (tmp_path / "file").touch()
    for name, number in (("missing", errno.ENOENT), ("file", errno.ENOTDIR)):
        result = CliRunner().invoke(cli, ["cache", command, str(tmp_path / name)])
        assert isinstance(result.exception, forebay.StorageError)
        assert (result.exception.errno, result.exception.filename) == (number, str(tmp_path / name))


def test_copies_are_compared_with_their_sources(filled, tmp_path):
    path, data, running = filled
    compared = json.loads(run("verify", path, "--against-source", "--json"))["tiers"][str(path)]
    assert (compared["pieces"], compared["bytes"]) == (PIECES, DATA_BYTES)
    assert (compared["differing"], compared["outdated"], compared["folders"]) == ([], [], [])
    slab = min((path / "forebay-0/v1/slabs").iterdir())
    contents = bytearray(slab.read_bytes())
    for at in (70_000, 200_000):
        contents[at] ^= 1
    slab.write_bytes(contents)
    text = run("verify", path, "--against-source", status=1)
    assert all(one in text for one in (str(data), "2 piece(s) differ", "--drop"))
    assert running.pieces() == PIECES
    dropped = json.loads(run("verify", path, "--against-source", "--drop", "--json", status=1))
    assert dropped["tiers"][str(path)]["dropped"]
    assert running.pieces() == 0
    run("verify", path, "--against-source")
    running.end()
    assert json.loads(run("verify", path, "--against-source", "--json"))["tiers"][str(path)]["pieces"] == 0
    run("verify", path, "--drop", status=2)


def test_copies_of_one_source_are_cleared(filled, tmp_path):
    path, data, running = filled
    other = tmp_path / "other.raw"
    other.write_bytes(data.read_bytes())
    tiering.settle([other])
    make(other, path).close()
    assert running.pieces() == 2 * PIECES
    freed = json.loads(run("clear", path, "--source", other, "--json"))["freed_bytes"]
    assert freed >= DATA_BYTES
    (source,) = json.loads(run("ls", path, "--json"))["levels"][0]["sources"]
    assert source["path"] == str(data)
    # Without a daemon, and by a directory above it.
    running.end()
    run("clear", path, "--source", data.parent)
    assert json.loads(run("ls", path, "--json"))["levels"][0]["sources"] == []


def test_sidecars_of_indexes_are_listed_and_cleared(daemon, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(3):
            entry = tarfile.TarInfo(f"{number}.bin")
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"abcd"))
    result = CliRunner().invoke(cli, ["index", str(path)])
    assert result.exit_code == 0, result.output
    (sidecar,) = json.loads(run("ls", "--json"))["sidecars"]
    assert (len(sidecar["names"]), sidecar["samples"], sidecar["format"]) == (1, 3, "tar")
    assert sidecar["names"][0].endswith("x.tar")
    assert "x.tar" in run("ls")
    assert json.loads(run("clear", "--json"))["sidecars"] == 1
    assert json.loads(run("ls", "--json"))["sidecars"] == []
