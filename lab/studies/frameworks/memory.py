"""A million samples in one process: memory over epochs, and the time to the first batch."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from studies.frameworks.contest import prepared, write_formats
from studies.frameworks.footprint import RECORD_BYTES
from studies.harness.sections import MIB, Row, Scope

__all__ = ["memory"]

SAMPLES, TINY_SAMPLES = 1_000_000, 10_000
LIMIT_S = 120
LOADERS = {
    "forebay": ("Forebay, TFRecord, with a sidecar", "forebay"),
    "torch-list": ("torch DataLoader, list of tuples, 2 workers", "torch"),
    "torch-array": ("torch DataLoader, numpy array, 2 workers", "torch"),
}


def memory(scope: Scope) -> list[Row]:
    """A million samples in one process: memory over epochs, start-up."""
    samples = TINY_SAMPLES if scope.tiny else SAMPLES
    folder = prepared(f"memory-{samples}", lambda path: _write(path, samples))
    write_formats(folder, ["tfrecord-one"])
    path = folder / "all.tfrecord"
    # Builds the sidecar.
    _footprint("forebay", path, samples)
    return [_row(name, title, package, path, samples) for name, (title, package) in LOADERS.items()]


def _write(folder: Path, samples: int) -> None:
    records = np.random.default_rng(18).integers(0, 256, (samples, RECORD_BYTES), np.uint8)
    np.save(folder / "records.npy", records)


def _row(name: str, title: str, package: str, path: Path, samples: int) -> Row:
    row: Row = {"name": title, "samples": samples}
    if find_spec(package) is None:
        return row | {"status": "skipped", "error": f"not installed: {package}"}
    try:
        found = _footprint(name, path, samples)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return row | {"status": "failed", "error": str(error)}
    first, *_, last = (value - found["before"] for value in found["epochs"])
    return row | {
        "startup_s": found["startup"],
        "first_mib": first / MIB,
        "last_mib": last / MIB,
        "growth_mib": (last - first) / MIB,
        "seconds": found["seconds"],
    }


def _footprint(name: str, path: Path, samples: int) -> dict:
    command = [sys.executable, "-m", "studies.frameworks.footprint", name, str(path), str(samples)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    found: dict = json.loads(done.stdout.splitlines()[-1])
    return found
