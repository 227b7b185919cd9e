"""The preload library, and a table with copies that stands in for the daemon's."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import forebay
from support import DEADLINE_S, ROOT

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# That of the Rust tests, which have built the helpers then.
PROFILE = os.environ.get("PROFILE", "dev")


def build_examples(*names):
    """Build examples of crates; return their paths."""
    chosen = [word for name in names for word in ("--example", name)]
    command = ["cargo", "build", "--quiet", "--workspace", "--profile", PROFILE, *chosen]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    directory = TARGET / ("debug" if PROFILE == "dev" else PROFILE) / "examples"
    return [directory / name for name in names]


@dataclass(frozen=True)
class Preload:
    """What was built."""

    library: Path
    copy_files: Path
    file_operations: Path

    def environment(self, table):
        """Return the environment of a program that is served from a table."""
        return {**os.environ, "LD_PRELOAD": str(self.library), "FOREBAY_TABLE": str(table)}


@dataclass(frozen=True)
class Copies:
    """Files that have copies on another file system, and their table."""

    preload: Preload
    source: Path
    level: Path
    table: Path

    def counters(self):
        """Return the counters of the table, and the paths of the wishes."""
        command = [self.preload.copy_files, "show", self.table]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        pairs = [line.split(" ", 1) for line in lines]
        found = {name: int(value) for name, value in pairs if name != "wish"}
        return found, [value for name, value in pairs if name == "wish"]

    def run(self, command, **options):
        """Run a program that is served."""
        environment = {**self.preload.environment(self.table), **options.pop("env", {})}
        return run(command, env=environment, **options)


def run(command, **options):
    """Run a program; return its output, its errors and its exit status."""
    options = {"env": dict(os.environ), **options}
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False, **options)
    return done.stdout, done.stderr, done.returncode


@pytest.fixture(scope="session")
def preload():
    """Return the library of the package; build the helpers of its tests."""
    library = Path(forebay.__file__).with_name("libforebay_preload.so")
    return Preload(library, *build_examples("copy_files", "file_operations"))


@pytest.fixture(scope="session")
def make_copies(preload):
    """Make a table for a directory, with its copies in memory."""
    with tempfile.TemporaryDirectory(prefix="copies-of-a-test-", dir="/dev/shm") as levels:

        def make(source, *options):
            level = Path(tempfile.mkdtemp(dir=levels))
            table = level / "table"
            command = [preload.copy_files, "make", table, level / "v1", source, *options]
            subprocess.run(command, check=True)
            return Copies(preload, source, level / "v1", table)

        yield make
