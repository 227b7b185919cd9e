"""A loader whose batches are converted as the script takes them, one by one.

Nothing is read ahead here: the position of the loader is that of the batch that the script took
last, so a state is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

from forebay._adapters.forwards import Forwards
from forebay._iteration import Position
from forebay.loader import Loader

__all__ = ["ConvertedLoader", "position_of", "state_at_start"]

T = TypeVar("T")


def position_of(loader: Loader) -> Position:
    """Return the position of the batch that the loader delivered last."""
    epoch, step, _ = loader._progress.place
    return Position(epoch, step - 1)


def state_at_start(loader: Loader) -> dict[str, Any]:
    """Return the state before the first batch of the next iteration of the loader."""
    epoch, step, begun = loader._progress.place
    # An epoch that was broken off counts.
    return loader._states.at(epoch + 1, 0) if begun else loader._states.at(epoch, step)


class ConvertedLoader(Forwards, Generic[T]):
    """Deliver the batches of a :class:`forebay.Loader`, each converted.

    Iterate it as the loader: each iteration delivers one epoch. ``len()`` is the number of steps of
    an epoch.

    Parameters
    ----------
    loader : Loader
        Where the batches come from.
    convert : function
        What becomes of a batch.

    Attributes
    ----------
    position : Position or None
        Epoch and step of the batch that was delivered last; None before the first.
    """

    def __init__(self, loader: Loader, convert: Callable[[Any], T]) -> None:
        self._loader, self._convert = loader, convert
        self.position: Position | None = None

    @property
    def loader(self) -> Loader:
        """The loader behind it."""
        return self._loader

    def __iter__(self) -> Iterator[T]:
        return _Iteration(self)

    def __len__(self) -> int:
        return len(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch that was delivered last (:meth:`Loader.state_dict`)."""
        return self._loader.state_dict()

    def state_at(self, position: Position | tuple[int, int]) -> dict[str, Any]:
        """Return the state after the batch at a position (:meth:`Loader.state_at`)."""
        return self._loader.state_at(position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state (:meth:`Loader.load_state_dict`)."""
        self._loader.load_state_dict(state)
        self.position = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration (:meth:`Loader.set_epoch`)."""
        self._loader.set_epoch(epoch)

    def close(self) -> None:
        """Close the loader behind it; batches that the script holds stay valid."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} of {self._loader!r}>"


class _Iteration(Generic[T]):
    """Iterate an epoch; it keeps no batch."""

    __slots__ = ("_batches", "_owner")

    def __init__(self, owner: ConvertedLoader[T]) -> None:
        self._owner, self._batches = owner, iter(owner._loader)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        batch = next(self._batches)
        owner = self._owner
        owner.position = position_of(owner._loader)
        return owner._convert(batch)
