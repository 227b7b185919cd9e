"""Storage tiers of simulated nodes: ``--tier PRESET:SIZE``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay._core import option_error
from forebay.options import parse_bytes
from forebay_lab.pfs.start import Wanted

__all__ = ["MEMORY", "Tier", "parse_tiers"]

MEMORY = "tmpfs"
"""A tier in memory."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier of each node."""

    name: str
    """Unique among the tiers."""
    bytes: int
    """What it may hold."""
    spec: dict[str, Any] | None
    """Its file system; None: memory."""

    def as_job(self) -> dict[str, Any]:
        """Return it as the native module takes it."""
        return {"storage": self.spec, "bytes": self.bytes}


def parse_tiers(texts: Sequence[str]) -> tuple[Tier, ...]:
    """Read ``PRESET:SIZE`` of each tier, the nearest first; commas may stand between them.

    Raises
    ------
    OptionError
        If one is not of that form, or there is no such preset.
    """
    found: list[Tier] = []
    for text in (part.strip() for given in texts for part in given.split(",")):
        preset, colon, size = text.partition(":")
        if not preset or not colon:
            raise option_error(f"--tier: expected PRESET:SIZE, found {text!r}", "write local-nvme:200GiB")
        number = sum(tier.name.partition("#")[0] == preset for tier in found)
        found.append(
            Tier(
                preset if not number else f"{preset}#{number + 1}",
                parse_bytes(f"--tier {preset}", size),
                None if preset == MEMORY else Wanted(preset=preset).resolve(),
            )
        )
    return tuple(found)
