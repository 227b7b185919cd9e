"""The check that a framework can be imported and is new enough."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

__all__ = ["require"]


def require(adapter: str, framework: str, at_least: str, install: str) -> ModuleType:
    """Import a framework.

    Parameters
    ----------
    adapter : str
        The module or function that needs it, for errors.
    framework : str
        Its module.
    at_least : str
        The oldest version that works.
    install : str
        What pip installs.

    Raises
    ------
    ImportError
        If it is missing, cannot be imported, or is too old.
    """
    hint = f"hint: pip install '{install}'"
    try:
        module = importlib.import_module(framework)
    except ImportError as error:
        raise ImportError(f"{adapter}: {framework} cannot be imported: {error}\n{hint}") from error
    found = str(getattr(module, "__version__", ""))
    if _numbers(found) < _numbers(at_least):
        raise ImportError(
            f"{adapter}: expected {framework} {at_least} or later, found {found or 'no version'}\n{hint}"
        )
    return module


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version: (2, 3) for ``"2.3.0a1+cpu"``, at most two."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:2])
