"""A ``grain.IterDataset`` of the batches of a loader.

Grain's iterators carry their state with each element, also where Grain prefetches in threads: it
asks for the state after each element. The state is that of the loader after this batch.
"""

from __future__ import annotations

from typing import Any, Unpack

import grain

from forebay._adapters.converted import position_of, state_at_start
from forebay._adapters.loaders import Source, loader_for
from forebay._iteration import Position
from forebay.loader import Loader, LoaderOptions

__all__ = ["BatchDataset", "BatchIterator", "dataset"]


class BatchIterator(grain.DatasetIterator):  # type: ignore[misc]
    """Deliver the batches of an epoch, or of all epochs; ``iter()`` of a dataset makes one.

    Parameters
    ----------
    loader : Loader
        Where the batches come from. The start of an iteration makes earlier iterators stale.
    endless : bool
        Whether it continues with the next epoch.
    """

    def __init__(self, loader: Loader, endless: bool) -> None:
        super().__init__()
        self._loader, self._endless = loader, endless
        self._batches: Any = iter(loader)
        self._position: Position | None = None

    def __next__(self) -> Any:
        """Return the next batch: arrays in dictionaries, tuples and NamedTuples."""
        self._assert_not_closed()
        try:
            batch = next(self._batches)
        except StopIteration:
            if not self._endless:
                raise
            self._batches = iter(self._loader)
            batch = next(self._batches)
        self._position = position_of(self._loader)
        return _plain(batch)

    def get_state(self) -> dict[str, Any]:
        """Return the state after the batch that was delivered last; JSON can hold it."""
        if self._position is not None:
            return self._loader.state_at(self._position)
        return state_at_start(self._loader)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to the position of a state.

        Raises
        ------
        OptionError
            If the state does not fit the loader.
        """
        self._loader.load_state_dict(state)
        self._batches, self._position = iter(self._loader), None

    def close(self) -> None:
        """End the iteration; the loader stays open."""
        super().close()
        self._batches = iter(())

    def __str__(self) -> str:
        return f"BatchIterator({self._loader.name!r})"


class BatchDataset(grain.IterDataset):  # type: ignore[misc]
    """The batches of a loader; :func:`dataset` makes one.

    Attributes
    ----------
    loader : Loader
        Where the batches come from.
    """

    def __init__(self, loader: Loader, endless: bool) -> None:
        super().__init__()
        self.loader, self._endless = loader, endless

    def __iter__(self) -> BatchIterator:
        return BatchIterator(self.loader, self._endless)

    def __str__(self) -> str:
        return f"BatchDataset({self.loader.name!r})"


def dataset(
    source: Source, batch_size: int | None = None, *, endless: bool = False, **options: Unpack[LoaderOptions]
) -> BatchDataset:
    """Return a ``grain.IterDataset`` of batches.

    Each iterator delivers one epoch, the next one the next epoch. It delivers batches: do not call
    its ``batch``, and shuffle by ``order=``.

    Parameters
    ----------
    source : Loader, Dataset, path-like or sequence of path-like
        The dataset, or a loader that was made before.
    batch_size : int, optional
        Samples per rank and step.
    endless : bool, optional
        Whether an iterator continues with the next epoch, without end. Grain's own ``repeat`` goes
        back to the state at the start: it repeats one epoch, in the same order. Default False.
    **options
        Options of :class:`forebay.Loader`.

    Returns
    -------
    BatchDataset
        Its elements are dictionaries of numpy arrays, or what ``transform`` and ``batch_transform``
        return. Its iterators have ``get_state`` and ``set_state``.

    Raises
    ------
    OptionError
        As :class:`forebay.Loader` raises it.
    """
    return BatchDataset(loader_for("forebay.grain.dataset", source, batch_size, options), endless)


def _plain(batch: Any) -> Any:
    """Return a batch whose dictionaries and tuples are pytrees."""
    if isinstance(batch, dict):
        return dict(batch)
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        return tuple(batch)
    return batch
