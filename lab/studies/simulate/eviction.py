"""Hits of a cache with and without eviction, replayed file by file: Monarch, figure 16."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from studies.harness.sections import Row, Scope
from studies.simulate.monarch_values import QUOTA_GIB

EPOCHS = 3
DATA_GIB = 200
FILES = 2048
"""Of the dataset of 200 GiB."""


def hits(order: Iterator[Sequence[int]], room: int, *, evicts: bool) -> list[float]:
    """Return the share of accesses of each epoch that find their file in a cache.

    Parameters
    ----------
    order
        Files of each epoch.
    room
        Files that the cache holds.
    evicts
        The least recently used one goes where there is no room; else the new one is not kept.
    """
    cached: OrderedDict[int, None] = OrderedDict()
    shares = []
    for files in order:
        found = 0
        for file in files:
            if file in cached:
                found += 1
                cached.move_to_end(file)
                continue
            if len(cached) >= room:
                if not evicts:
                    continue
                cached.popitem(last=False)
            cached[file] = None
        shares.append(found / len(files))
    return shares


def eviction(scope: Scope) -> list[Row]:
    """Monarch, figure 16: hits of a cache for 56 % of the files, with LRU and without eviction."""
    del scope
    rows = []
    for order in ("the same in each epoch", "shuffled"):
        for evicts in (True, False):
            shuffles = random.Random(0)

            def epochs(order: str = order, shuffles: random.Random = shuffles) -> Iterator[Sequence[int]]:
                files = list(range(FILES))
                for _ in range(EPOCHS):
                    if order == "shuffled":
                        shuffles.shuffle(files)
                    yield files

            shares = hits(epochs(), FILES * QUOTA_GIB // DATA_GIB, evicts=evicts)
            rows.append(
                {
                    "name": "LRU" if evicts else "no eviction",
                    "order": order,
                    **{f"hits_{number}": share for number, share in enumerate(shares, 1)},
                }
            )
    return rows
