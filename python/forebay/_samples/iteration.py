"""The iterator of a loader that works on batches ahead of the script.

It takes batches from the engine until as many are under way as ``prefetch`` allows, then waits for
the first and delivers it. The position of the loader counts delivered batches only. What fails is
raised at its own step, also where the engine fails at a batch that is read ahead: the batches
before it are delivered first.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

from forebay._core import ForebayError
from forebay._iteration import Batch, Indices, Iteration, Owner, Position, Progress

if TYPE_CHECKING:
    from forebay import _native
    from forebay._samples.pipeline import Pipeline
    from forebay._samples.work import Work

__all__ = ["AheadIteration"]


def _batch(values: dict[str, Any], indices: Indices, place: tuple[int, int]) -> Batch:
    batch = Batch(values)
    batch.indices = indices.copy()
    batch.position = Position(*place)
    return batch


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
        loader, pipeline = self._loader, self._pipeline
        if loader is None:
            raise StopIteration
        loader._check_process()  # before the lock, which a forked child may find locked
        with self._lock:
            if loader._progress is not self._progress:
                self._begin(loader)
            works = self._works
            while len(works) <= pipeline.prefetch and not self._is_exhausted and self._failure is None:
                try:
                    # Here, so that the engine's warnings name the line of the script.
                    taken = self._engine.next(self._number)
                except ForebayError as error:
                    if loader._progress is not self._progress:
                        self._is_stale(loader)
                    self._failure = error
                    break
                if taken is None:
                    self._is_exhausted = True
                else:
                    pipeline.add(works, _batch(*taken))
            if not works:
                self._raise_failure()
                self._end()
                raise StopIteration
            work = pipeline.wait_for(works)
            outcome = work.outcome()
            if outcome is None:
                # Another thread closed or moved the loader in the meantime.
                self._is_stale(loader)
            works.popleft().forget()
            epoch, step = work.position
            self._progress.place = (epoch, step + 1, True)
        self._warn_of_replaced(loader)
        if (failure := outcome[1]) is not None:
            # The traceback has this frame, which must not refer to the error.
            del outcome
            try:
                raise failure
            finally:
                del failure
        return outcome[0]

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
            warnings.warn(
                f"loader {loader.name!r}: sample {number} is replaced by one before it: {reason}; "
                "Loader.bad_samples() lists all",
                RuntimeWarning,
                stacklevel=3,
            )

    def _begun(self, engine: _native.Engine, number: int, progress: Progress) -> None:
        super()._begun(engine, number, progress)
        self._works = self._pipeline.renew()

    def _is_stale(self, loader: Owner) -> NoReturn:
        self._works = deque()
        super()._is_stale(loader)


class _EndedAhead(AheadIteration):
    """An iteration that has ended; as the ended one of a plain loader."""

    __slots__ = ()

    def __del__(self) -> None:
        pass


AheadIteration._ended_class = _EndedAhead
