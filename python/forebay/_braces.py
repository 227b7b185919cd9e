"""Expand braces in paths as bash does: ``{0000..0131}``, ``{a..e}``, ``{0..9..3}``, ``{x,y}``.

A text is cut into parts once; how many paths it stands for is known before one is made. As in bash,
the first braces change slowest; a range has leading zeros where one of its ends has; braces that
hold neither a range nor a comma, or are not closed, stand for themselves; a backslash takes its
meaning from a brace, a comma or a backslash; what is empty is dropped.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from forebay._core import option_error

__all__ = ["braces"]

# Most paths that one text may stand for: published datasets have fewer shards.
MAX_PATHS = 1 << 20

# Deepest braces within braces.
MAX_DEPTH = 32

_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?", re.ASCII)
_LETTERS = re.compile(r"([a-z])\.\.([a-z])(?:\.\.(-?\d+))?|([A-Z])\.\.([A-Z])(?:\.\.(-?\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Range:
    """Numbers from ``first`` on, padded to ``width`` characters; letters if width is None."""

    first: int
    step: int
    count: int
    width: int | None

    @classmethod
    def between(cls, first: int, last: int, step: str | None, width: int | None) -> _Range:
        size = abs(int(step or 1)) or 1
        return cls(first, size if first <= last else -size, abs(last - first) // size + 1, width)

    def texts(self) -> Iterator[str]:
        for place in range(self.count):
            number = self.first + place * self.step
            yield chr(number) if self.width is None else f"{number:0{self.width}d}"


_Part: TypeAlias = "str | _Range | list[list[_Part]]"
"""Text, a range, or alternatives."""


def braces(text: str) -> list[str]:
    """Return what a text with braces stands for.

    Raises
    ------
    OptionError
        If that is too much.
    """
    parts = _parse(text, text, 0)
    if (count := _count(parts)) > MAX_PATHS:
        # A number of thousands of digits cannot be written.
        told = str(count) if count < 10**30 else "more than 10^30"
        raise option_error(
            f"forebay.open: the braces of {text} stand for {told} paths (expected at most {MAX_PATHS})",
            "give a narrower range, or a pattern with *",
        )
    return list(filter(None, _texts(parts)))


def _parse(text: str, whole: str, depth: int) -> list[_Part]:
    """Cut a text into parts."""
    if depth > MAX_DEPTH:
        raise option_error(
            f"forebay.open: the braces of {whole[:200]} are nested too deep (expected at most {MAX_DEPTH})",
            "write the paths as a list",
        )
    parts: list[_Part] = []
    plain, at = "", 0
    closing = _pairs(text)
    while at < len(text):
        if text[at] == "\\" and text[at + 1 : at + 2] in ("{", "}", ",", "\\"):
            plain, at = plain + text[at + 1], at + 2
            continue
        inner = text[at + 1 : closing[at]] if at in closing else None
        part = None if inner is None else _within(inner, whole, depth)
        if inner is None or part is None:
            plain, at = plain + text[at], at + 1
            continue
        parts += [plain, part]
        plain, at = "", at + len(inner) + 2
    return [*parts, plain]


def _pairs(text: str) -> dict[int, int]:
    """Return where each brace that is closed is closed."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for at, character in _unescaped(text):
        if character == "{":
            opened.append(at)
        elif character == "}" and opened:
            pairs[opened.pop()] = at
    return pairs


def _unescaped(text: str) -> Iterator[tuple[int, str]]:
    """Walk over the characters that no backslash stands before."""
    at = 0
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        yield at, text[at]
        at += 1


def _within(inner: str, whole: str, depth: int) -> _Part | None:
    """Return what stands between two braces; None: the braces stand for themselves."""
    if match := _NUMBERS.fullmatch(inner):
        first, last, step = match.groups()
        if max(map(len, (first, last, step or ""))) > 18:
            return None
        is_padded = any(re.fullmatch(r"-?0\d+", end) for end in (first, last))
        width = max(len(first), len(last)) if is_padded else 0
        return _Range.between(int(first), int(last), step, width)
    if match := _LETTERS.fullmatch(inner):
        first, last, step = (
            one or other for one, other in zip(match.groups()[:3], match.groups()[3:], strict=True)
        )
        return _Range.between(ord(first), ord(last), step, None)
    pieces = _split(inner)
    return [_parse(piece, whole, depth + 1) for piece in pieces] if len(pieces) > 1 else None


def _split(inner: str) -> list[str]:
    """Cut at the commas that no further braces hold."""
    pieces: list[str] = []
    pairs = _pairs(inner)
    start = end = 0
    for at, character in _unescaped(inner):
        if at < end:
            continue
        if at in pairs:
            end = pairs[at]
        elif character == ",":
            pieces.append(inner[start:at])
            start = at + 1
    return [*pieces, inner[start:]]


def _count(parts: list[_Part]) -> int:
    return math.prod(
        part.count if isinstance(part, _Range) else 1 if isinstance(part, str) else sum(map(_count, part))
        for part in parts
    )


def _texts(parts: list[_Part]) -> Iterator[str]:
    choices = [
        [part]
        if isinstance(part, str)
        else list(part.texts())
        if isinstance(part, _Range)
        else list(itertools.chain.from_iterable(map(_texts, part)))
        for part in parts
    ]
    return map("".join, itertools.product(*choices))
