"""Command lines that `forebay run` refuses: nothing starts, and the message says what to do."""

from __future__ import annotations

import os
import sys

import pytest

from forebay.tools.run import served
from support import run_command


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A tier and a source, and no tier from elsewhere."""
    for name in ("tier", "source", "source/inner"):
        (tmp_path / name).mkdir()
    for name in ("file", "source/file"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    for name in ("FOREBAY_TIERS", "FOREBAY_CONFIG", "FOREBAY_TABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FOREBAY_SYSTEM_CONFIG", "/dev/null")
    return tmp_path


TIER, SOURCE = ("--tier", "tier:8MiB"), ("--source", "source")

CASES = {
    "no command": ((*TIER, *SOURCE), "-- python train.py"),
    "no command after the dashes": ((*TIER, *SOURCE, "--"), "-- python train.py"),
    "no dashes": ((*TIER, *SOURCE, "touch", "begun"), "-- touch begun"),
    "unknown option": (("--teir", "tier:8MiB", *SOURCE, "--", "touch", "begun"), "--teir"),
    "option without a value": ((*SOURCE, "--tier"), "--tier"),
    "unknown way to fetch": (
        (*TIER, *SOURCE, "--fetch", "half", "--", "touch", "begun"),
        "one of whole, none; found 'half'",
    ),
    "no tier": ((*SOURCE, "--", "touch", "begun"), "--tier"),
    "no source": ((*TIER, "--", "touch", "begun"), "--source"),
    "no such source": ((*TIER, "--source", "missing", "--", "touch", "begun"), "--source missing"),
    "empty source": ((*TIER, "--source", "", "--", "touch", "begun"), "--source"),
    "source is a device": ((*TIER, "--source", "/dev/null", "--", "touch", "begun"), "a directory or a file"),
    "tier is a file": (("--tier", "file:8MiB", *SOURCE, "--", "touch", "begun"), "tier file: expected a dir"),
    "source file inside of the tier": (
        ("--tier", "source:8MiB", "--source", "source/file", "--", "touch", "begun"),
        "source/file inside of source",
    ),
    "no such tier": (("--tier", "missing:8MiB", *SOURCE, "--", "touch", "begun"), "tier missing"),
    "no size": (("--tier", "tier", *SOURCE, "--", "touch", "begun"), "--tier /scratch/me:200GiB"),
    "size that cannot be read": (("--tier", "tier:much", *SOURCE, "--", "touch", "begun"), "'much'"),
    "size zero": (("--tier", "tier:0", *SOURCE, "--", "touch", "begun"), "'0'"),
    "tier inside of the source": (
        ("--tier", "source/inner:8MiB", *SOURCE, "--", "touch", "begun"),
        "source/inner inside of",
    ),
    "tier is the source": (
        ("--tier", "source:8MiB", *SOURCE, "--", "touch", "begun"),
        "separate directories",
    ),
    "source inside of the tier": (
        ("--tier", "source:8MiB", "--source", "source/inner", "--", "touch", "begun"),
        "source/inner inside of source",
    ),
    "no such directory for the summary": (
        (*TIER, *SOURCE, "--json", "missing/x.json", "--", "touch", "begun"),
        "missing",
    ),
    "summary is a directory": ((*TIER, *SOURCE, "--json", "tier", "--", "touch", "begun"), "a directory"),
    "no such configuration": ((*SOURCE, "--config", "missing.toml", "--", "touch", "begun"), "missing.toml"),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_ends_with_2_and_starts_nothing(capsys, places, case):
    arguments, named = CASES[case]
    status, out, err = run_command(capsys, "run", *arguments)
    assert (status, out) == (2, "")
    assert named in err.replace(f"{places}/", "")
    assert "Traceback" not in err
    assert not (places / "begun").exists()


def test_a_tier_inside_of_the_source_is_found_through_a_link(capsys, places):
    (places / "link").symlink_to("source/inner")
    status, _, err = run_command(capsys, "run", "--tier", "link:8MiB", *SOURCE, "--", "touch", "begun")
    assert (status, "separate directories" in err) == (2, True)


@pytest.mark.parametrize("name", ["missing.so", "with a space.so"])
def test_a_library_that_cannot_be_preloaded_is_named_with_what_builds_it(capsys, places, monkeypatch, name):
    if name != "missing.so":
        (places / name).touch()
    monkeypatch.setattr(served, "LIBRARY", places / name)
    status, _, err = run_command(capsys, "run", *TIER, *SOURCE, "--", "touch", "begun")
    assert status == 2
    assert name in err
    assert ("make build" if name == "missing.so" else "install Forebay in another directory") in err


def test_help_is_printed_though_options_are_missing(capsys):
    status, out, _ = run_command(capsys, "run", "--help")
    assert (status, out.startswith("Usage: ")) == (0, True)


def test_help_of_the_command_is_the_commands(capfd, places, monkeypatch):
    monkeypatch.setenv("FOREBAY_TABLE", "/dev/null")
    pid = os.fork()
    if pid == 0:
        from forebay.cli import main

        os._exit(main(["run", "--", sys.executable, "--help"]))
    assert os.waitpid(pid, 0)[1] == 0
    assert "usage: " in capfd.readouterr().out.partition("\n")[0].lower()
