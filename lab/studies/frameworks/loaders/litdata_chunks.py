"""LitData over its own chunks, on the local disk, shuffled."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from studies.frameworks.place import Place

__all__ = ["Chunks"]


class Chunks:
    def __init__(self, place: Place) -> None:
        # It finds its rank there where torch.distributed is not initialised.
        os.environ.update(WORLD_SIZE=str(place.ranks), GLOBAL_RANK=str(place.rank))
        import litdata

        self._streaming = litdata
        self._place = place
        self._loader: Any = None

    def epoch(self, number: int) -> Iterator[Any]:
        if self._loader is None:
            self._loader = self._made()
        return iter(self._loader)

    def release(self) -> None:
        # It maps chunks; workers would keep them mapped.
        self._loader = None
        gc.collect()

    def _made(self) -> Any:
        import torch

        torch.set_num_threads(1)
        place = self._place
        workers = place.settings["workers"]
        dataset = self._streaming.StreamingDataset(str(place.path("litdata")), shuffle=True, drop_last=False)
        return self._streaming.StreamingDataLoader(
            dataset,
            batch_size=place.batch,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_stack,
            **({"prefetch_factor": 4} if workers else {}),
        )


def _stack(samples: list[Any]) -> Any:
    import torch

    return torch.from_numpy(np.stack(samples))
