"""Batches of images on a CUDA device: their rate, and what the steps of a training wait for them.

All loaders shuffle the same npy file, in the page cache, and deliver every image once per epoch,
which sums on the device show. A step of the training multiplies matrices for the time of several
copies of a batch, and sums its batch.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from studies.harness.sections import Row, Scope

__all__ = ["images"]

SHAPE = (224, 224, 3)
BATCH = 256
SAMPLES, TINY_SAMPLES = 16_384, 1_024
WORKERS = (0, 2, 4, 8)
LEAST_S = 3.0
STEP_COPIES = 8
MATRIX = 4096


def images(scope: Scope) -> list[Row]:
    """Images to a CUDA device, alone and beside the steps of a training."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: run this bench on a node with a GPU, with torch for CUDA")
    samples, least_s = (TINY_SAMPLES, 0.0) if scope.tiny else (SAMPLES, LEAST_S)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "images.npy"
        np.save(path, np.random.default_rng(18).integers(0, 256, (samples, *SHAPE), np.uint8))
        total = int(np.load(path, mmap_mode="r").sum(dtype=np.uint64))
        device = torch.cuda.get_device_name()
        copy_s = {pins: _copy_s(pins) for pins in (True, False)}
        step = _Step(STEP_COPIES * copy_s[True])
        batch_bytes = BATCH * int(np.prod(SHAPE))
        rows = [
            {"name": name, "gb_per_s": batch_bytes / copy_s[pins] / 1e9}
            for name, pins in (
                ("one copy from pinned memory", True),
                ("one copy from pageable memory", False),
            )
        ]
        for name, make in _loaders(path, samples):
            loader = make()
            alone = _seconds(loader, total, least_s, None)
            beside = _seconds(loader, total, least_s, step)
            rows.append(
                {
                    "name": name,
                    "images_per_s": BATCH / alone,
                    "gb_per_s": batch_bytes / alone / 1e9,
                    "step_ms": beside * 1e3,
                    "wait_share": beside / step.seconds - 1,
                }
            )
            del loader
    best = rows[0]["gb_per_s"]
    stock = max((row["gb_per_s"] for row in rows if row["name"].startswith("torch")), default=None)
    for row in rows:
        row |= {"device": device, "copy_ratio": row["gb_per_s"] / best, "compute_ms": step.seconds * 1e3}
        if "images_per_s" in row and stock:
            row["stock_ratio"] = row["gb_per_s"] / stock
    return rows


def _copy_s(pins: bool) -> float:
    """Median time of the copy of a batch [s]."""
    import torch

    batch = torch.zeros((BATCH, *SHAPE), dtype=torch.uint8, pin_memory=pins)
    return _median_s(lambda: batch.to("cuda", non_blocking=True))


def _median_s(call: Callable[[], Any]) -> float:
    """Median time of a call and of the work that it gives to the device [s]."""
    import torch

    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


class _Step:
    """A training step: matrix products that take `seconds`, or somewhat less."""

    def __init__(self, seconds: float) -> None:
        import torch

        batch = torch.zeros((BATCH, *SHAPE), dtype=torch.uint8, device="cuda")
        self._matrix = torch.randn((MATRIX, MATRIX), device="cuda", dtype=torch.bfloat16)
        self._products = 1
        _median_s(lambda: self(batch))  # the first call compiles
        one = _median_s(lambda: self(batch))
        self._products = max(round(seconds / one), 1)
        self.seconds = _median_s(lambda: self(batch))

    def __call__(self, batch: Any) -> Any:
        """Multiply matrices; return the sum of the batch."""
        for _ in range(self._products):
            self._matrix @ self._matrix
        return _sum(batch)


def _loaders(path: Path, samples: int) -> Iterator[tuple[str, Callable[[], Iterable[Any]]]]:
    yield "forebay.torch.loader, cuda", lambda: _Forebay(path)
    yield "forebay.torch.loader, cuda, pin_memory=False", lambda: _Forebay(path, pin_memory=False)
    for workers in WORKERS:
        name = f"torch DataLoader, npy mmap, {workers} workers, pinned"
        yield name, lambda workers=workers: _Stock(path, samples, workers)  # type: ignore[misc]


class _Forebay:
    """The images of Forebay's batches."""

    def __init__(self, path: Path, **options: Any) -> None:
        import forebay.torch

        self._loader = forebay.torch.loader(path, BATCH, order="shuffle", seed=1, device="cuda", **options)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield batch["data"]


class _Images:
    """A map-style dataset that reads a batch with one call."""

    def __init__(self, path: Path, samples: int) -> None:
        self._path, self._samples = path, samples
        self._array: Any = None

    def __len__(self) -> int:
        return self._samples

    def __getitems__(self, numbers: list[int]) -> Any:
        import torch

        if self._array is None:
            self._array = np.load(self._path, mmap_mode="r")
        return torch.from_numpy(self._array[numbers])


class _Stock:
    """torch's DataLoader at its best settings, and the copies that its users write."""

    def __init__(self, path: Path, samples: int, workers: int) -> None:
        import torch.utils.data

        self._loader: Any = torch.utils.data.DataLoader(
            _Images(path, samples),  # type: ignore[arg-type]
            BATCH,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
            collate_fn=_as_it_is,
            pin_memory=True,
        )

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield batch.to("cuda", non_blocking=True)


def _as_it_is(batch: Any) -> Any:
    return batch


def _sum(batch: Any) -> Any:
    import torch

    return batch.sum(dtype=torch.int64)


def _seconds(loader: Iterable[Any], total: int, least_s: float, step: _Step | None) -> float:
    """Time per batch in whole epochs, after a first one; each must deliver all images."""
    import torch

    batches, found = 0, []
    for epoch in range(1_000_000):
        if epoch == 1:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        sums = torch.zeros((), dtype=torch.int64, device="cuda")
        for batch in loader:
            sums += _sum(batch) if step is None else step(batch)
            batches += epoch > 0
        found.append(sums)
        if epoch > 0 and time.perf_counter() - begun > least_s:
            break
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    if any(int(sums) != total for sums in found):
        raise RuntimeError("a loader has not delivered every image once per epoch")
    return seconds / batches
