"""What is sent to a worker process before its first sample, and errors that come back.

A function is pickled by its name: the worker imports its module. For a function of the script
itself, the worker imports the script, under the name `__mp_main__`, as
:mod:`multiprocessing` does; what stands under ``if __name__ == "__main__"`` does not run then.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from forebay._core import ForebayError, option_error

__all__ = ["Start", "enter_worker", "import_main", "in_worker", "packed_function", "portable"]

_in_worker = False


def enter_worker() -> None:
    """Note that this is a worker process."""
    global _in_worker
    _in_worker = True


def in_worker() -> bool:
    """Whether this is a worker process."""
    return _in_worker


_PROCESS = 'worker_kind="process"'
_IN_A_MODULE = 'define it at the top of a module that other processes can import, or use worker_kind="thread"'


class Start(NamedTuple):
    """What a worker process needs."""

    parent: int
    """Process id of the loader's process."""
    sockets: tuple[int, ...]
    """Descriptors of the pipes."""
    arguments: list[str]
    """``sys.argv``."""
    main: tuple[str | None, str | None] | None
    """Module name and path of the script, if the function refers to it."""
    function: bytes
    """The function, pickled."""
    way: str
    """How it is called (:func:`~forebay._samples.functions.parameters`)."""
    seed: int
    makes_arrays: bool
    """Whether what can be an array shall be sent as one."""


def packed_function(function: Callable[..., Any]) -> tuple[bytes, tuple[str | None, str | None] | None]:
    """Pickle a function; return with it the script that it refers to, if it does.

    Raises
    ------
    OptionError
        If a worker process could not load it.
    """
    try:
        packed = pickle.dumps(function, 5)
    except Exception as error:
        raise option_error(
            f"{_PROCESS}: transform= cannot be sent to another process: {function!r}: {error}", _IN_A_MODULE
        ) from error
    # The second one where this process is itself one that multiprocessing has spawned.
    if b"__main__" not in packed and b"__mp_main__" not in packed:
        return packed, None
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name is None and (path is None or not Path(path).is_file()):
        raise option_error(
            f"{_PROCESS}: transform= cannot be sent to another process: {function!r} is defined in a notebook or on a "
            "command line, which another process cannot import",
            _IN_A_MODULE,
        )
    return packed, (name, None if path is None else str(Path(path).absolute()))


def import_main(name: str | None, path: str | None) -> None:
    """Import the script of the loader's process, so that what it defines can be unpickled."""
    import runpy

    if name is not None:
        found = runpy.run_module(name, run_name="__mp_main__", alter_sys=True)
    else:
        assert path is not None
        sys.path.insert(0, str(Path(path).parent))
        found = runpy.run_path(path, run_name="__mp_main__")
    module = types.ModuleType("__mp_main__")
    module.__dict__.update(found)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def portable(error: BaseException) -> BaseException:
    """Return an error that can be sent, with its traceback as a note: this one, or one about it."""
    shown = "".join(traceback.format_exception(error)).rstrip()
    note = f"in worker process {os.getpid()}:\n{shown}"
    error.__traceback__ = None
    with contextlib.suppress(Exception):
        error.add_note(note)
        if type(pickle.loads(pickle.dumps(error, 5))) is type(error):
            return error
    said = "".join(traceback.format_exception_only(error)).strip().partition("\n")[0]
    replaced = ForebayError(f"transform= raised an error that cannot be sent to the loader's process: {said}")
    replaced.add_note(note)
    return replaced
