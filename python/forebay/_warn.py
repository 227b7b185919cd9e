"""Warnings that point to the line of the script that called Forebay."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parent) + os.sep


def warn(text: str) -> None:
    """Issue a `RuntimeWarning` at the innermost line that is not of this package.

    The native module calls this as well. A command or a thread of Forebay has no such line: its
    warnings point to the caller.
    """
    caller = frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith((_PACKAGE, "<frozen ")):
        if frame.f_back is None:
            frame = caller
            break
        frame = frame.f_back
    warnings.warn_explicit(
        text,
        RuntimeWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__", "<string>"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )
