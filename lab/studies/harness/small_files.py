"""Many small files in directories, made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

__all__ = ["make"]


def make(path: Path, count: int, per_directory: int, name: str, data: Callable[[int], bytes]) -> bool:
    """Make files below a directory; return whether they were not there.

    Parameters
    ----------
    path
        The directory, which appears when it is complete.
    count
        How many files.
    per_directory
        Files of each directory.
    name
        Template of a name, of the file's number.
    data
        Number of a file → its content.
    """
    if path.exists():
        return False
    draft = path.with_name(f"{path.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    for number in range(count):
        directory = draft / f"class-{number // per_directory:06d}"
        if number % per_directory == 0:
            directory.mkdir(parents=True)
        (directory / name.format(number)).write_bytes(data(number))
    draft.rename(path)
    return True
