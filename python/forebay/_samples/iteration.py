"""The iterator of a loader that works on batches ahead of the script.

It takes batches from the engine until as many are under way as ``prefetch`` allows, but only those
that the engine has ready: it waits for the engine where no batch is under way. Otherwise it waits
for the first batch under way, and takes what becomes ready in the meantime. So a batch that is
finished is never held up by a later one.

The position of the loader counts delivered batches only. What fails is raised at its own step, also
where the engine fails at a batch that is read ahead: the batches before it are delivered first.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

from forebay._core import ForebayError
from forebay._iteration import Iteration, Owner, made
from forebay._warn import warn

if TYPE_CHECKING:
    from forebay import _native
    from forebay._samples.pipeline import Pipeline
    from forebay._samples.work import Work

__all__ = ["AheadIteration"]

# How often an iteration that waits for functions looks whether the engine has the next batch [s]: a
# look costs some microseconds, and a batch of functions takes milliseconds.
_LOOK_EVERY_S = 1e-3


class AheadIteration(Iteration):
    """Iterate the rest of an epoch, ahead of the script."""

    __slots__ = ("_failure", "_is_exhausted", "_pipeline", "_works")
    _works: deque[Work]  # set when the iteration begins

    def __init__(self, loader: Owner, pipeline: Pipeline) -> None:
        super().__init__(loader)
        self._pipeline = pipeline
        self._is_exhausted = False
        self._failure: ForebayError | None = None

    def __next__(self) -> Any:
        loader = self._loader
        if loader is None:
            raise StopIteration
        loader._check_process()  # before the lock, which a forked child may find locked
        work = outcome = None
        try:
            with self._lock:
                if loader._progress is not self._progress:
                    self._begin(loader)
                first = self._first(loader)
                if first is None:
                    self._raise_failure()
                    self._end()
                    raise StopIteration
                outcome = first.outcome()
                if outcome is None:
                    # Another thread closed or moved the loader in the meantime.
                    self._is_stale(loader)
                work = first
                self._warn_of_replaced(loader)
                epoch, step = work.position
                self._progress.place = (epoch, step + 1, True)
                self._works.popleft()
                work.forget()
            if outcome[1] is None:
                return outcome[0]
        except BaseException:
            if work is not None and outcome is not None:
                self._put_back(work, outcome)
            # The traceback has this frame, which must not refer to an error of a function.
            outcome = None
            raise
        failure = outcome[1]
        del outcome
        try:
            raise failure
        finally:
            del failure

    def _first(self, loader: Owner) -> Work | None:
        """Wait until the first batch under way is finished; None where no more batches come."""
        while True:
            self._fill(loader)
            works = self._works
            if not works:
                return None
            if works[0].is_done():
                return works[0]
            self._pipeline.wait_for(works, _LOOK_EVERY_S if self._can_take_another() else None)

    def _can_take_another(self) -> bool:
        """Whether another batch of the engine may be worked on."""
        return (
            len(self._works) <= self._pipeline.prefetch and not self._is_exhausted and self._failure is None
        )

    def _fill(self, loader: Owner) -> None:
        """Take batches from the engine that are ready; wait for one if no batch is under way."""
        works, taken = self._works, self._taken
        if taken and works and works[-1].position == taken[0][2]:
            # A signal handler has raised after this batch was added.
            self._added(taken)
        while not works or self._can_take_another():
            if not taken:
                if works and not self._engine.is_ready(self._number):
                    return
                if self._failure is not None:
                    return
                try:
                    # Here, so that the engine's warnings name the line of the script.
                    self._engine.next(self._number, taken)
                except ForebayError as error:
                    if loader._progress is not self._progress:
                        self._is_stale(loader)
                    self._failure = error
                    return
            if not taken:
                return
            self._pipeline.add(works, made(*taken[0]))
            self._added(taken)

    def _added(self, taken: list[Any]) -> None:
        """Note that the batch in ``taken`` is under way."""
        _, step = taken[0][2]
        self._is_exhausted = step + 1 == self._engine.steps
        del taken[:]

    def _put_back(self, work: Work, outcome: tuple[Any, BaseException | None]) -> None:
        """Let the next call deliver a batch; a signal handler or a warning has raised."""
        work.restore(outcome)
        if not self._works or self._works[0] is not work:
            self._works.appendleft(work)
        self._progress.place = (*work.position, True)

    def _raise_failure(self) -> None:
        """Raise what the engine raised after the last batch under way; once, as it may go on."""
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure

    def _warn_of_replaced(self, loader: Owner) -> None:
        """Warn once of each loader that a sample was replaced."""
        pipeline = self._pipeline
        if pipeline.functions.replaced and not pipeline.has_warned:
            pipeline.has_warned = True
            number, reason = next(iter(pipeline.functions.bad_samples().items()))
            warn(
                f"loader {loader.name!r}: sample {number} is replaced by one before it: {reason}; "
                "Loader.bad_samples() lists all"
            )

    def _begun(self, engine: _native.Engine, number: int) -> None:
        super()._begun(engine, number)
        self._works = self._pipeline.renew()
        self._is_exhausted, self._failure = False, None

    def _is_stale(self, loader: Owner) -> NoReturn:
        self._works = deque()
        super()._is_stale(loader)


class _EndedAhead(AheadIteration):
    """An iteration that has ended; as the ended one of a plain loader."""

    __slots__ = ()

    def __del__(self) -> None:
        pass


AheadIteration._ended_class = _EndedAhead
