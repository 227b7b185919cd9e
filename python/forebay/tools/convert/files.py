"""Files that are written: flushed to the disk, whole also after a power cut, and named by kind."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ending_of", "flush"]

# First bytes, where they stand, and the ending.
KINDS = (
    (b"\xff\xd8\xff", 0, ".jpg"),
    (b"\x89PNG\r\n\x1a\n", 0, ".png"),
    (b"GIF8", 0, ".gif"),
    (b"WEBP", 8, ".webp"),
    (b"II*\0", 0, ".tif"),
    (b"MM\0*", 0, ".tif"),
    (b"WAVE", 8, ".wav"),
    (b"fLaC", 0, ".flac"),
    (b"OggS", 0, ".ogg"),
    (b"\x93NUMPY", 0, ".npy"),
)


def flush(path: Path) -> None:
    """Return when the bytes of a file are on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def ending_of(content: bytes) -> str:
    """Return the ending of a name, by the first bytes of the file."""
    return next((ending for mark, at, ending in KINDS if content.startswith(mark, at)), ".bin")
