"""Decoders without a loader: threads that take images of memory and put the pixels into a list."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from studies.frameworks.formats import samples
from studies.frameworks.jpeg_functions import FUNCTIONS
from studies.frameworks.place import Place
from studies.harness.cargo import TARGET

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
    """The decoder of ``forebay.image`` in threads of a Rust program, which times itself.

    Each thread decodes every image of a folder: the folder has that part of the images.
    """

    def __init__(self, place: Place) -> None:
        self._program = TARGET / "release/examples/throughput"
        if not self._program.exists():
            raise FileNotFoundError(
                f"{self._program.name}: run cargo build --release -p forebay-image --example throughput"
            )
        self._place = place
        self.excluded_s = 0.0
        self._folder = place.path("files")
        self._folder.mkdir(exist_ok=True)
        for number, data in enumerate(samples(Path(place.folder))[:: place.settings["threads"]]):
            (self._folder / f"{number:08d}.jpg").write_bytes(data)

    def epoch(self, number: int) -> Iterator[Any]:
        command = [str(self._program), str(self._folder), str(self._place.settings["threads"]), "1"]
        begun = time.monotonic()
        done = subprocess.run(command, check=True, capture_output=True)
        count = self._place.samples
        # Its start, and reading the files.
        self.excluded_s += time.monotonic() - begun - count / float(done.stdout)
        yield np.broadcast_to(np.uint8(0), (count, 1))

    def release(self) -> None:
        pass
