"""A loader as Accelerate wants it: a ``DataLoaderShard`` that reads its own part.

A ``DataLoaderShard`` takes each batch of its dataset one step before it delivers it, which tells
it where the epoch ends. The dataset knows that: its state is that of the batch before the one that
was taken last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accelerate.data_loader import DataLoaderShard

from forebay._adapters.accelerate import asking
from forebay.torch._dataset import BatchDataset
from forebay.torch._loader import TensorLoader

__all__ = ["PreparedLoader", "ShardDataset"]


class ShardDataset(BatchDataset):
    """The dataset of a ``DataLoaderShard``.

    Parameters
    ----------
    loader : TensorLoader
        What delivers the batches.
    """

    def __init__(self, loader: TensorLoader) -> None:
        super().__init__(loader)
        self._delivered: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        shard = asking("DataLoaderShard")
        skipped = 0 if shard is None else min(shard.skip_batches, len(self))
        if skipped:
            # Of the whole epoch, also where a state has been loaded.
            self.load_state_dict(self._loader.state_at((self._loader.epoch, skipped - 1)))
        return self._batches(super().__iter__(), skipped)

    def _batches(self, batches: Iterator[Any], skipped: int) -> Iterator[Any]:
        # In place of the batches that the shard drops.
        for _ in range(skipped):
            yield None
        while True:
            self._delivered = self._loader.state_dict()
            batch = next(batches, None)
            if batch is None:
                break
            yield batch
        self._delivered = self._loader.state_dict()

    def set_epoch(self, epoch: int) -> None:
        self._delivered = None
        super().set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch that the shard delivered last."""
        return self._loader.state_dict() if self._delivered is None else self._delivered

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._delivered = None
        super().load_state_dict(state)


class PreparedLoader(DataLoaderShard):  # type: ignore[misc]
    """The batches of a loader on the device of an accelerator; :func:`prepare` makes one.

    Parameters
    ----------
    loader : TensorLoader
        What delivers the batches.
    device : torch.device
        Where the tensors are delivered.
    """

    def __init__(self, loader: TensorLoader, device: Any) -> None:
        super().__init__(ShardDataset(loader), device=device, batch_size=None)
        # Accelerator.save_state and load_state look for it. What saves the state is not torchdata.
        self.use_stateful_dataloader = True
        self._is_accelerate_prepared = True

    def begin(self) -> None:
        """Tell the accelerator that an epoch begins, and what of its last step is repeated."""
        super().begin()
        loader = self.dataset.loader.loader
        last_batch, samples = loader._options["last_batch"], loader.config.data.samples
        if last_batch == "drop":
            self.remainder = 0
        elif last_batch == "fill" and loader.config.order.kind in ("sequential", "shuffle"):
            # Of what the ranks gather there, the repeated samples are the last ones.
            self.remainder = samples % (loader.batch_size * loader.world.size)
        else:
            self.remainder = -1

    def _update_state_dict(self) -> None:
        """Do nothing: the dataset has the state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch that was delivered last."""
        state: dict[str, Any] = self.dataset.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state."""
        self.dataset.load_state_dict(state)
        # Each iteration sets the epoch of this number.
        self.iteration = self.dataset.loader.epoch
