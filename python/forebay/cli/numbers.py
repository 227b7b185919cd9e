"""Numbers on the command line: what is too large or no number is refused where it is given."""

from __future__ import annotations

import math
from typing import Any

import click

__all__ = ["COUNT", "NUMBER", "OFFSET", "SIZE", "Finite"]

_MOST = (1 << 31) - 1
_MAX_BYTES = (1 << 62) - 1

COUNT = click.IntRange(1, _MOST)
"""How many."""
NUMBER = click.IntRange(0, _MOST)
"""Which one, counted from 0."""
SIZE = click.IntRange(1, _MAX_BYTES)
"""How many bytes."""
OFFSET = click.IntRange(0, _MAX_BYTES)
"""At which byte."""


class Finite(click.FloatRange):
    """A range of numbers that excludes ``nan`` and ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of a text."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"expected a number, found {value}", param, ctx)
        return found
