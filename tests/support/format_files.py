"""One small file of every format that has files of many samples, written by `forebay convert`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import forebay
from forebay.tools.convert import convert
from forebay.tools.convert.source import open_source

SAMPLES = 64
SAMPLE_BYTES = 6000
FORMATS = ["lmdb", "hdf5", "npy", "npz", "raw", "recordio", "tfrecord", "tar"]


def write(directory: Path, kind: str, shift: int) -> Path:
    """Write samples whose bytes all tell their number and ``shift``; return the file."""
    directory.mkdir()
    rows = (np.arange(SAMPLES, dtype="uint8") + shift)[:, None].repeat(SAMPLE_BYTES, 1)
    np.save(directory / "x.npy", rows)
    if kind == "npy":
        return directory / "x.npy"
    path = directory / {"recordio": "x.rec"}.get(kind, f"x.{kind}")
    source = open_source(lambda: forebay.open(directory / "x.npy"), [str(directory / "x.npy")], [])
    convert(source, path, to=kind)
    return path / "data.mdb" if path.is_dir() else path


def opened(path: Path, kind: str) -> forebay.Dataset:
    """Open the file of a format and make its index."""
    options = {"record_bytes": SAMPLE_BYTES} if kind == "raw" else {}
    dataset = forebay.open(path, format=kind, **options)
    assert len(dataset) == SAMPLES
    return dataset
