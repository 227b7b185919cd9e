"""Words that had another name before 0.1.0, and the names of today.

An old name is an error, never an alias: the hint of the error has the name of today. The names of
options are in :mod:`forebay.options`.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["COMMANDS"]

COMMANDS: Mapping[str, str] = {
    "--beside": "--sidecar-in-dataset",
    "--case": "--variant",
    "--job-ranks": "--world-size",
    "--no-verify": "--skip-verify",
    "--per-node": "--ranks-per-node",
    "--slow-down": "--time-scale",
    "cold": "drop-caches",
}
"""Option of a command, or command of a group → that of today."""
