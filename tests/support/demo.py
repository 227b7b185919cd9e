"""Helpers for tests of the demo: a small dataset, an empty directory, a directory for mounts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay_lab.demo import data
from support.emulator import remove_all

SAMPLES = 2000


def quiet(done: int, every: int) -> None:
    """Discard progress."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> data.DemoDataset:
    return data.prepare(tmp_path_factory.mktemp("demo") / "data", data.Spec(SAMPLES), quiet)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Make an empty directory."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put temporary directories, and so mounts, in an empty directory; unmount all at the end."""
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    remove_all(tmp_path)
