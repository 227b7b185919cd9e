"""What worker processes of the tests of `Dataset.read` run, after a fork or a spawn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import forebay

_held: list[forebay.Dataset] = []


def hold(dataset: forebay.Dataset) -> None:
    """Keep the dataset of this worker."""
    _held[:] = [dataset]


def descriptors_below(directory: str) -> list[str]:
    """Return what is open below a directory, once for each descriptor."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith(directory):
            found.append(target)
    return sorted(found)


def read(arguments: tuple[list[int], str]) -> tuple[int, list[Any], list[str], list[str]]:
    """Return pid, samples, and what is open below a directory after one batch and after many."""
    ids, directory = arguments
    (dataset,) = _held
    samples = dataset.__getitems__(ids)
    once = descriptors_below(directory)
    for _ in range(20):
        dataset.read(ids)
        dataset[ids[0]]
    return os.getpid(), samples, once, descriptors_below(directory)
