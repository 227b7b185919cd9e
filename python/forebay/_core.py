"""Common needs of all modules: errors, the version, the detection of forks."""

from __future__ import annotations

import os
import warnings

from forebay import _native
from forebay.errors import (
    ForebayError,
    FormatError,
    MemoryLimitError,
    OptionError,
    PeerLostError,
    RendezvousError,
    StorageError,
    StorageTimeout,
)

__version__ = _native.VERSION

__all__ = [
    "ForebayError",
    "FormatError",
    "MemoryLimitError",
    "OptionError",
    "PeerLostError",
    "RendezvousError",
    "StorageError",
    "StorageTimeout",
    "__version__",
    "fork_generation",
    "option_error",
]

if _native.DEBUG_BUILD:
    warnings.warn(
        "forebay was built without optimisation and is many times slower than it should be; run `make build`",
        RuntimeWarning,
        stacklevel=2,
    )


def option_error(message: str, hint: str | None = None) -> OptionError:
    """Make the error for wrong use by the caller, with advice where there is some."""
    return OptionError(message if hint is None else f"{message}\nhint: {hint}")


_generation = 0


def _forked() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_forked)


def fork_generation() -> int:
    """Return how many forks lie between this process and the one that imported Forebay.

    An object that remembers the number it was made under knows at the cost of a comparison that it
    has been carried into a child, whose copy of the engine must not be touched.
    """
    return _generation
