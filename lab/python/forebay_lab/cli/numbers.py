"""Times and lists of numbers on the command line of lab."""

from __future__ import annotations

import re

import click

__all__ = ["counts", "seconds"]

_SECONDS = re.compile(r"^(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s|)$")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}


def seconds(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Read a time; click's callback."""
    if text is None:
        return None
    match = _SECONDS.match(text.strip())
    if match is None:
        raise click.BadParameter(f"expected a time such as 5ms or 0.2s, found {text!r}")
    return float(match.group(1)) * _UNITS[match.group(2)]


def counts(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Read a list of numbers; click's callback."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"expected numbers such as 5,3,1, found {text!r}") from None
