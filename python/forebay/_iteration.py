"""One pass over a loader: the batches of an epoch, and where the loader stands meanwhile.

An iteration begins with its first ``next``: until then an iterator changes nothing. The engine
numbers iterations under its own lock, and an iterator with another number than the newest is stale;
so threads that iterate one loader at once get an error instead of each other's batches. The
position counts batches that were handed out. It is one tuple in an object that loader and iteration
share, so that any thread and any signal handler reads it whole.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from forebay._core import ForebayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay import _native

__all__ = ["Batch", "Iteration", "Position", "Progress"]

Indices = npt.NDArray[np.int64]


class Position(NamedTuple):
    """The place of a batch in the run.

    Attributes
    ----------
    epoch, step : int
        Epoch, and step within it, both counted from 0; the same on every rank.
    """

    epoch: int
    step: int


class Batch(dict[str, Any]):
    """One step's samples of this rank: field name → array, or a list of arrays where the length varies.

    Arrays of fixed size have the shape (samples, then the shape of the field) and are views of the
    rank's own buffer: writable, and given back for later batches when the last view of them is
    dropped. One raw field is called ``data``.

    Attributes
    ----------
    indices : ndarray of int64, shape (samples,)
        Sample ids, in the order of the batch; a copy, which keeps no buffer.
    position : Position
        Epoch and step; :meth:`Loader.state_at` turns it into the state behind this batch.
    """

    __slots__ = ("indices", "position")
    indices: Indices
    position: Position

    def __repr__(self) -> str:
        return f"Batch({super().__repr__()}, indices={self.indices!r}, position={tuple(self.position)!r})"


class Progress:
    """Where a loader stands: epoch, step, and whether an iteration was begun in that epoch.

    One tuple, so that it is read and written whole from any thread and any signal handler. An
    iteration that is stale keeps writing to its own object, which its loader has left behind.
    """

    __slots__ = ("place",)

    def __init__(self, epoch: int, step: int, begun: bool) -> None:
        self.place = (epoch, step, begun)


_NOT_BEGUN = Progress(0, 0, False)


class _Owner(Protocol):
    """What an iteration uses of its loader."""

    _decode: Callable[[Batch], Any] | None
    _progress: Progress

    @property
    def name(self) -> str: ...
    def _check_process(self) -> None: ...
    def _begin(self, iteration: Iteration) -> None: ...
    def _leave(self, iteration: int | None = None) -> None: ...


class Iteration:
    """One way through the rest of an epoch. It keeps no batch, so that the caller alone decides when a buffer is free."""

    __slots__ = ("_decode", "_engine", "_loader", "_lock", "_number", "_progress")
    _engine: _native.Engine  # these two: from the first `next` on
    _number: int

    def __init__(self, loader: _Owner) -> None:
        self._loader: _Owner | None = loader
        self._decode = loader._decode
        self._progress = _NOT_BEGUN
        # Threads that share an iterator take turns, so that positions are counted in the order of
        # the batches.
        self._lock = threading.Lock()

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if loader is None:
            raise StopIteration
        loader._check_process()  # before the lock: a forked child may find it locked for ever
        with self._lock:
            if loader._progress is not self._progress:
                if self._progress is not _NOT_BEGUN:
                    self._is_stale(loader)
                loader._begin(self)
            try:
                taken = self._engine.next(self._number)
            except ForebayError:
                if loader._progress is not self._progress:
                    self._is_stale(loader)
                raise
            if taken is None:
                self._end()
                raise StopIteration
            values, indices, place = taken
            batch = Batch(values)
            batch.indices = indices.copy()
            batch.position = position = Position(*place)
            self._progress.place = (position.epoch, position.step + 1, True)
        return batch if self._decode is None else self._decode(batch)

    def _end(self) -> None:
        """Come to the end of the epoch; the loader stands at the next one."""
        if self._loader is not None:
            self._loader = None
            self.__class__ = _Ended
            self._progress.place = (self._progress.place[0] + 1, 0, False)

    def _is_stale(self, loader: _Owner) -> NoReturn:
        self._loader = None
        raise ForebayError(
            f"loader {loader.name!r}: stale iterator: the loader was closed, repositioned, or iterated again"
        ) from None

    def __del__(self) -> None:
        loader = getattr(self, "_loader", None)
        if loader is not None and loader._progress is self._progress:
            loader._leave(self._number)


class _Ended(Iteration):
    """An iteration that came to its end. A Ctrl-C that arrives inside ``__del__`` is lost, and epochs may be short."""

    __slots__ = ()

    def __del__(self) -> None:
        pass
