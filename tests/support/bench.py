"""Helpers for tests of forebay bench: a dataset, broken programs, a bench run or interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import support
from forebay_lab.ranks import launch

SAMPLES = 500
PARTS = ("exposed_seconds", "compute_seconds", "communication_seconds", "skew_seconds")

OWN_BASELINES = '''
import os, sys, time
from functools import partial
from forebay_lab.bench.baselines import Baseline
from forebay_lab.bench.baselines.pylmdb_skipping import open_skipping


class Changed:
    """Skipping, with something wrong from step 2 on."""

    def __init__(self, what, place):
        self._what, self._place, self._inner = what, place, open_skipping(True, place)

    def epoch(self, number):
        for step, (ids, records) in enumerate(self._inner.epoch(number)):
            if step == 2 and self._place.rank == 1:
                if self._what == "dies":
                    sys.exit("the disk is on fire")
                if self._what == "raises":
                    raise ValueError("boom")
                if self._what == "hangs":
                    time.sleep(600)
                if self._what == "lies":
                    records[0] = b"x" + records[0][1:]
                if self._what == "loses":
                    ids[0], records[0] = ids[1], records[1]
            yield ids, records

    def facts(self):
        return {}

    def close(self):
        self._inner.close()


BASELINES = tuple(
    Baseline(name=what, order="sequential", about="", open=partial(Changed, what), formats=("lmdb",))
    for what in ("dies", "raises", "hangs", "lies", "loses")
)
'''


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """An LMDB whose samples fill no last step."""
    values = [support.record(number, 200 + number % 7 * 600) for number in range(SAMPLES)]
    return support.write_lmdb(tmp_path_factory.mktemp("bench") / "train.lmdb", values)


@pytest.fixture
def own_baselines(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN_BASELINES)
    return path


def run(capsys, *arguments):
    return support.run_command(capsys, "bench", *arguments)


def run_json(capsys, *arguments):
    status, out, err = run(capsys, *arguments, "--json")
    assert out.count("\n") == 1, err
    return status, json.loads(out)


def rows_of(result):
    return {row["name"]: row for row in result["rows"]}


def interrupted(data, own_baselines, scratch, *arguments, by=signal.SIGINT):
    """Start a bench that hangs, interrupt it, look for what it left."""
    scratch.mkdir()
    command = [sys.executable, "-m", "forebay", "bench", str(data), "--ranks", "2", "--batch-size", "16"]
    command += ["--baseline", str(own_baselines), "--strategies", "hangs", *arguments]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(scratch)}
    )
    end = time.monotonic() + support.DEADLINE_S
    while not list(scratch.glob("forebay-bench-*/scratch-1")):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(by)
    assert process.stderr is not None
    assert "interrupted" in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=support.DEADLINE_S) == 130
    assert not list(scratch.glob("forebay-bench-*"))
    needle = str(scratch).encode()
    left = [pid for pid in launch._processes() if pid != os.getpid() and needle in command_line(pid)]
    assert not left


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
