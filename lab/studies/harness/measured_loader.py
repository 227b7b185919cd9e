"""Forebay's side of every row: a loader in this process, drained epoch by epoch."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import forebay
from forebay_lab.bench.turns import timed
from studies.harness.datasets import Set

_SPENT = ("startup", "exposed", "locate", "plan", "read", "decode", "reader_idle", "gather", "gather_idle")

_names = itertools.count()


class MeasuredLoader:
    """A loader over one dataset, with what it decided and how long its epochs take."""

    def __init__(self, dataset: Set, order: str, batch: int, **options: Any) -> None:
        self.dataset = dataset
        self._source = forebay.open(dataset.path, schema=options.pop("schema", "raw"))
        options = {"world": "single", "last_batch": "drop", "seed": 1} | options
        self.loader = forebay.Loader(
            self._source, batch_size=batch, order=order, name=f"bench-{next(_names)}", **options
        )
        self.batch = batch
        self.samples = len(self.loader) * batch
        self._epoch = 0

    @property
    def readers(self) -> int:
        """Reader threads of the node: how many threads the plain loops get.

        A loader that works alone has none, and copies in as many threads as it has cores and
        buffers.
        """
        config = self.loader.config
        return config.reading.readers or min(len(os.sched_getaffinity(0)), config.memory.batch_buffers)

    @property
    def pool_bytes(self) -> int:
        """Staging blocks and batch buffers: how large a pool the plain loops get."""
        return self.loader.config.memory.region_bytes

    def offsets(self) -> np.ndarray:
        """File offset of every record, uint64 [samples]."""
        found = np.empty(self.dataset.samples, np.uint64)
        for i in range(self.dataset.samples):
            ((_, found[i], length),) = self._source.extents(i)
            if length != self.dataset.record_bytes:
                raise ValueError(f"record {i}: expected {self.dataset.record_bytes} bytes, found {length}")
        return found

    def ids(self) -> list[np.ndarray]:
        """Sample ids of the batches of one epoch."""
        return [batch.indices.astype(np.int64) for batch in self._next_epoch()]

    def drain(self) -> float:
        """Seconds from asking for an epoch to its last batch; nothing was read ahead for it."""
        batches = self._next_epoch()

        def call() -> None:
            for _ in batches:
                pass

        seconds = timed(call)
        settle()
        return seconds

    def profile(self) -> tuple[tuple[str, str], ...]:
        """Where the engine's time went, over all epochs so far."""
        stats = self.loader.stats()
        return tuple((name.replace("_", " "), f"{stats[f'{name}_seconds']:.2f} s") for name in _SPENT)

    def close(self) -> None:
        self.loader.close()

    def _next_epoch(self) -> Iterator[Any]:
        # The engine has read ahead into the next epoch; going to the one after makes it drop that.
        self._epoch += 2
        self.loader.set_epoch(self._epoch)
        return iter(self.loader)


def settle(longest_s: float = 2.0) -> None:
    """Wait until the threads of this process are idle, so that others are measured alone."""
    end = time.monotonic() + longest_s
    while time.monotonic() < end:
        before = time.process_time()
        time.sleep(0.02)
        if time.process_time() - before < 0.002:
            return
