"""Iterators of a loader: the batches of an epoch, and the position of the loader meanwhile.

An iteration begins with its first ``next``; until then an iterator changes nothing. The engine
numbers iterations under its own lock, and an iterator without the newest number is stale. Threads
that iterate one loader at once therefore get an error instead of each other's batches.

The position counts delivered batches. It is one tuple in an object that the loader and the
iteration share, so that any thread and any signal handler reads it whole.

A signal handler may raise anywhere between two instructions of Python. A batch that a `next` has
taken and not delivered is therefore always in a list of the iteration, and the next call delivers
it; the position is that before it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from forebay._core import ForebayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay import _native

__all__ = ["Batch", "BatchTuple", "Iteration", "Owner", "Position", "Progress", "made", "marked_as", "stale"]

Indices = npt.NDArray[np.int64]


class Position(NamedTuple):
    """Position of a batch in the run: its epoch and step.

    Attributes
    ----------
    epoch, step : int
        Epoch, and step within it, both counted from 0; the same on every rank.
    """

    epoch: int
    step: int


class Batch(dict[str, Any]):
    """The samples of this rank and one step: field name → array.

    A field of fixed size is an array of shape ``(samples, *field_shape)``. It is a writable
    view of a batch buffer of the rank; when the last view is dropped, the loader fills the buffer
    with a later batch. A field whose length varies is a list of one array per sample. A raw record
    is one field, ``data``.

    Some libraries make batches anew, as by ``type(batch)(values)``: the attributes are None there.

    Attributes
    ----------
    indices : ndarray of int64, shape (samples,)
        Sample ids, in the order of the batch; a copy, which keeps no buffer.
    position : Position
        Epoch and step; :meth:`Loader.state_at` returns the state after this batch. None in what
        :meth:`Dataset.read` returns.
    repeated : ndarray of bool, shape (samples,), or None
        Which samples came before in this epoch, as ``last_batch="fill"`` repeats them in its last
        step. None where it repeats none of the batch.
    """

    indices: Indices = None  # type: ignore[assignment]
    position: Position = None  # type: ignore[assignment]
    repeated: npt.NDArray[np.bool_] | None = None

    def __repr__(self) -> str:
        position = self.position and tuple(self.position)
        return f"{type(self).__name__}({super().__repr__()}, indices={self.indices!r}, position={position!r})"


class BatchTuple(tuple[Any, ...]):
    """A batch of samples for which ``transform=`` returned tuples; a tuple of what became of them.

    Attributes
    ----------
    indices : ndarray of int64, shape (samples,)
        Sample ids, in the order of the batch.
    position : Position
        Epoch and step; :meth:`Loader.state_at` returns the state after this batch.
    repeated : ndarray of bool, shape (samples,), or None
        Which samples ``last_batch="fill"`` repeats, as in a :class:`Batch`.
    """

    indices: Indices = None  # type: ignore[assignment]
    position: Position = None  # type: ignore[assignment]
    repeated: npt.NDArray[np.bool_] | None = None


_Kind = TypeVar("_Kind", bound="Batch | BatchTuple")


def marked_as(batch: _Kind, source: Batch | BatchTuple) -> _Kind:
    """Give a batch the indices, the position and the repeats of another one; return it."""
    batch.indices, batch.position, batch.repeated = source.indices, source.position, source.repeated
    return batch


def made(
    values: dict[str, Any], indices: Indices, place: tuple[int, int], repeated: list[bool] | None
) -> Batch:
    """Return a batch of the engine."""
    batch = Batch(values)
    batch.indices = indices.copy()
    batch.position = Position(*place)
    if repeated is not None:
        batch.repeated = np.array(repeated)
    return batch


class Progress:
    """Position of a loader: epoch, step, and whether an iteration has begun in that epoch.

    It is one tuple, so that any thread and any signal handler reads and writes it whole. A stale
    iteration still writes to its own object, which the loader no longer uses.
    """

    __slots__ = ("place",)

    def __init__(self, epoch: int, step: int, begun: bool) -> None:
        self.place = (epoch, step, begun)


_NOT_BEGUN = Progress(0, 0, False)


class Owner(Protocol):
    """What an iteration uses of its loader."""

    _batch_function: Callable[[Batch], Any] | None
    _progress: Progress

    @property
    def name(self) -> str: ...
    def _check_process(self) -> None: ...
    def _begin(self, iteration: Iteration) -> None: ...
    def _leave(self, iteration: int | None = None) -> None: ...


def stale(name: str) -> ForebayError:
    """Make the error of an iterator whose loader is elsewhere now."""
    return ForebayError(
        f"loader {name!r}: stale iterator: the loader was closed, repositioned, or iterated again"
    )


class Iteration:
    """Iterate the rest of an epoch.

    An iteration keeps no batch, so that only the caller decides when a buffer is free.
    """

    __slots__ = ("_batch_function", "_engine", "_loader", "_lock", "_number", "_progress", "_taken")
    _engine: _native.Engine  # set by the first `next`, like the next two
    _number: int
    # At most one batch of the engine: that of a `next` in which a signal handler raised.
    _taken: list[Any]
    _ended_class: ClassVar[type[Iteration]]

    def __init__(self, loader: Owner) -> None:
        self._loader: Owner | None = loader
        self._batch_function = loader._batch_function
        self._progress = _NOT_BEGUN
        # Serializes threads that share an iterator, so that positions follow the order of batches.
        self._lock = threading.Lock()

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if loader is None:
            raise StopIteration
        loader._check_process()  # before the lock, which a forked child may find locked
        found = None
        try:
            with self._lock:
                if loader._progress is not self._progress:
                    self._begin(loader)
                taken = self._taken
                if not taken:
                    self._take(loader)
                if not taken:
                    self._end()
                    raise StopIteration
                found = taken[0]
                batch = made(*found)
                epoch, step = batch.position
                self._progress.place = (epoch, step + 1, True)
                del taken[:]
            if self._batch_function is None:
                return batch
        except BaseException:
            if found is not None:
                # A signal handler raised; the next call delivers the batch.
                self._taken, self._progress.place = [found], (*found[2], True)
            raise
        # The function may change the batch, which is therefore not delivered again.
        return self._batch_function(batch)

    def _take(self, loader: Owner) -> None:
        """Take the next batch from the engine; none at the end of the epoch."""
        try:
            self._engine.next(self._number, self._taken)
        except ForebayError:
            if loader._progress is not self._progress:
                self._is_stale(loader)
            raise

    def _begin(self, loader: Owner) -> None:
        """Begin the iteration, unless it had begun: then another one has taken its place."""
        if self._progress is not _NOT_BEGUN:
            self._is_stale(loader)
        loader._begin(self)

    def _begun(self, engine: _native.Engine, number: int) -> None:
        """Take what belongs to the iteration that has begun."""
        self._engine, self._number, self._taken = engine, number, []

    def _end(self) -> None:
        """End the iteration; the loader is now at the next epoch."""
        if self._loader is not None:
            self._loader = None
            self.__class__ = self._ended_class
            self._progress.place = (self._progress.place[0] + 1, 0, False)

    def _is_stale(self, loader: Owner) -> NoReturn:
        self._loader = None
        raise stale(loader.name) from None

    def __del__(self) -> None:
        loader = getattr(self, "_loader", None)
        if loader is not None and loader._progress is self._progress:
            loader._leave(self._number)


class _Ended(Iteration):
    """An iteration that has ended. Its ``__del__`` does nothing.

    Python discards a Ctrl-C that arrives inside ``__del__``, which matters where epochs are short.
    """

    __slots__ = ()

    def __del__(self) -> None:
        pass


Iteration._ended_class = _Ended
