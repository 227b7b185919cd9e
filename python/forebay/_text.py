"""Values as text for people."""

from __future__ import annotations

__all__ = ["bytes_text"]


def bytes_text(size: float) -> str:
    """Write a number of bytes for people: ``1536`` is ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size == int(size) else f"{size:.1f} {unit}"
