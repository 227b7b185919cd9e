"""Threads that work off a queue, in its order, until the crew stops.

Threads start when they are first needed. They refer to the queue alone, so that they keep neither a
loader nor its batches; a crew whose owner is collected stops. They are daemons that end before the
interpreter does: a function at exit stops all crews and joins their threads, so that no thread runs
while Python tears its modules down.

A forked child has no threads of its parent; it forgets them.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Protocol

__all__ = ["Crew", "Job"]


class Job(Protocol):
    """What a thread runs."""

    def run(self) -> None:
        """Do the work; never raises."""


_Queue = SimpleQueue["Job | None"]

_crews: weakref.WeakSet[Crew] = weakref.WeakSet()
# Threads that have not ended; those of collected crews, too.
_living: set[threading.Thread] = set()


class Crew:
    """A number of threads.

    Parameters
    ----------
    name : str
        Name of the threads, for debuggers.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.size = 1
        """How many threads; where the system refuses some, fewer."""
        self._queue: _Queue = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.refused = False
        """Whether the system has refused a thread."""

    def put(self, job: Job, times: int) -> None:
        """Queue a job so that up to ``times`` threads run it at once.

        Where the system refuses even the first thread, this thread runs it.
        """
        if len(self._threads) < self.size and not (self._threads and self.refused):
            self._start()
        if not self._threads:
            job.run()
            return
        for _ in range(times):
            self._queue.put(job)

    def _start(self) -> None:
        _crews.add(self)
        # A signal handler may have raised here before, when not all threads had started.
        self._threads = [one for one in self._threads if one.ident is not None]
        for number in range(len(self._threads), self.size):
            thread = threading.Thread(
                target=_serve, args=(self._queue,), name=f"{self._name}-{number}", daemon=True
            )
            # First: a thread that an interrupt leaves here must be stopped as well.
            self._threads.append(thread)
            try:
                thread.start()
            except RuntimeError:
                # `ulimit -u` or pids.max.
                self._threads.remove(thread)
                self.refused = True
                return

    def stop(self, *, join: bool, last: Job | None = None) -> None:
        """End the threads after what is queued; with ``join``, wait for that.

        One of them runs the job ``last`` before it ends; without threads, this one does. A later
        :meth:`put` starts others.
        """
        threads, self._threads = self._threads, []
        queue, self._queue = self._queue, SimpleQueue()
        if last is not None and threads:
            queue.put(last)
        elif last is not None:
            last.run()
        queue.put(None)
        if join:
            _join(threads)


def _join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        # A function of the user may close its loader.
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join()


def _serve(queue: _Queue) -> None:
    _living.add(threading.current_thread())
    try:
        while (job := queue.get()) is not None:
            job.run()
            # Not kept while it waits for the next one.
            del job
        # The end of the queue is for all threads.
        queue.put(None)
    finally:
        _living.discard(threading.current_thread())


@atexit.register
def _end_all() -> None:
    for crew in list(_crews):
        crew.stop(join=True)
    _join(list(_living))


def _forget_all() -> None:
    _living.clear()
    for crew in list(_crews):
        crew._threads = []
    _crews.clear()


os.register_at_fork(after_in_child=_forget_all)
