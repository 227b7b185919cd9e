"""The dataset for torch's DataLoader and torchdata's StatefulDataLoader.

A loader makes batches, keeps the position, and has threads and memory of its process. So the
DataLoader around it neither batches again nor has workers, and both are refused. torch offers no
hook for the former: the dataset looks at the object that asks for its iterator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Self, Unpack

import torch.utils.data

from forebay._adapters.accelerate import refuse_dispatch
from forebay._adapters.loaders import Source
from forebay._core import option_error
from forebay.torch._loader import TensorLoader, TensorOptions, tensor_loader

__all__ = ["BatchDataset", "dataset"]


def dataset(
    source: TensorLoader | Source, batch_size: int | None = None, **options: Unpack[TensorOptions]
) -> BatchDataset:
    """Make a dataset of batches for ``DataLoader(dataset, batch_size=None)``.

    Its items are whole batches, as tensors. ``torchdata.stateful_dataloader.StatefulDataLoader``
    takes it as well, and saves and restores its exact position.

    Parameters
    ----------
    source : TensorLoader, Loader, Dataset, path-like or sequence of path-like
        What delivers the batches, or of what :func:`forebay.torch.loader` makes that.
    batch_size : int, optional
        Samples per rank and step; not with a loader.
    **options
        Options of :func:`forebay.torch.loader`, by name; not with a loader.

    Returns
    -------
    BatchDataset

    Raises
    ------
    OptionError
        As :func:`forebay.torch.loader` raises it.
    """
    return BatchDataset(tensor_loader("forebay.torch.dataset", source, batch_size, options))


class BatchDataset(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """An iterable-style dataset whose items are batches.

    Each iteration delivers one epoch, the next iteration the next epoch.

    Parameters
    ----------
    loader : TensorLoader
        What delivers the batches.
    """

    def __init__(self, loader: TensorLoader) -> None:
        super().__init__()
        self._loader = loader

    @property
    def loader(self) -> TensorLoader:
        """What delivers the batches."""
        return self._loader

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same on every rank."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of the next epoch, or the rest of a restored one.

        Raises
        ------
        OptionError
            In a worker of a DataLoader, for a DataLoader that has a ``batch_size``, and where
            Accelerate reads on rank 0 for all ranks of a loader.
        """
        if torch.utils.data.get_worker_info() is not None:
            raise option_error(
                "forebay.torch.dataset: cannot be iterated in a worker of a DataLoader",
                "DataLoader(dataset, batch_size=None, num_workers=0); "
                "the loader has threads of its own: transform=, workers=, prefetch=",
            )
        caller = sys._getframe(1).f_locals.get("self")
        if getattr(caller, "auto_collation", False) is True:
            raise option_error(
                "forebay.torch.dataset: the DataLoader has a batch_size (1 unless given), and each item is a batch already",
                "DataLoader(dataset, batch_size=None); give the batch size to forebay.torch.dataset",
            )
        refuse_dispatch(
            "forebay.torch.dataset",
            self._loader.loader,
            "forebay.torch.prepare(accelerator, path, batch_size) in place of accelerator.prepare(DataLoader(...))",
        )
        return iter(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, as :meth:`TensorLoader.set_epoch` does it."""
        self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch that was taken last."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state, as :meth:`TensorLoader.load_state_dict` does it."""
        self._loader.load_state_dict(state)

    def close(self) -> None:
        """Close the loader."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
