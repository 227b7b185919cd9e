"""Directories that cannot be tiers are refused, and sizes that cannot be reached are a warning."""

from __future__ import annotations

import fcntl
import os
import warnings

import pytest

import forebay
import forebay_lab
from support.ranks import tiers
from support.tiering import tier

PID = {rf"\b{os.getpid()}\b": "PID"}


def loader(path, *given, **options):
    dataset = forebay.open(path)
    return forebay.Loader(dataset, batch_size=7, node_memory="64MiB", tiers=list(given) or None, **options)


def own_directory(path):
    """Make the directory of a tier in which this user's copies are."""
    own = path / f"forebay-{os.geteuid()}"
    own.mkdir(parents=True, mode=0o700)
    return own


def test_a_directory_that_cannot_be_a_tier_is_refused_with_a_hint(daemon, tmp_path, tier_data, says):
    file, link, open_to_others = tmp_path / "file", tmp_path / "link", tmp_path / "open"
    file.touch()
    own_directory(link).rmdir()
    (link / f"forebay-{os.geteuid()}").symlink_to(tmp_path)
    own_directory(open_to_others).chmod(0o755)
    for path in (tmp_path / "missing", file, link, open_to_others):
        with says(forebay.OptionError, path, replace={rf"(?<=forebay-){os.geteuid()}\b": "UID"}):
            loader(tier_data.formats["npy"], f"{path}:8MiB")


def test_two_tiers_on_one_directory_are_refused(daemon, tmp_path, tier_data, says):
    one = tier(tmp_path / "tier")
    (tmp_path / "link").symlink_to(tmp_path / "tier")
    with says(forebay.OptionError, tmp_path / "tier", tmp_path / "link"):
        loader(tier_data.formats["npy"], one, f"{tmp_path}/link:8MiB")
    with loader(tier_data.formats["npy"], one):
        pass


def test_more_than_seven_tiers_are_refused(plain_environment, tmp_path, tier_data, says):
    with says(forebay.OptionError, 7, 8):
        loader(tier_data.formats["npy"], *(f"{tmp_path}/{number}:8MiB" for number in range(8)))


def test_tiers_and_data_lie_apart(daemon, tmp_path, tier_data, says):
    (tmp_path / "link").symlink_to(tier_data.formats["folder"])
    replace = {str(tier_data.formats["folder"].parents[1]): "DATA"}
    with says(forebay.OptionError, tmp_path / "link/class-0", tier_data.formats["folder"], replace=replace):
        loader(tier_data.formats["folder"], f"{tmp_path}/link/class-0:8MiB")
    assert {path.name for path in tier_data.formats["folder"].iterdir()} == {"class-0", "class-1", "class-2"}
    assert not list(tier_data.formats["folder"].rglob("forebay-*"))
    with says(
        forebay.OptionError, tier_data.formats["npy"].parents[1], tier_data.formats["npy"], replace=replace
    ):
        loader(tier_data.formats["npy"], f"{tier_data.formats['npy'].parents[1]}:8MiB")


def test_a_tier_of_another_daemon_names_its_process(daemon, tmp_path, tier_data, says):
    directory = own_directory(tmp_path / "tier") / "v1"
    directory.mkdir(mode=0o700)
    with (directory / "lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        with says(forebay.OptionError, tmp_path / "tier", os.getpid(), replace=PID):
            loader(tier_data.formats["npy"], f"{tmp_path}/tier:8MiB")
    with loader(tier_data.formats["npy"], f"{tmp_path}/tier:8MiB"):
        assert daemon.pids()


@pytest.mark.parametrize("options", [{"access": "mmap"}, {"locate": "scan"}, {"locate": "cursor"}])
def test_strategies_that_read_the_files_themselves_are_refused(
    plain_environment, tmp_path, tier_data, says, options
):
    strategy = forebay_lab.Strategy(
        **{"access": "mmap" if "cursor" in options.values() else "auto", **options}
    )
    with says(forebay.OptionError, "tiers=", next(iter(options.values()))):
        loader(tier_data.formats["lmdb"], tier(tmp_path / "tier"), order="sequential", strategy=strategy)


def test_a_size_that_the_disk_has_not_is_a_warning(daemon, tmp_path, tier_data):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with loader(tier_data.formats["npy"], tier(tmp_path / "small", "8MiB")):
            pass
        assert found == []
        with loader(tier_data.formats["npy"], tier(tmp_path / "large", "1000TiB")) as large:
            assert large.config.tiers.levels[0].bytes == 1000 << 40
    assert [str(tmp_path / "large") in str(warning.message) for warning in found] == [True]


def test_tiers_of_the_system_that_cannot_be_used_are_left_out(daemon, monkeypatch, tmp_path, tier_data):
    (tmp_path / "system.toml").write_text(f'tiers = ["{tmp_path}/missing:8MiB"]\n')
    monkeypatch.setenv("FOREBAY_SYSTEM_CONFIG", str(tmp_path / "system.toml"))
    with pytest.warns(RuntimeWarning, match=f"{tmp_path}/missing"):
        without = loader(tier_data.formats["npy"])
    with without:
        assert without.config.tiers is None
        assert [fallback.wanted for fallback in without.config.fallbacks] == ["tiers"]
    with loader(tier_data.formats["npy"], strategy="mmap") as mapped:
        assert mapped.config.tiers is None
        assert mapped.config.fallbacks == ()
    with pytest.raises(forebay.OptionError):
        loader(tier_data.formats["npy"], f"{tmp_path}/missing:8MiB")


def test_nodes_may_have_other_tiers_of_the_system(daemon, pool, tmp_path, tier_data):
    with_tier, without = tmp_path / "with.toml", tmp_path / "without.toml"
    with_tier.write_text(f'tiers = ["{tier(tmp_path / "tier")}"]\n')
    without.touch()
    files = [str(with_tier), str(with_tier), str(without)]
    found = pool.run(
        3,
        tiers.of_system,
        lambda rank: {"system_file": files[rank]},
        nodes=(0, 0, 1),
        path=str(tier_data.formats["npy"]),
    )
    assert found == [[str(tmp_path / "tier")]] * 2 + [[]]
