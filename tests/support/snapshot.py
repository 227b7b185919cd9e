"""Texts for people, compared with files: the fixtures ``snapshot`` and ``says``.

``snapshot``: a test gives a name and a text; ``tests/snapshots/NAME.txt`` holds what is expected.
``says``: a block of code raises an exception or warns; the test gives the class and the values that
the message names, and ``tests/snapshots/messages/MODULE.txt`` holds the text. Regular expressions
stand for what differs from run to run, such as paths. ``FOREBAY_WRITE_SNAPSHOTS=1`` writes the
files instead, in one process: read the difference before you commit it. Snapshots hold words;
assert facts as facts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import support

DIRECTORY = support.TESTS / "snapshots"
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


def blocks(path: Path) -> dict[str, str]:
    """Return the messages of a file by the tests that get them."""
    if not path.exists():
        return {}
    parts = re.split(r"^\[(test_.*)\]\n", path.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.rstrip("\n") for part in parts[2::2]), strict=True))


class Says:
    """See :func:`says`."""

    def __init__(self, module: str, test: str, replace: Mapping[str, str]) -> None:
        self._module, self._test, self._replace = module, test, replace
        self._found: list[str] = []

    @contextmanager
    def __call__(
        self, kind: type[BaseException], *values: object, replace: Mapping[str, str] | None = None
    ) -> Iterator[Any]:
        """Run a block that raises or warns; its message names ``values`` and equals the snapshot.

        Parameters
        ----------
        kind
            Of the exception or the warning.
        *values
            Facts that the message names: each as it stands, not as part of a longer word or number.
        replace
            Regular expression → what stands for its matches in the snapshot; paths and digests are
            replaced for all.
        """
        context = pytest.warns(kind) if issubclass(kind, Warning) else pytest.raises(kind)
        with context as caught:
            yield caught
        error = caught[0].message if issubclass(kind, Warning) else caught.value
        text = str(error)
        for value in map(str, values):
            before, after = (r"\b" if edge.isalnum() else "" for edge in (value[:1], value[-1:]))
            assert re.search(before + re.escape(value) + after, text), f"{value!r} is not in: {text}"
        text = f"{type(error).__name__}: {text}".rstrip("\n")
        for pattern, word in {**(replace or {}), **self._replace}.items():
            text = re.sub(pattern, word, text)
        if text not in self._found:
            self._found.append(text)
            number = len(self._found)
            self._compare(self._test if number == 1 else f"{self._test} {number}", text)

    def _compare(self, key: str, text: str) -> None:
        path = DIRECTORY / "messages" / f"{self._module}.txt"
        found = blocks(path)
        if WRITES:
            found[key] = text
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(f"[{one}]\n{found[one]}\n" for one in sorted(found)), encoding="utf-8")
        assert text == found.get(key), f"{path}: {key}: if it is right, {VARIABLE}=1 writes it"


@pytest.fixture
def says(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Says:
    """Compare messages of exceptions and warnings with ``tests/snapshots/messages/MODULE.txt``."""
    directory = re.escape(str(tmp_path_factory.getbasetemp()))
    replace = {
        rf"{directory}/[^/\s]+\d": "TMP",
        re.escape(str(DIRECTORY.parents[1])): "SOURCES",
        r"\S+/forebay-test-\w+": "RUNTIME",
        r"pfs-[0-9a-f]{16}\.sock": "pfs-N.sock",
        r"\b[0-9a-f]{32}\b": "DIGEST",
        r"\b0x[0-9a-f]{8}\b": "0xCHECKSUM",
        r"\b\d{18,} ns since 1970": "N ns since 1970",
    }
    return Says(request.node.path.stem, request.node.name.replace("\n", " "), replace)
