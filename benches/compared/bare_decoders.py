"""Decoders without a loader: threads that take images of memory and put the pixels into a list."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import forebay
from compared.jpeg_functions import FUNCTIONS
from compared.place import Place

__all__ = ["Engine", "Threads"]


class Threads:
    """A function of Python in threads."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._function = FUNCTIONS[place.settings["function"]]
        with np.load(place.path("images.npz")) as stored:
            values, offsets = stored["values"].tobytes(), stored["offsets"].tolist()
        self._images = [values[first:last] for first, last in itertools.pairwise(offsets)]

    def epoch(self, number: int) -> Iterator[Any]:
        threads = self._place.settings["threads"]
        ids = self._place.ids(number)
        with ThreadPoolExecutor(threads) as pool:
            # A thread has one long call: no queue between images.
            yield from list(pool.map(self._decode, np.array_split(ids, threads)))

    def release(self) -> None:
        pass

    def _decode(self, ids: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng()
        return np.stack([self._function(self._images[number], rng) for number in ids.tolist()])


class Engine:
    """``Dataset.read`` with ``decode=``: the engine's decoder in its own threads."""

    def __init__(self, place: Place) -> None:
        image = forebay.image(size=224, resize="random-crop")  # type: ignore[attr-defined]
        paths: Any = sorted(map(str, place.path("").glob("samples-*.tar")))
        self._place = place
        self._dataset = forebay.open(paths, decode={"jpg": image})  # type: ignore[call-arg]

    def epoch(self, number: int) -> Iterator[Any]:
        ids = self._place.ids(number)
        for first in range(0, len(ids), self._place.batch):
            part = ids[first : first + self._place.batch]
            yield self._dataset.read(part, threads=self._place.settings["threads"])["jpg"]

    def release(self) -> None:
        pass
