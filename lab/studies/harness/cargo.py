"""Rust programs that studies run: examples of the crates, built by cargo."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from studies.harness.sections import ROOT

__all__ = ["build", "example"]

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def build(*words: str) -> None:
    """Build what the words name."""
    subprocess.run(["cargo", "build", "--quiet", *words], cwd=ROOT, check=True)


def example(package: str, name: str) -> Path:
    """Build an example, optimized; return its path."""
    build("--release", "--package", package, "--example", name)
    return TARGET / "release/examples" / name
