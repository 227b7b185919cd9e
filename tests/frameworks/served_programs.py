"""Programs that are run with and without the preload library, over a directory of small files."""

from __future__ import annotations

import os
import random
import sys

import numpy as np

from support.preload import run

FILES = 12


def write_files(directory):
    """Write small files, each from another seed, and an array; return the directory."""
    directory.mkdir()
    for number in range(FILES):
        (directory / f"{number:02}.bin").write_bytes(random.Random(number).randbytes(5_000 + number))
    np.save(directory / "array.npy", np.arange(1000))
    return directory


def run_without(source, tmp_path, text):
    """Run a program without the library; return its output, its errors and its exit status."""
    found = _run(run, source, tmp_path, text)
    assert found[2] == 0, found[1]
    return found


def check_served(copies, tmp_path, text, opened, expected):
    """Run a program with the library; check its results, and that it redirected enough opens."""
    assert _run(copies.run, copies.source, tmp_path, text) == expected
    counters, _ = copies.counters()
    assert counters["opened"] >= opened
    assert not any(counters[reason] for reason in ("open_failed", "other_copy", "number_failed", "changed"))


def check_same(copies, tmp_path, text, opened):
    """Compare a program with and without the library; check that it redirected enough opens."""
    check_served(copies, tmp_path, text, opened, run_without(copies.source, tmp_path, text))


def _run(how, source, tmp_path, text):
    program = tmp_path / "program.py"
    program.write_text(text)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0"}
    return how([sys.executable, "-W", "ignore", str(program)], cwd=source, env={**os.environ, **quiet})
