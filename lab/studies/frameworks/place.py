"""What a rank of a compared loader is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

__all__ = ["SHARDS", "Epochs", "Place", "as_array"]

SHARDS = 8
"""Files of a sharded format: enough for 4 ranks with 2 workers each."""


@dataclass(frozen=True)
class Place:
    """One rank's part of a dataset, and the settings of its row.

    ``kind`` is "raw" (records of ``record_bytes`` that begin with their number) or "jpeg".
    """

    folder: str
    kind: str
    samples: int
    record_bytes: int
    batch: int
    rank: int
    ranks: int
    job: str
    settings: dict[str, Any]

    def path(self, name: str) -> Path:
        return Path(self.folder) / name

    def ids(self, epoch: int) -> np.ndarray:
        """Return the numbers of this rank's samples of a shuffled epoch."""
        order = np.random.default_rng((epoch, 1)).permutation(self.samples)
        return order[self.rank :: self.ranks]

    def shards(self, stem: str, suffix: str) -> list[str]:
        """Return this rank's files of a sharded format."""
        names = [str(self.path(f"{stem}-{shard:02d}.{suffix}")) for shard in range(SHARDS)]
        return names[self.rank :: self.ranks]

    facts = asdict


class Epochs(Protocol):
    """A loader as `rank` uses it."""

    def __init__(self, place: Place) -> None: ...

    def epoch(self, number: int) -> Iterator[Any]:
        """Deliver the batches of this rank."""
        ...

    def release(self) -> None:
        """Unmap and close the data, so that its pages can be dropped."""
        ...


def as_array(batch: Any) -> np.ndarray:
    """Return a batch as an array, without a copy."""
    found: np.ndarray = batch if isinstance(batch, np.ndarray) else batch.numpy()
    return found
