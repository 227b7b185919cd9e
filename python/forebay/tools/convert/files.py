"""Flushing to the disk, so that a file that has its name is whole, also after a power cut."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["flush"]


def flush(path: Path) -> None:
    """Return when the bytes of a file are on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
