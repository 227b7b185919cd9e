"""Numbers on the command line: what is too large or no number is refused where it is given."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import click

__all__ = ["COUNT", "NUMBER", "OFFSET", "SIZE", "Finite", "Whole", "byte_count", "seconds"]

_MOST = (1 << 31) - 1
_MAX_BYTES = (1 << 62) - 1

# Units of durations [s].
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_MAX_SECONDS = 1e9


class _Number(click.ParamType):  # type: ignore[type-arg]
    """A number above ``above``, or from ``least`` to ``most``; help shows it as ``N``."""

    name = "n"
    what: ClassVar[str]

    def __init__(
        self, least: float | None = None, most: float | None = None, *, above: float | None = None
    ) -> None:
        self._least, self._most, self._above = least, most, above

    def parse(self, text: Any) -> float:
        """Return the number of a text; ValueError if it is none."""
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of a text."""
        try:
            found = self.parse(value)
        except ValueError:
            self.fail(f"expected {self.what}, found {value!r}", param, ctx)
        if self._least is not None and found < self._least:
            self.fail(f"expected {self.what} of at least {self._least}, found {value}", param, ctx)
        if self._most is not None and found > self._most:
            self.fail(f"expected {self.what} of at most {self._most}, found {value}", param, ctx)
        if self._above is not None and found <= self._above:
            self.fail(f"expected {self.what} above {self._above}, found {value}", param, ctx)
        return found


class Whole(_Number):
    """An integer from ``least`` to ``most``."""

    what = "an integer"

    def parse(self, text: Any) -> int:
        """Return the number of a text; ValueError if it is none."""
        return int(text)


class Finite(_Number):
    """A finite number."""

    what = "a number"

    def parse(self, text: Any) -> float:
        """Return the number of a text; ValueError if it is none."""
        found = float(text)
        if not math.isfinite(found):
            raise ValueError
        return found


COUNT = Whole(1, _MOST)
"""How many."""
NUMBER = Whole(0, _MOST)
"""Which one, counted from 0."""
SIZE = Whole(1, _MAX_BYTES)
"""How many bytes."""
OFFSET = Whole(0, _MAX_BYTES)
"""At which byte."""


def byte_count(_: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return the number of bytes of a text such as ``"2GiB"`` (the callback of an option)."""
    from forebay._core import OptionError
    from forebay.options import parse_bytes

    try:
        return None if text is None else parse_bytes(parameter.opts[0], text)
    except OptionError as error:
        raise click.BadParameter(str(error)) from error


def seconds(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Return the seconds of a text such as ``"30min"`` (the callback of an option)."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", text)
    unit = None if found is None else _SECONDS.get(found[2])
    if found is None or unit is None or not 0 < (value := float(found[1]) * unit) <= _MAX_SECONDS:
        raise click.BadParameter(f"expected a time such as 90s, 30min or 2h, found {text!r}")
    return value
