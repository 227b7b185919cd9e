"""webdataset over tar shards: shards and a buffer are shuffled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import webdataset

from studies.frameworks.jpeg_functions import FUNCTIONS
from studies.frameworks.place import Place

__all__ = ["Tar"]

BUFFER = 1000
"""Samples of the shuffle buffer, as in the examples of webdataset."""


class Tar:
    def __init__(self, place: Place) -> None:
        torch.set_num_threads(1)
        workers = place.settings.get("workers", 0)
        urls = place.shards("samples", "tar")
        dataset = webdataset.WebDataset(
            urls,
            shardshuffle=len(urls),
            nodesplitter=None,
            workersplitter=webdataset.split_by_worker,
            empty_check=False,
        )
        dataset = dataset.shuffle(BUFFER)
        if place.kind == "raw":
            dataset = dataset.to_tuple("bin").map(_record)
        else:
            dataset = dataset.to_tuple("jpg").map(_Decoded(place.settings["function"]))
        dataset = dataset.batched(place.batch, collation_fn=np.stack, partial=True)
        self._loader: Any = (
            webdataset.WebLoader(
                dataset, batch_size=None, num_workers=workers, persistent_workers=True, prefetch_factor=4
            )
            if workers
            else dataset
        )

    def epoch(self, number: int) -> Iterator[Any]:
        return iter(self._loader)

    def release(self) -> None:
        pass


def _record(sample: tuple[bytes]) -> np.ndarray:
    return np.frombuffer(sample[0], np.uint8)


class _Decoded:
    def __init__(self, name: str) -> None:
        self._function = FUNCTIONS[name]

    def __call__(self, sample: tuple[bytes]) -> Any:
        return np.asarray(self._function(sample[0], np.random.default_rng()))
