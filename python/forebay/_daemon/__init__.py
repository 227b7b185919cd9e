"""Detached processes of this user that outlive the command that started them.

A :class:`Kind` is one sort of daemon. Each daemon has a control socket and a log file in the
private runtime directory; the name of both follows from what it serves. It answers requests, one
line of JSON each.
"""

from __future__ import annotations

from forebay._daemon.control import GoneError
from forebay._daemon.kind import Kind

__all__ = ["GoneError", "Kind"]
