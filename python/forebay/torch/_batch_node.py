"""A node of torchdata.nodes that delivers batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torchdata.nodes

from forebay.torch._loader import TensorLoader

__all__ = ["BatchNode"]


class BatchNode(torchdata.nodes.BaseNode):  # type: ignore[misc]
    """Deliver the batches of a loader; each reset without a state begins the next epoch.

    Parameters
    ----------
    loader : TensorLoader
        What delivers the batches.
    """

    def __init__(self, loader: TensorLoader) -> None:
        super().__init__()
        self._loader = loader
        self._batches: Iterator[Any] = iter(())

    @property
    def loader(self) -> TensorLoader:
        """What delivers the batches."""
        return self._loader

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or go to the position of a state."""
        super().reset(initial_state)
        if initial_state is not None:
            self._loader.load_state_dict(initial_state)
        self._batches = iter(self._loader)

    def next(self) -> Any:
        """Return the next batch."""
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """Return the state after the batch that was returned last."""
        return self._loader.state_dict()
