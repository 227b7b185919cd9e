"""The work for one batch: threads take its samples one by one, the last one makes the batch.

Each thread that runs the work claims the next sample that no other has, so that slow samples do not
hold up others; with worker processes, the next few. Of samples that fail, the error of the first in
the order of the batch is raised, whatever the threads do: a thread stops at samples after one that
failed, never before it.

The batch of the engine, with its lease on a buffer, is kept until the result exists.
"""

from __future__ import annotations

import threading
from typing import Any

from forebay._attention import wait
from forebay._core import not_the_end
from forebay._iteration import Batch, Position
from forebay._samples.functions import Functions

__all__ = ["Work"]


class Work:
    """The work for one batch. Only the thread that iterates calls the methods but :meth:`run`."""

    __slots__ = (
        "_active", "_batch", "_done", "_error", "_failed_at", "_functions", "_indices",
        "_is_cancelled", "_is_finished", "_lock", "_next", "_randomness", "_results", "_value", "is_queued",
        "position",
    )  # fmt: skip

    def __init__(self, functions: Functions, batch: Batch) -> None:
        self._functions = functions
        self._batch: Batch | None = batch
        self.position: Position = batch.position
        self._indices = batch.indices
        self._randomness = functions.randomness(batch.position)
        samples = len(batch.indices) if functions.sample is not None else 0
        self._results: list[Any] = [None] * samples
        # The first sample that no thread has claimed.
        self._next = 0
        self._active = 0
        self._is_finished = False
        self.is_queued = False
        self._failed_at = samples
        self._error: BaseException | None = None
        self._value: Any = None
        self._is_cancelled = False
        self._lock = threading.Lock()
        self._done = threading.Event()

    def run(self) -> None:
        """Take part in the work; any number of threads may call it, any number of times."""
        with self._lock:
            if self._is_finished:
                return
            self._active += 1
        if self._results:
            self._call_samples()
        with self._lock:
            self._active -= 1
            # No sample is left to claim, or no other is called; so this is the end of it.
            is_last = self._active == 0 and not self._is_finished
            self._is_finished |= is_last
        if is_last:
            self._finish()
            # Only now, when no frame refers to the batch.
            self._done.set()
            if self._is_cancelled:
                self.forget()

    def _call_samples(self) -> None:
        batch = self._batch
        assert batch is not None
        while places := self._claim():
            results, error = self._functions.call(batch, places, self._randomness)
            for at, (result, number) in enumerate(results, places.start):
                self._results[at] = result
                self._indices[at] = number
            if error is not None:
                at = places.start + len(results)
                with self._lock:
                    if at < self._failed_at:
                        self._failed_at, self._error = at, not_the_end(error)
            # Not kept while it waits for the next.
            del results, error

    def _claim(self) -> range:
        """Claim the next samples for a thread; none where all are claimed or not needed."""
        with self._lock:
            first, samples = self._next, len(self._results)
            if self._is_cancelled or first > self._failed_at or first >= samples:
                return range(0)
            self._next = min(samples, first + self._functions.chunk_samples(samples))
            return range(first, self._next)

    def _finish(self) -> None:
        batch, self._batch = self._batch, None
        results, self._results = self._results, []
        if batch is not None and self._error is None and not self._is_cancelled:
            try:
                self._value = self._functions.finish(results, batch, self._indices)
            except BaseException as error:
                self._error = not_the_end(error)

    def cancel(self) -> None:
        """Call the function for no further sample; samples under way are finished."""
        self._is_cancelled = True
        # A finalizer may call this within `run`, so it never waits for the lock.
        if self._lock.acquire(blocking=False):
            try:
                if self._active == 0:
                    # It has not begun, so no thread would give back the buffer of the batch.
                    self._is_finished = True
                    self._batch = None
                    self._done.set()
            finally:
                self._lock.release()
        if self._done.is_set():
            self.forget()

    def forget(self) -> None:
        """Drop the result and the error, whose traceback refers to this work."""
        self._value = self._error = None

    def restore(self, outcome: tuple[Any, BaseException | None]) -> None:
        """Undo :meth:`forget`."""
        self._value, self._error = outcome

    def wait(self, timeout: float | None) -> None:
        """Wait for the result, at most ``timeout`` seconds.

        A signal handler that raises leaves the work as it is.
        """
        wait(self._done, timeout)

    def is_done(self) -> bool:
        """Whether :meth:`wait` returns at once."""
        return self._done.is_set()

    def outcome(self) -> tuple[Any, BaseException | None] | None:
        """Return the result and the error of a function; None if the work was cancelled."""
        outcome = self._value, self._error
        # In this order: `cancel` sets the flag before it forgets both.
        return None if self._is_cancelled else outcome
