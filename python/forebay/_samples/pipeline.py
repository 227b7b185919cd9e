"""The batches that a loader works on ahead of the script: at most ``prefetch``, and the next one.

The thread that iterates takes batches from the engine, so Ctrl-C, warnings and errors of the engine
arrive where they do without functions, and the engine's times mean the same. Threads of a crew call
the functions. The crew lives as long as the loader; what was read ahead lives as long as the
iteration.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from forebay._iteration import Batch
from forebay._samples.crew import Crew
from forebay._samples.functions import Functions
from forebay._samples.work import Work
from forebay._warn import warn
from forebay.options import MAX_PROCESSES

__all__ = ["Pipeline"]

_pipelines: weakref.WeakSet[Pipeline] = weakref.WeakSet()


class Pipeline:
    """The functions of a loader, their threads, and the batches under way."""

    def __init__(self, functions: Functions, name: str) -> None:
        self.functions = functions
        self.workers = self.threads = 1
        self.prefetch = 0
        """Batches that are worked on ahead of the one that is delivered next."""
        self._works: deque[Work] = deque()
        self.has_warned = False
        """Whether the user was warned of a replaced sample."""
        self.crew = Crew(f"forebay-{name}")
        self.processes = functions.processes
        # Reentrant: the collector may drop an iteration at any place.
        self._lock = threading.RLock()
        _pipelines.add(self)
        self._has_warned_of_threads = False
        self.wait_s = 0.0
        """How long the script has waited for functions [s]."""

    def set_size(self, workers: int, prefetch: int) -> None:
        """Set the number of workers, and of batches ahead, while none runs.

        With worker processes, their number decides that of threads.
        """
        if self.processes is not None:
            workers = min(workers, MAX_PROCESSES)
            self.processes.set_number(workers)
        self.workers = workers
        self.threads = self.crew.size = workers if self.processes is None else self.processes.threads
        self.prefetch = prefetch

    def renew(self) -> deque[Work]:
        """Cancel what is under way; return the queue of the iteration that begins.

        Each iteration has its own, so that a stale one cannot add to that of its successor.
        """
        self.drop()
        return self._works

    def add(self, works: deque[Work], batch: Batch) -> None:
        """Begin to work on a batch, as the last one of ``works``."""
        has_samples = self.functions.sample is not None
        runs = max(1, min(self.threads, len(batch.indices))) if has_samples else 1
        work = Work(self.functions, batch)
        # First: an interrupt must not lose the batch. `wait_for` queues what one kept from it.
        works.append(work)
        self._queue(works, work, runs)
        if self.crew.refused and not self._has_warned_of_threads:
            self._has_warned_of_threads = True
            warn(
                f"the system refused one of {self.threads} threads for transform= and batch_transform= (ulimit -u, pids.max); "
                "fewer run them"
            )

    def _queue(self, works: deque[Work], work: Work, runs: int) -> None:
        with self._lock:
            if works is self._works:
                self.crew.put(work, runs)
                work.is_queued = True
            else:
                # Dropped by another thread; a closed loader must not start threads again.
                work.cancel()

    def wait_for(self, works: deque[Work], timeout: float | None) -> None:
        """Wait for the first batch under way, at most ``timeout`` seconds."""
        work = works[0]
        if not work.is_queued:
            self._queue(works, work, 1)
        begun = time.perf_counter()
        try:
            work.wait(timeout)
        finally:
            self.wait_s += time.perf_counter() - begun

    def drop(self) -> None:
        """Cancel what is under way; any thread may call it, also within a finalizer."""
        with self._lock:
            works, self._works = self._works, deque()
        for work in list(works):
            work.cancel()

    def close(self) -> None:
        """Cancel what is under way, and end the threads and processes."""
        self.drop()
        self.crew.stop(join=True)
        if self.processes is not None:
            self.processes.end()

    def abandoned(self) -> Callable[[], None]:
        """Return a function that ends threads and processes, and does not wait for that.

        It refers neither to the pipeline nor to its batches.
        """
        crew, processes = self.crew, self.processes
        return lambda: crew.stop(join=False, last=processes)


@atexit.register
def _drop_all() -> None:
    """Begin no further sample. It runs before the threads of the crews are joined."""
    for pipeline in list(_pipelines):
        pipeline.drop()


# A thread of the parent may have held a lock.
os.register_at_fork(after_in_child=_pipelines.clear)
