"""The iterator of a loader that copies batches ahead of the script.

One helper thread takes batches from the loader and copies them, in their order; at most
:data:`AHEAD` batches lie ready. Each batch is a job of the thread, and what its ``next`` raised is
raised to the script at its step. The thread lives as long as the tensor loader, what was copied
ahead as long as the iteration.

The position of the script is that of the batch that it took last (:class:`Consumed`), however far
the thread has come. It holds as long as the loader is in the same iteration.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NoReturn

from forebay._attention import wait
from forebay._iteration import Iteration, Progress, stale
from forebay._samples.crew import Crew
from forebay.loader import Loader
from forebay.torch._tensors import Tensors
from forebay.torch._transfer import Transfer

__all__ = ["AHEAD", "Consumed", "CopyIteration", "Reader"]

Place = tuple[int, int, bool]

AHEAD = 2
"""Batches that are copied before the script asks for them.

One is ready while the next one is copied, so that the script waits only where a copy takes longer
than a step. Each takes the memory of a batch on the device.
"""


class Consumed:
    """The position of the script: that of the batch it took last.

    It is one tuple, so that any thread and any signal handler reads it whole.
    """

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at: tuple[Progress | None, Place] = (None, (0, 0, False))
        """The progress of the loader's iteration, which tells whether it is still in it; and epoch,
        step, and whether the iteration has begun."""


class Reader:
    """What an iteration needs to take a batch and to copy it."""

    def __init__(self, loader: Loader, tensors: Tensors, transfer: Transfer, crew: Crew) -> None:
        self.loader, self.tensors, self.transfer, self.crew = loader, tensors, transfer, crew


class _Copying:
    """One batch under way: a job of the helper thread."""

    def __init__(self, reader: Reader, batches: Iteration) -> None:
        self._reader: Reader | None = reader
        self._batches: Iteration | None = batches
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._has_begun = False
        self.is_queued = False
        self.value: Any = None
        self.copies: Any = None
        self.error: BaseException | None = None
        self.progress: Progress | None = None
        self.place = (0, 0, False)

    def run(self) -> None:
        with self._lock:
            reader, batches = self._reader, self._batches
            self._reader = self._batches = None
            self._has_begun = self._has_begun or batches is not None
        if reader is not None and batches is not None:
            self._copy(reader, batches)
        # First, so that nothing of the batch is kept here.
        del batches
        self._done.set()

    def _copy(self, reader: Reader, batches: Iteration) -> None:
        try:
            batch = next(batches)
        except BaseException as error:
            self.error = error
        # Before the copy: also where that fails, the batch counts as delivered.
        if batches._progress is reader.loader._progress:
            self.progress, self.place = batches._progress, batches._progress.place
        if self.error is not None:
            return
        try:
            with reader.transfer.begin() as copies:
                self.value = reader.tensors.batch_by(batch, copies)
            self.copies = copies
        except BaseException as error:
            self.error = error

    def cancel(self) -> None:
        """Do not begin, if it has not begun."""
        # Whoever holds the lock takes both or drops both; a finalizer must not wait for it.
        if self._lock.acquire(blocking=False):
            try:
                self._reader = self._batches = None
            finally:
                self._lock.release()

    def wait(self) -> None:
        """Wait until it is done. A signal handler that raises leaves it as it is."""
        wait(self._done)

    def wait_if_begun(self) -> None:
        """Wait until it is done, unless it was cancelled before it began."""
        if self._has_begun:
            wait(self._done)


class CopyIteration:
    """Iterate the rest of an epoch, ahead of the script.

    Parameters
    ----------
    reader : Reader
        How batches are taken and copied.
    consumed : Consumed
        Takes the position of the script.
    """

    def __init__(self, reader: Reader, consumed: Consumed) -> None:
        self._reader = reader
        self._consumed = consumed
        batches = iter(reader.loader)
        assert isinstance(batches, Iteration)
        self._batches = batches
        self._works: deque[_Copying] = deque()
        # Of the loader's iteration, once that has begun.
        self._progress: Progress | None = None
        self._has_ended = False
        self._lock = threading.Lock()

    def __iter__(self) -> CopyIteration:
        return self

    def __next__(self) -> Any:
        with self._lock:
            if self._has_ended:
                raise StopIteration
            reader = self._reader
            if self._progress is not None and self._progress is not reader.loader._progress:
                self.cancel()
                self._has_ended = True
                raise stale(reader.loader.name)
            while len(self._works) <= AHEAD:
                # First: an interrupt must not lose the batch.
                self._works.append(_Copying(reader, self._batches))
            for work in self._works:
                if not work.is_queued:
                    # An interrupt between these two lets it run twice: the second time, it does
                    # nothing.
                    reader.crew.put(work, 1)
                    work.is_queued = True
            work = self._works[0]
            work.wait()
            self._works.popleft()
            if work.progress is not None:
                self._progress = work.progress
                self._consumed.at = (work.progress, work.place)
            if work.error is not None:
                self._fail(work)
        reader.transfer.take(work.copies)
        return work.value

    def _fail(self, work: _Copying) -> NoReturn:
        """Raise what its ``next`` or its copy raised."""
        error, work.error = work.error, None
        assert error is not None
        if isinstance(error, StopIteration):
            self._has_ended = True
            self.cancel()
        # The traceback has this frame, which must not refer to the error.
        try:
            raise error
        finally:
            del error

    def cancel(self) -> None:
        """Copy no further batch; the one under way is finished."""
        works, self._works = self._works, deque()
        for work in works:
            work.cancel()

    def settle(self) -> None:
        """Copy no further batch, and wait for the one under way."""
        works = list(self._works)
        self.cancel()
        for work in works:
            work.wait_if_begun()

    def __del__(self) -> None:
        if hasattr(self, "_works"):
            self.cancel()
