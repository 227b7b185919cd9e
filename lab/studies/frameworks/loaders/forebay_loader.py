"""Forebay over the data of a row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

import forebay
from studies.frameworks.jpeg_functions import FUNCTIONS
from studies.frameworks.place import Place, as_array

__all__ = ["Jpeg", "Records"]

_SOURCES = {
    "npy": "records.npy",
    "lmdb": "samples.lmdb",
    "tfrecord": "samples-*.tfrecord",
    "tar": "samples-*.tar",
}


class _Epochs:
    """A loader for one epoch at a time: it reads nothing for the next while others are measured."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._number = itertools.count()
        self._loader: forebay.Loader | None = None
        name = _SOURCES[place.settings["format"]]
        found = sorted(map(str, place.path("").glob(name)))
        self._paths: Any = found if len(found) > 1 else found[0]

    def epoch(self, number: int) -> Iterator[Any]:
        if self._loader is None:
            self._loader = self._open()
        self._loader.set_epoch(number)
        return map(self._array, self._loader)

    def release(self) -> None:
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    def _open(self) -> forebay.Loader:
        place = self._place
        world = forebay.World(rank=place.rank, size=place.ranks, job=f"{place.job}-{next(self._number)}")
        return forebay.Loader(
            self._dataset(),
            place.batch,
            world=world,
            expected_epochs=1,
            node_memory="1GiB",
            last_batch="partial",
            **self._options(),
        )

    def _dataset(self) -> Any:
        return self._paths

    def _options(self) -> dict[str, Any]:
        return {}

    def _array(self, batch: Any) -> Any:
        raise NotImplementedError


class Records(_Epochs):
    def _array(self, batch: Any) -> Any:
        (field,) = batch
        return batch[field]

    def _dataset(self) -> Any:
        return (
            self._paths
            if self._place.settings["format"] == "npy"
            else forebay.open(self._paths, schema="raw")
        )


class Jpeg(_Epochs):
    """Decoded by a function in threads (``transform=``), or by the engine (``decode=``)."""

    def _dataset(self) -> Any:
        if self._place.settings["function"] != "engine":
            return self._paths
        image = forebay.image(size=224, resize="random-crop")  # type: ignore[attr-defined]
        return forebay.open(self._paths, decode={"jpg": image})  # type: ignore[call-arg]

    def _options(self) -> dict[str, Any]:
        if self._place.settings["function"] == "engine":
            return {}
        function = FUNCTIONS[self._place.settings["function"]]

        def sample(fields: Any, rng: np.random.Generator) -> np.ndarray:
            return function(fields["jpg"].tobytes(), rng)

        return {"transform": sample, "workers": self._place.settings["threads"]}

    def _array(self, batch: Any) -> Any:
        return as_array(batch if isinstance(batch, np.ndarray) else batch["jpg"])
