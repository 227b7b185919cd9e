"""One process that iterates many small samples.

``python -m studies.frameworks.footprint LOADER PATH SAMPLES`` prints JSON: the time to the first
batch, and the memory of the process and its workers before the first epoch and after each. Memory
is the proportional share of private and shared pages that no file backs (Pss_Anon and Pss_Shmem of
proc(5)), so pages that a fork shares count once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from forebay_lab.ranks.memory import anonymous_bytes
from studies.frameworks.job import descendants
from studies.frameworks.place import as_array

__all__ = ["EPOCHS", "FRAMED_BYTES", "RECORD_BYTES", "main"]

EPOCHS = 3
BATCH = 256
RECORD_BYTES = 64
# Length with its checksum before a record of a TFRecord file, checksum after it.
HEADER_BYTES, FRAMED_BYTES = 12, RECORD_BYTES + 16
WORKERS = 2


def memory_bytes() -> int:
    """Return the memory of this process and all below it."""
    total = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            total += anonymous_bytes(pid)
    return total


def _forebay(path: str, samples: int) -> Callable[[], Iterable[Any]]:
    import forebay

    def make() -> Iterable[Any]:
        dataset = forebay.open(path, schema="raw")
        loader = forebay.Loader(
            dataset, BATCH, order="shuffle", expected_epochs=EPOCHS, node_memory="64MiB", last_batch="partial"
        )
        if len(dataset) != samples:
            raise ValueError(f"{path}: expected {samples} samples, found {len(dataset)}")
        return _Fields(loader)

    return make


class _Fields:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Any:
        return (next(iter(batch.values())) for batch in self._loader)


def _torch(path: str, samples: int, entries: Callable[[int], Any]) -> Callable[[], Iterable[Any]]:
    import torch
    import torch.utils.data

    class Records(torch.utils.data.Dataset):
        """A dataset as users write it: it looks a sample up, and reads it."""

        def __init__(self) -> None:
            self._entries = entries(samples)
            self._file = os.open(path, os.O_RDONLY)

        def __len__(self) -> int:
            return len(self._entries)

        def __getitem__(self, number: int) -> np.ndarray:
            _, offset, _ = self._entries[number]
            return np.frombuffer(bytearray(os.pread(self._file, RECORD_BYTES, int(offset))), np.uint8)

    return lambda: torch.utils.data.DataLoader(
        Records(), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )


def _list(samples: int) -> list[tuple[str, int, int]]:
    return [(f"sample-{i:08d}", i * FRAMED_BYTES + HEADER_BYTES, i % 1000) for i in range(samples)]


def _array(samples: int) -> np.ndarray:
    numbers = np.arange(samples)
    return np.stack([numbers, numbers * FRAMED_BYTES + HEADER_BYTES, numbers % 1000], axis=1)


LOADERS: dict[str, Callable[[str, int], Callable[[], Iterable[Any]]]] = {
    "forebay": _forebay,
    "torch-list": lambda path, samples: _torch(path, samples, _list),
    "torch-array": lambda path, samples: _torch(path, samples, _array),
}


def main() -> None:
    name, path, samples = sys.argv[1], sys.argv[2], int(sys.argv[3])
    make = LOADERS[name](path, samples)
    before = memory_bytes()
    found, startup, begun = [], None, time.monotonic()
    loader = make()
    for _ in range(EPOCHS):
        count = 0
        for batch in loader:
            if startup is None:
                startup = time.monotonic() - begun
            count += len(as_array(batch))
        if count != samples:
            raise ValueError(f"{name}: expected {samples} samples, found {count}")
        found.append(memory_bytes())
    seconds = time.monotonic() - begun
    facts = {"before": before, "epochs": found, "startup": startup, "seconds": seconds}
    print(json.dumps(facts), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
