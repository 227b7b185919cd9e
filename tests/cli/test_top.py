"""`forebay top`: running runs, once or live."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

import support
from forebay import _native
from support import run_command
from support.run_session import a_summary

LEVEL = {
    "name": "/the/tier",
    "path": "/the/tier/forebay-0/v1",
    "opens": 5,
    "bytes": 5 << 20,
    "quota_bytes": 1 << 30,
    "taken_bytes": 1 << 20,
    "state": "full",
}
RUN = a_summary(sources=["/data/set"], opens=7, opens_served=5, levels=[LEVEL])


@pytest.fixture
def usage(monkeypatch):
    def give(runs, sources=()):
        monkeypatch.setattr(_native, "run_usage", lambda: runs, raising=False)
        usage = {"levels": [{"name": "/the/tier", "sources": list(sources)}]}
        monkeypatch.setattr(_native, "tiers_usage", lambda: json.dumps(usage), raising=False)

    return give


def test_runs_are_printed_once_where_there_is_no_terminal(capsys, usage):
    usage([RUN])
    status, out, err = run_command(capsys, "top")
    assert (status, err) == (0, "")
    header, run, tier = out.splitlines()
    assert header.split()[0] == "source"
    assert run.split()[:3] == ["/data/set", "7", "5"]
    assert tier.split()[:2] == ["/the/tier", "(full)"]


def test_json_has_all(capsys, usage):
    usage([RUN])
    assert json.loads(run_command(capsys, "top", "--json")[1]) == {"runs": [RUN], "loaders": []}
    assert support.documented_keys("`forebay top --json`") == ["runs", "loaders"]


def test_sources_that_loaders_use_are_shown(capsys, usage):
    source = {"path": "/data/x.tar", "bytes": 100 << 20, "pieces": 160, "is_used": True}
    usage([], [source, {**source, "path": "/data/unused", "is_used": False}])
    _, row = run_command(capsys, "top", "--once")[1].splitlines()
    assert row.split() == ["/data/x.tar", "(loader)", "10", "MiB", "100", "MiB"]
    (loader,) = json.loads(run_command(capsys, "top", "--json")[1])["loaders"]
    assert loader == {
        "path": "/data/x.tar",
        "bytes": 100 << 20,
        "tiers": [{"name": "/the/tier", "held_bytes": 10 << 20}],
    }


@pytest.mark.parametrize("runs", [None, []])
def test_no_run_is_no_error(capsys, usage, runs):
    usage(runs)
    status, out, _ = run_command(capsys, "top", "--once")
    assert (status, out.count("\n")) == (0, 1)


def test_a_terminal_shows_runs_until_an_interrupt():
    code = """
import json, sys
from forebay import _native
from forebay.cli import main
run = json.loads(sys.argv[1])
def run_usage():
    run["levels"][0]["bytes"] += 1 << 20
    return [run]
_native.run_usage = run_usage
sys.exit(main(["top", "--interval", "0.1"]))
"""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "20"}
    command = [sys.executable, "-c", code, json.dumps(RUN)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while b"iB/s" not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:
                break
    os.close(ours)
    assert process.returncode == 0
    assert b"/data/set" in shown
