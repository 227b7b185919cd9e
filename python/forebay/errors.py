"""The exceptions that Forebay raises.

All share one base, :class:`ForebayError`, and each also inherits the built-in that fits, so that
``except OSError`` works. The message names what failed, where, what was expected and what was
found; advice stands in a last line that begins with ``hint:``.

===================  ==============  =========================================================
exception            built-in        what failed
===================  ==============  =========================================================
`OptionError`        `ValueError`    the caller: an option is wrong
`MemoryLimitError`   `MemoryError`   the caller: a limit on memory is reached (`OptionError`)
`FormatError`        `ValueError`    the data: a file is not what its format says
`StorageError`       `OSError`       storage: an operation failed, or a file has changed
`StorageTimeout`     `TimeoutError`  storage: no answer within ``timeout=`` (`StorageError`)
`RendezvousError`    `RuntimeError`  the job: its ranks did not come together, or disagree
`PeerLostError`      `RuntimeError`  the job: a process of it ended
===================  ==============  =========================================================

The Rust core also raises these classes and imports this module for that, so this module imports
nothing of the package.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = [
    "ForebayError",
    "FormatError",
    "MemoryLimitError",
    "OptionError",
    "PeerLostError",
    "RendezvousError",
    "StorageError",
    "StorageTimeout",
]


class ForebayError(Exception):
    """Base of all errors that Forebay raises; itself an `Exception`.

    Forebay raises the base class where no other class fits: a closed loader, a stale iterator, a
    limit of the operating system that is neither memory nor storage.
    """

    __module__ = "forebay"


class OptionError(ForebayError, ValueError):
    """An option is wrong, or contradicts another one or the dataset; also a `ValueError`."""

    __module__ = "forebay"


class MemoryLimitError(OptionError, MemoryError):
    """A limit on memory leaves too little for a loader; an `OptionError`, and also a `MemoryError`.

    The message names the limit: that of a control group, ``ulimit -v``, or the memory of the
    machine.
    """

    __module__ = "forebay"


class FormatError(ForebayError, ValueError):
    """A dataset is not what its format, its schema or its index says; also a `ValueError`.

    For a file that was modified while in use, Forebay raises a `StorageError` instead, even where
    its new bytes look damaged.
    """

    __module__ = "forebay"


class StorageError(ForebayError, OSError):
    """A storage operation failed, or a file of the dataset has changed; also an `OSError`.

    A file has changed where it was modified, replaced or removed since it was opened.

    Parameters
    ----------
    message : str
        The message, with its hint where it has one.
    errno : int, optional
        Error number that the operating system returned.
    filename : str or path-like, optional
        The file or directory of the failed operation.

    Attributes
    ----------
    errno : int or None
        Error number that the operating system returned; None where no system call failed, for
        example where a file was modified.
    strerror : str or None
        The text of `errno`.
    filename : str or None
        The file or directory of the failed operation.
    """

    __module__ = "forebay"

    def __init__(
        self, message: str = "", *, errno: int | None = None, filename: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(message)
        self.errno = errno
        self.strerror = None if errno is None else os.strerror(errno)
        self.filename = None if filename is None else os.fspath(filename)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        state = {**self.__dict__, "errno": self.errno, "strerror": self.strerror, "filename": self.filename}
        return type(self), self.args, state


class StorageTimeout(StorageError, TimeoutError):  # noqa: N818 - a TimeoutError by its base
    """Storage did not answer within ``timeout=``; a `StorageError`, and also a `TimeoutError`.

    The attributes are those of `StorageError`.
    """

    __module__ = "forebay"


class RendezvousError(ForebayError, RuntimeError):
    """The ranks of a job did not come together; also a `RuntimeError`.

    Ranks did not come within ``timeout=``, gave up, or have different options, datasets or
    positions. Unlike with a `PeerLostError`, no process is known to have ended, and a restart of
    the same job may fail again.
    """

    __module__ = "forebay"


class PeerLostError(ForebayError, RuntimeError):
    """Another process of the job ended while others wait for it; also a `RuntimeError`.

    The message names the rank, and the process and the node where known.
    """

    __module__ = "forebay"
