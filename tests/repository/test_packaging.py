"""The package holds the extension and the preload library, however it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import forebay
from support import DEADLINE_S, ROOT

# It builds a wheel and an sdist.
pytestmark = pytest.mark.full

LIBRARY = "libforebay_preload.so"


def build(hook, directory):
    """Call a hook of the build backend as pip does; return the file that it makes."""
    code = f"import sys, build_backend as b; print(b.{hook}(sys.argv[1]))"
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        [sys.executable, "-c", code, directory],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory / done.stdout.splitlines()[-1]


def test_a_wheel_holds_the_preload_library(tmp_path):
    with zipfile.ZipFile(build("build_wheel", tmp_path)) as wheel:
        names = set(wheel.namelist())
        assert {"forebay/_native.abi3.so", f"forebay/{LIBRARY}", "forebay/cli/__init__.py"} <= names
        assert wheel.read(f"forebay/{LIBRARY}") == Path(forebay.__file__).with_name(LIBRARY).read_bytes()


def test_an_sdist_holds_what_a_build_needs(tmp_path):
    with tarfile.open(build("build_sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    members = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    assert {f"{member}/Cargo.toml" for member in members} <= names
    assert {"Cargo.toml", "Cargo.lock", "scripts/build_backend.py", "LICENSE", "PKG-INFO"} <= names
    assert "run/forebay-preload/build.rs" in names


def test_a_build_without_rust_says_so_at_once(tmp_path):
    code = "import build_backend as b; b.get_requires_for_build_wheel()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert "needs Rust" in first
    assert second.startswith("hint: ")
