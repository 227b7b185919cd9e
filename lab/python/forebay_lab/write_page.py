"""Writing a page: whole or not at all, and only in place of another page."""

from __future__ import annotations

import os
from pathlib import Path

from forebay._core import option_error

_BEGIN = b"<!doctype html"


def check(path: Path) -> None:
    """Refuse a place where something is that is no page.

    Raises
    ------
    OptionError
        If it is another file (the dataset that was meant to be read, say), a directory or a
        device.
    """
    if not os.path.lexists(path):
        return
    if path.is_file():
        with path.open("rb") as file:
            begin = file.read(len(_BEGIN))
        if not begin or begin.lower() == _BEGIN:
            return
    raise option_error(
        f"{path}: is there already, and no HTML page; it would be overwritten",
        "name another file for the page, or remove that one",
    )


def save(page: str, path: Path) -> None:
    """Write a page; readers see the old file or the whole new one.

    Raises
    ------
    OptionError
        As `check`.
    OSError
        If it cannot be written.
    """
    check(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        beside.write_text(page, "utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
