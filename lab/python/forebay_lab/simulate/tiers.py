"""Storage tiers of simulated nodes: ``--tier PRESET:SIZE``, or a TOML file in place of a preset."""

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

    In place of a preset may stand the path of a TOML file that ends in ``.toml``.

    Raises
    ------
    OptionError
        If one is not of that form, or there is no such preset.
    StorageError
        If a file cannot be read.
    """
    found: list[Tier] = []
    for text in (part.strip() for given in texts for part in given.split(",")):
        storage, colon, size = text.rpartition(":")
        if not storage or not colon:
            raise option_error(f"--tier: expected PRESET:SIZE, found {text!r}", "write local-nvme:200GiB")
        spec = None if storage == MEMORY else Wanted.named(storage).resolve()
        name = MEMORY if spec is None else str(spec["name"])
        number = sum(tier.name.partition("#")[0] == name for tier in found)
        found.append(
            Tier(name if not number else f"{name}#{number + 1}", parse_bytes(f"--tier {storage}", size), spec)
        )
    return tuple(found)
