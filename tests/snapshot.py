"""Texts for people, compared with files: the fixture ``snapshot``.

A test gives a name and a text; ``tests/snapshots/NAME.txt`` holds what is expected. The test also gives regular expressions for
what differs from run to run, such as paths; their matches are replaced first. ``FOREBAY_WRITE_SNAPSHOTS=1`` writes the files
instead: read the difference before you commit it. Snapshots hold words; assert facts as facts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parent / "snapshots"
VARIABLE = "FOREBAY_WRITE_SNAPSHOTS"
# Read when pytest starts: tests run without variables of ours.
WRITES = bool(os.environ.get(VARIABLE))


def compare(name: str, text: str, replace: Mapping[str, str] | None = None) -> None:
    """Compare a text with a file, or write the file.

    Parameters
    ----------
    name
        Of the file, without its ending.
    text
        What is compared.
    replace
        Regular expression → what stands for it in the file.
    """
    for pattern, word in (replace or {}).items():
        text = re.sub(pattern, word, text)
    text = text.rstrip("\n") + "\n"
    path = DIRECTORY / f"{name}.txt"
    if WRITES:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    expected = path.read_text("utf-8") if path.exists() else None
    assert text == expected, f"{path}: another text; if it is right, {VARIABLE}=1 writes it"


@pytest.fixture
def snapshot() -> Callable[..., None]:
    """Compare a text with ``tests/snapshots/NAME.txt``."""
    return compare
