"""Emulators as daemons."""

from __future__ import annotations

from forebay._daemon import Kind

__all__ = ["EMULATOR"]

EMULATOR = Kind(
    prefix="pfs-",
    name="the emulator",
    module="forebay_lab.pfs.serve",
    hint="forebay pfs list",
)
