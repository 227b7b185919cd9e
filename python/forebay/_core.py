"""Common needs of all modules: errors, the version, the detection of forks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from forebay import _native
from forebay._warn import warn
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
    "did_you_mean",
    "fork_generation",
    "guard_stop_iteration",
    "nearest",
    "not_the_end",
    "option_error",
]

if _native.DEBUG_BUILD:
    warn(
        "forebay was built without optimisation and is many times slower than it should be; run `make build`"
    )


def not_the_end(error: BaseException) -> BaseException:
    """Return the error of a user's function, but no `StopIteration`: it would end the epoch.

    As in generators (PEP 479), a `RuntimeError` takes its place.
    """
    if not isinstance(error, StopIteration):
        return error
    found = RuntimeError(
        "a function of the script raised StopIteration, which would end the epoch\n"
        "hint: give next() a default, or catch the exception"
    )
    found.__cause__ = error
    for note in getattr(error, "__notes__", ()):
        found.add_note(note)
    return found


def guard_stop_iteration(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that raises what :func:`not_the_end` makes of an error."""

    def call(argument: Any) -> Any:
        try:
            return function(argument)
        except StopIteration as error:
            raise not_the_end(error) from error

    return call


def option_error(message: str, hint: str | None = None) -> OptionError:
    """Make the error for wrong use by the caller, with advice where there is some."""
    return OptionError(message if hint is None else f"{message}\nhint: {hint}")


def nearest(name: str, known: Sequence[str], likeness: float = 0.6) -> str | None:
    """Return the known name that an unknown one may stand for, if any is as much like it."""
    import difflib

    return next(iter(difflib.get_close_matches(name, known, 1, likeness)), None)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return the end of a message on an unknown name: the known one that is nearly it, if any."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


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
