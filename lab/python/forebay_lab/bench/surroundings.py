"""What a row runs in besides its strategy: environment variables and a wrapper command.

A row ``forebay@group+NAME`` runs in the surroundings NAME, which compares one strategy with and
without them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forebay._core import option_error

__all__ = ["Surroundings", "check_tiers", "parse_surroundings"]

_NAME = re.compile(r"^([A-Za-z][\w-]*):(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"^([A-Za-z_]\w*)=(.*)$", re.DOTALL)
_TIER = re.compile(r"\{tier(\d*)\}")


@dataclass(slots=True)
class Surroundings:
    """Environment variables and a wrapper command of the ranks of a row."""

    environment: dict[str, str] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()

    def tiers(self) -> int:
        """Return how many tier mounts of a node these name."""
        texts = [*self.environment.values(), *self.wrapper]
        return max((int(number or 0) + 1 for text in texts for number in _TIER.findall(text)), default=0)


def parse_surroundings(environment: Sequence[str], wrappers: Sequence[str]) -> dict[str, Surroundings]:
    """Read ``--environment`` and ``--wrapper``.

    Parameters
    ----------
    environment
        ``NAME:VARIABLE=VALUE`` each.
    wrappers
        ``NAME:COMMAND`` each, words as for a shell.

    Raises
    ------
    OptionError
        If one is not of that form, or a name has two wrappers.
    """
    found: dict[str, Surroundings] = {}
    for text in environment:
        name, rest = _named("--environment", "NAME:VARIABLE=VALUE", text)
        match = _VARIABLE.match(rest)
        if match is None:
            raise option_error(f"--environment: expected NAME:VARIABLE=VALUE, found {text!r}")
        found.setdefault(name, Surroundings()).environment[match[1]] = match[2]
    for text in wrappers:
        name, rest = _named("--wrapper", "NAME:COMMAND", text)
        try:
            words = tuple(shlex.split(rest))
        except ValueError as error:
            raise option_error(f"--wrapper: {rest!r}: {error}") from error
        if not words:
            raise option_error(f"--wrapper: expected a command, found {text!r}")
        one = found.setdefault(name, Surroundings())
        if one.wrapper:
            raise option_error(f"--wrapper: expected one command for {name}, found two")
        one.wrapper = words
    return found


def _named(option: str, form: str, text: str) -> tuple[str, str]:
    match = _NAME.match(text)
    if match is None:
        raise option_error(f"{option}: expected {form}, found {text!r}")
    return match[1], match[2]


def check_tiers(rows: Mapping[str, Surroundings], tiers: int) -> None:
    """Refuse surroundings that name a tier mount that no node has.

    Raises
    ------
    OptionError
        With the name of the surroundings.
    """
    for name, one in rows.items():
        if (needed := one.tiers()) > tiers:
            raise option_error(
                f"{name}: expected at most {tiers} tier mounts, found {{tier{needed - 1}}}",
                "give the presets of tier mounts with --tier",
            )
