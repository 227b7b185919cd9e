"""Reading TOML with checks: a table that knows its file, and which of its keys were asked for.

Every error names the file, the key with the tables it lies in, what was expected and what was
found.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from forebay._core import FormatError

__all__ = ["Table"]


class Table:
    """A TOML table.

    Parameters
    ----------
    values
        What the parser returned.
    path
        The file, for messages.
    prefix
        The tables this one lies in, each with a dot behind it.
    """

    def __init__(self, values: dict[str, Any], path: str, prefix: str = "") -> None:
        self._values, self._path, self._prefix = values, path, prefix
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    @property
    def keys(self) -> list[str]:
        """All keys, in the order of the file."""
        return list(self._values)

    def refuse(self, key: str, expected: str, found: object) -> NoReturn:
        """Raise the error for a key."""
        raise FormatError(
            f"workload {self._path}: key {self._prefix}{key}: expected {expected}, found {found!r}"
        )

    def finish(self) -> None:
        """Raise for unknown keys: a misspelt one would have no effect."""
        for key in self._values:
            if key not in self._asked:
                self.refuse(key, "no key of this name", self._values[key])

    def text(self, key: str) -> str:
        """Return a text that is not empty."""
        value = self._take(key, "a text")
        if not isinstance(value, str) or not value.strip():
            self.refuse(key, "a text", value)
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """Return one of the texts."""
        value = self.text(key)
        if value not in choices:
            self.refuse(key, f"one of {', '.join(choices)}", value)
        return value

    def integer(self, key: str, *, least: int = 1, default: int | None = None) -> int:
        """Return an integer."""
        if default is not None and key not in self._values:
            return default
        value = self._take(key, "an integer")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.refuse(key, f"an integer of at least {least}", value)
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """Return positive integers."""
        value = self._take(key, "integers")
        if not isinstance(value, list) or not value or not all(type(one) is int and one > 0 for one in value):
            self.refuse(key, "positive integers", value)
        return tuple(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return texts."""
        value = self._take(key, "texts")
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.refuse(key, "texts", value)
        return tuple(value)

    def number(self, key: str) -> float:
        """Return a number above 0."""
        value = self._take(key, "a number")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            self.refuse(key, "a number above 0", value)
        return float(value)

    def table(self, key: str, *, optional: bool = False) -> Table:
        """Return a table within this one."""
        value = {} if optional and key not in self._values else self._take(key, "a table")
        if not isinstance(value, dict):
            self.refuse(key, "a table", value)
        self._asked.add(key)
        return Table(value, self._path, f"{self._prefix}{key}.")

    def tables(self, key: str) -> list[Table]:
        """Return the tables of an array; there is at least one."""
        value = self._take(key, "tables")
        if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
            self.refuse(key, "at least one table", value)
        return [Table(one, self._path, f"{self._prefix}{key}[{at}].") for at, one in enumerate(value)]

    def _take(self, key: str, expected: str) -> Any:
        if key not in self._values:
            self.refuse(key, expected, "nothing")
        self._asked.add(key)
        return self._values[key]
