"""Numbers, sizes, flags and words: from what a user wrote to a checked value.

Rules are those of the engine; an error begins with the origin of the value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from forebay import _native
from forebay._core import option_error

__all__ = ["byte_count", "check", "check_stagger", "choice", "flag", "number", "parse_bytes", "same"]

_BYTES = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)}
# As SLURM, Docker and the JVM read them.
_UNITS |= {prefix: 1024**power for power, prefix in enumerate("kmgt", 1)}


def check(origin: str, name: str, value: Any, *shown: object) -> Any:
    """Return a value that the engine accepts for the option ``name``, else raise.

    ``shown`` is the value as the user wrote it, if that is another.

    Raises
    ------
    OptionError
        If the engine rejects the value; the message begins with ``origin``.
    """
    _native.check_option(origin, name, value, *shown)
    return value


def number(value: object) -> object:
    """Convert an integer of numpy, or a number in a text; return anything else as it is."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                pass
    elif hasattr(value, "__index__") and not isinstance(value, bool):
        return int(value.__index__())
    return value


def flag(value: object) -> object:
    """Convert ``"true"`` or ``"false"``; return anything else as it is."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def same(value: object) -> object:
    return value


def check_stagger(origin: str, value: object) -> int | str:
    """Return a number of groups of nodes that take turns, or ``"auto"``."""
    found: int | str = check(origin, "strategy.stagger", number(value))
    return found


def choice(name: str, value: object, valid: Sequence[str]) -> str:
    if value not in valid:
        raise option_error(f"{name}: expected one of {', '.join(valid)}; found {value!r}")
    return str(value)


def parse_bytes(name: str, value: object) -> int:
    """Return a number of bytes from an integer or string: ``"2GiB"``, ``"2G"``, ``"500 MB"``.

    K, M, G and T without ``B`` are powers of 1024, as KiB, MiB, GiB and TiB.

    Raises
    ------
    OptionError
        If it is no positive number of bytes; the message begins with ``name``.
    """
    size: int = check(name, "node_memory", byte_count(name, value), value)
    return size


def byte_count(name: str, value: object) -> int:
    size = number(value) if not isinstance(value, str) else None
    if isinstance(value, str) and (match := _BYTES.match(value)):
        factor = _UNITS.get(match.group(2).lower(), 0)
        size = int(float(match.group(1)) * factor) or None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise option_error(
            f"{name}: expected a positive number of bytes, found {value!r}", 'write for example "2GiB"'
        )
    return size
