"""The program of a worker process: calls ``transform=`` for the samples of requests.

It serves its pipes in turn, so that the next request waits here when one is finished. It ends when
it is told to. A thread ends it when the loader's process has ended, also in the middle of a
function. Ctrl-C is the matter of the loader's process, which ends its workers.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from forebay._core import option_error
from forebay._samples.area import Area, Packed, Views, pack, unpack
from forebay._samples.calling import call, sample_at
from forebay._samples.pipe import Message, Pipe
from forebay._samples.portable import Start, enter_worker, import_main, portable
from forebay._samples.rng import Randomness

__all__ = ["main"]


def main(file: BinaryIO) -> None:
    """Serve requests.

    Parameters
    ----------
    file : binary file
        A pickled :class:`Start`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    start: Start = pickle.load(file)
    file.close()
    _end_with(start.parent)
    pipes = {fd: Pipe(socket.socket(fileno=fd)) for fd in start.sockets}
    function, failure = _load(start)
    poll = select.poll()
    for fd in pipes:
        poll.register(fd, select.POLLIN)
    # Otherwise the loader's process is gone.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while pipes:
            for fd, _ in poll.poll():
                if not _serve(pipes[fd], start, function, failure):
                    poll.unregister(fd)
                    pipes.pop(fd).socket.close()


def _end_with(parent: int) -> None:
    """End this process when the loader's has ended."""

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll()
        os._exit(1)

    try:
        fd = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=watch, name="forebay-parent", daemon=True).start()


def _load(start: Start) -> tuple[Callable[..., Any] | None, BaseException | None]:
    """Load the function, or return why that is impossible."""
    sys.argv[:] = start.arguments
    enter_worker()
    try:
        if start.main is not None:
            import_main(*start.main)
        function: Callable[..., Any] = pickle.loads(start.function)
    except BaseException as error:
        return None, portable(error)
    return function, None


def _serve(
    pipe: Pipe, start: Start, function: Callable[..., Any] | None, failure: BaseException | None
) -> bool:
    """Answer a request; False if there are no more."""
    message = pipe.receive()
    if message is None:
        return False
    begun = time.perf_counter_ns()
    area = pipe.area
    assert area is not None
    views = area.views(message.frame)
    in_use = views.in_use
    if function is None:
        packed = pack((None, failure))
    else:
        packed = _answer(area, function, start, views)
    frame = pipe.write(area.after(message.frame), packed)
    # Now nothing refers to the request but what the function has kept of it.
    del packed, views
    pipe.send(Message(frame, time.perf_counter_ns() - begun, in_use() is not None))
    return True


def _answer(area: Area, function: Callable[..., Any], start: Start, views: Views) -> Packed:
    """Call the function for the samples of a request, up to the first for which it raises."""
    epoch, numbers, fields = unpack(views.pickled, views.buffers)
    randomness = Randomness(start.seed, epoch)
    results: list[Any] = []
    failure: BaseException | None = None
    for at, number in enumerate(numbers):
        area.place = at + 1
        try:
            results.append(call(function, start.way, sample_at(fields, at), number, randomness))
        except BaseException as error:
            failure = portable(error)
            break
    try:
        return pack((results, failure), arrays=start.makes_arrays)
    except BaseException:
        return _without_unsendable(results, failure, start.makes_arrays)


def _without_unsendable(results: list[Any], failure: BaseException | None, arrays: bool) -> Packed:
    """Pack results up to the first one that cannot be sent, and why."""
    for at, result in enumerate(results):
        try:
            pack(result, arrays=arrays)
        except BaseException as error:
            failure = portable(
                option_error(
                    f'worker_kind="process": what transform= returned cannot be sent to the loader: {_last_line(error)}',
                    "return arrays, numbers, strings, or objects that can be pickled; or use "
                    'worker_kind="thread"',
                )
            )
            return pack((results[:at], failure), arrays=arrays)
    return pack((results, failure), arrays=arrays)


def _last_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
